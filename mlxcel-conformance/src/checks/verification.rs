//! Verification of draft tokens.

use mlxcel_core::{
    Control, InferenceSession, InferenceSessionExt, Row, RowResult, SampledToken, SamplingParams,
    SamplingPlan, SequenceId, TokenId, TokenMask, Want,
};

use crate::failure::{Outcome, ensure};
use crate::outlook::{expect_token, extend, same_logits, stands_at, step, unexpected};
use crate::subject::Subject;
use crate::walk::Walk;

/// The results of a row with draft tokens at its end: one for each of them and one after them.
fn verified(
    session: &mut dyn InferenceSession,
    sequence: SequenceId,
    tokens: &[TokenId],
    want: Want<'_>,
) -> Outcome<Vec<SampledToken>> {
    let answers = want.count(tokens.len());
    match step(session, &[Row::new(sequence, tokens, want)])?.remove(0)? {
        RowResult::Tokens(tokens) => {
            ensure!(tokens.len() == answers, "{} answers, not {answers}", tokens.len());
            Ok(tokens)
        }
        other => Err(unexpected("the tokens after draft tokens", &other)),
    }
}

/// Verifying draft tokens in one row gives the same as feeding them one by one, accepted or rejected, with or
/// without a prompt before them, and the sequence continues from the accepted ones. Needs verification.
///
/// Kills: `verifies_the_last_everywhere`, `verification_is_shifted`, `swaps_positions`,
/// `rewinds_in_name_only`.
pub fn drafts_are_verified_in_one_row(subject: &Subject<'_>) -> Outcome {
    let prompt = subject.tokens(6, 10)?;
    let vocabulary = subject.model()?.info().vocabulary_size as u32;
    let mut truth = prompt.clone();
    for _ in 0..6 {
        truth.push(subject.outlook(&truth)?.token);
    }
    let plan = SamplingPlan::greedy();
    let mut session = subject.session()?;
    // The index of the wrong draft token, their number, and how much of the prompt is in the same row.
    for (wrong, drafts, front) in [(0, 1, 1), (1, 3, 1), (3, 3, 1), (2, 5, 1), (4, 5, 4), (0, 0, 2)] {
        let sequence = session.open()?;
        extend(&mut *session, sequence, &prompt[..prompt.len() - front])?;
        let mut row = truth[prompt.len() - front..prompt.len() + drafts].to_vec();
        if let Some(token) = row.get_mut(front + wrong) {
            *token = (*token + 1) % vocabulary;
        }
        let want = Want::token(&plan).with_drafts(drafts);
        let answers = verified(&mut *session, sequence, &row, want)?;
        let held = [&prompt[..prompt.len() - front], &row].concat();
        for (i, answer) in answers.iter().enumerate() {
            subject.agrees(answer, &held[..prompt.len() + i], format_args!("after draft token {i}"))?;
        }
        stands_at(&*session, sequence, held.len())?;
        let right = prompt.len() + wrong.min(drafts);
        session.rewind(sequence, right)?;
        let mut walk = Walk { sequence, held: truth[..right].to_vec(), pending: vec![truth[right]] };
        walk.run(subject, &mut *session, 2, format_args!("after draft token {wrong} of {drafts} was wrong"))?;
        session.close(sequence)?;
    }
    Ok(())
}

/// Rows with draft tokens follow each other, behind some, all or none of whose draft tokens were dropped. In
/// between, the sequence is forked, and saved and restored, if that is claimed. Needs verification.
///
/// Kills: `rewinds_well_once`.
pub fn drafts_follow_dropped_drafts(subject: &Subject<'_>) -> Outcome {
    // The number of draft tokens in each row, and how many of them are right.
    const ROUNDS: [(usize, usize); 6] = [(3, 1), (4, 4), (2, 0), (5, 3), (3, 3), (4, 2)];
    let mut truth = subject.tokens(6, 10)?;
    let mut fed = truth.len() - 1;
    for _ in 0..ROUNDS.iter().map(|(_, right)| right + 1).sum::<usize>() {
        truth.push(subject.outlook(&truth)?.token);
    }
    let (plan, vocabulary) = (SamplingPlan::greedy(), subject.model()?.info().vocabulary_size as u32);
    let mut session = subject.session()?;
    let claimed = session.capabilities().clone();
    let mut sequence = session.open()?;
    extend(&mut *session, sequence, &truth[..fed])?;
    for (round, (drafts, right)) in ROUNDS.into_iter().enumerate() {
        let mut row = truth[fed..=fed + right].to_vec();
        row.resize_with(1 + drafts, || (truth[fed + right + 1] + 1) % vocabulary);
        let answers = verified(&mut *session, sequence, &row, Want::token(&plan).with_drafts(drafts))?;
        for (i, answer) in answers.iter().take(right + 1).enumerate() {
            let held = &truth[..=fed + i];
            subject.agrees(answer, held, format_args!("after draft token {i} of round {round}"))?;
        }
        fed += 1 + right;
        session.rewind(sequence, fed)?;
        stands_at(&*session, sequence, fed)?;
        if claimed.fork && claimed.sequences > 1 && round % 2 == 0 {
            let sequence = session.fork(sequence)?;
            let mut fork = Walk { sequence, held: truth[..fed].to_vec(), pending: vec![truth[fed]] };
            fork.run(subject, &mut *session, 1, format_args!("a fork after round {round}"))?;
            session.close(sequence)?;
        }
        if claimed.snapshot && round % 3 == 0 {
            let snapshot = session.snapshot(sequence)?;
            session.close(sequence)?;
            sequence = session.restore(&snapshot)?;
        }
    }
    let mut walk = Walk { sequence, held: truth[..fed].to_vec(), pending: vec![truth[fed]] };
    walk.run(subject, &mut *session, 2, "after all rounds")
}

/// The logits after draft tokens are those of each position. Needs verification and logits.
///
/// Kills: `verifies_by_the_last_logits`.
pub fn drafts_return_logits(subject: &Subject<'_>) -> Outcome {
    let text = subject.tokens(7, 9)?;
    let (tolerance, drafts) = (subject.tolerance()?, 3);
    let mut session = subject.session()?;
    let sequence = session.open()?;
    extend(&mut *session, sequence, &text[..4])?;
    let row = Row::new(sequence, &text[4..], Want::logits().with_drafts(drafts));
    let rows = match step(&mut *session, &[row])?.remove(0)? {
        RowResult::Logits(rows) => rows,
        other => return Err(unexpected("the logits after draft tokens", &other)),
    };
    ensure!(rows.len() == drafts + 1, "{} answers, not {}", rows.len(), drafts + 1);
    for (i, logits) in rows.iter().enumerate() {
        let before = &text[..text.len() - drafts + i];
        if let Some(expected) = subject.outlook(before)?.logits {
            same_logits(logits, &expected, &tolerance, format_args!("after draft token {i}"))?;
        }
    }
    Ok(())
}

/// Each draft token has its own mask. Needs verification and token masks.
///
/// Kills: `verifies_by_the_first_mask`, `takes_the_mask_of_another_position`.
pub fn drafts_are_masked_individually(subject: &Subject<'_>) -> Outcome {
    let prompt = subject.tokens(8, 6)?;
    let vocabulary = subject.model()?.info().vocabulary_size;
    let plan = SamplingPlan::greedy();
    let masks: Vec<TokenMask> =
        [1, 3, 2].map(|token| TokenMask::allowing(vocabulary, [token.min(vocabulary as u32 - 1)])).to_vec();
    let mut session = subject.session()?;
    let sequence = session.open()?;
    let want = Want::token(&plan).with_masks(&masks).with_drafts(2);
    let answers = verified(&mut *session, sequence, &prompt, want)?;
    for (answer, mask) in answers.iter().zip(&masks) {
        ensure!(mask.allows(answer.token), "token {} is not allowed at its position", answer.token);
    }
    Ok(())
}

/// Sampling after draft tokens gives the same as step by step. Needs verification and the temperature.
///
/// Kills: `verification_draws_by_the_row`.
pub fn drafts_are_sampled_as_single_tokens(subject: &Subject<'_>) -> Outcome {
    let prompt = subject.tokens(9, 6)?;
    let params = SamplingParams::greedy().with_temperature(1.0).with_seed(11);
    let plan = SamplingPlan::negotiate(&params, subject.session()?.capabilities())?;
    let mut session = subject.session()?;
    let sequence = session.open()?;
    let (mut text, mut pending) = (Vec::new(), prompt.clone());
    for _ in 0..5 {
        let token = session.run_row(Row::next(sequence, &pending, &plan), &Control::default())?;
        pending = vec![expect_token(token)?.token];
        text.extend(&pending);
    }
    session.close(sequence)?;
    let sequence = session.open()?;
    extend(&mut *session, sequence, &prompt[..5])?;
    let row = [&prompt[5..], &text[..4]].concat();
    let want = Want::token(&plan).with_drafts(4);
    let answers = verified(&mut *session, sequence, &row, want)?;
    let drawn: Vec<_> = answers.iter().map(|answer| answer.token).collect();
    ensure!(drawn == text, "after draft tokens {drawn:?} is drawn, and step by step {text:?}");
    Ok(())
}
