//! Token masks. Needs [`Capabilities::token_masks`](mlxcel_core::Capabilities::token_masks).

use mlxcel_core::{
    Control, ErrorKind, InferenceSession, InferenceSessionExt, Result, Row, RowResult, SampledToken,
    SamplingPlan, SequenceId, TokenId, TokenMask, Want,
};

use crate::failure::{Outcome, ensure, refused};
use crate::outlook::{argmax, expect_token, stands_at};
use crate::subject::Subject;
use crate::walk::Walk;

fn masked(
    session: &mut dyn InferenceSession,
    sequence: SequenceId,
    tokens: &[TokenId],
    mask: &TokenMask,
) -> Result<RowResult> {
    let plan = SamplingPlan::greedy();
    let row = Row::new(sequence, tokens, Want::token(&plan).with_masks(std::slice::from_ref(mask)));
    session.run_row(row, &Control::default())
}

fn choose_masked(subject: &Subject<'_>, tokens: &[TokenId], mask: &TokenMask) -> Outcome<SampledToken> {
    let mut session = subject.session()?;
    let sequence = session.open()?;
    expect_token(masked(&mut *session, sequence, tokens, mask)?)
}

/// Only allowed tokens are chosen: the most likely of them, with its probability among all tokens.
///
/// Kills: `ignores_masks`, `mask_changes_probabilities`.
pub fn masks_are_honoured(subject: &Subject<'_>) -> Outcome {
    let vocabulary = subject.model()?.info().vocabulary_size;
    let tokens = subject.tokens(0, 6)?;
    let free = subject.outlook(&tokens)?;
    let tolerance = subject.tolerance()?;
    let without_best = (0..vocabulary as TokenId).filter(|&token| token != free.token);
    let masks = [
        TokenMask::allowing(vocabulary, without_best),
        TokenMask::allowing(vocabulary, [0]),
        TokenMask::allowing(vocabulary, [vocabulary as TokenId - 1]),
        TokenMask::allowing(vocabulary, (0..vocabulary as TokenId).filter(|token| token % 3 == 1)),
        TokenMask::allowing(vocabulary, 0..vocabulary as TokenId),
    ];
    for (number, mask) in masks.iter().enumerate().filter(|(_, mask)| !mask.is_empty()) {
        let chosen = choose_masked(subject, &tokens, mask)?;
        ensure!(mask.allows(chosen.token), "mask {number} does not allow token {}", chosen.token);
        let Some(logits) = &free.logits else { continue };
        let Some(best) = argmax(logits, |token| mask.allows(token)) else { continue };
        let lead = logits[best as usize] - logits[chosen.token as usize];
        ensure!(
            chosen.token == best || lead < free.bounds(&tolerance).margin,
            "under mask {number} token {} was chosen, and {best} leads it by {lead}",
            chosen.token
        );
        free.scores(chosen.token, chosen.logprob, &tolerance, format_args!("under mask {number}"))?;
    }
    Ok(())
}

/// Stop tokens are ordinary tokens to an engine: chosen if only they are allowed, and usable as input.
///
/// Kills: `swallows_stop_tokens`.
pub fn stop_tokens_are_tokens(subject: &Subject<'_>) -> Outcome {
    let model = subject.model()?;
    let info = model.info();
    // A model without stop tokens uses its first token.
    let stops = if info.stop_tokens.is_empty() { &[0][..] } else { &info.stop_tokens };
    for &stop in stops {
        let mut tokens = subject.tokens(1, 5)?;
        let chosen = choose_masked(subject, &tokens, &TokenMask::allowing(info.vocabulary_size, [stop]))?;
        ensure!(chosen.token == stop, "token {} was chosen where only {stop} is allowed", chosen.token);
        tokens.push(stop);
        let mut session = subject.session()?;
        let mut walk = Walk::open(&mut *session, tokens)?;
        walk.run(subject, &mut *session, 2, format_args!("after stop token {stop}"))?;
    }
    Ok(())
}

/// A mask that allows nothing, or of another vocabulary size, is rejected before any work.
///
/// Kills: `accepts_any_mask`.
pub fn bad_masks_are_refused(subject: &Subject<'_>) -> Outcome {
    let vocabulary = subject.model()?.info().vocabulary_size;
    let tokens = subject.tokens(2, 4)?;
    let mut session = subject.session()?;
    let sequence = session.open()?;
    for (mask, what) in [
        (TokenMask::none(vocabulary), "a mask that allows nothing"),
        (TokenMask::allowing(vocabulary + 1, [0, 1]), "a mask for a larger vocabulary"),
        (TokenMask::allowing(vocabulary - 1, [0, 1]), "a mask for a smaller vocabulary"),
    ] {
        refused(masked(&mut *session, sequence, &tokens, &mask), ErrorKind::InvalidInput, what)?;
        stands_at(&*session, sequence, 0)?;
    }
    Ok(())
}
