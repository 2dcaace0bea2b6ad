//! Whole generations, and the contract's provided methods.

use mlxcel_core::{
    ErrorKind, FinishReason, GenerateExt, GenerateOptions, InferenceSession, SamplingPlan, SessionOptions,
    TokenChoice, TokenId, TokenStream,
};

use crate::failure::{Outcome, ensure, refused};
use crate::subject::Subject;

/// Compares a greedy text with the expected choice after each of its prefixes, computed at once in a fresh
/// session; small margins may excuse other tokens.
fn compare(subject: &Subject<'_>, prompt: &[TokenId], said: &[TokenId], what: &str) -> Outcome {
    let tolerance = subject.tolerance()?;
    let mut held = prompt.to_vec();
    for (i, &token) in said.iter().enumerate() {
        let expected = subject.outlook(&held)?;
        ensure!(
            token == expected.token || expected.excuses(token, &tolerance),
            "{what}: token {i} is {token}, and step by step {}",
            expected.token
        );
        held.push(token);
    }
    Ok(())
}

/// A stream yields the same tokens as steps, ends with `Length` at the token limit, and with `Stop` at a stop
/// token, which it does not yield.
///
/// Kills: `forgets_between_steps`.
pub fn streams_are_steps(subject: &Subject<'_>) -> Outcome {
    let prompt = subject.tokens(0, 7)?;
    let mut session = subject.session()?;
    let run = |session: &mut dyn InferenceSession, options: GenerateOptions| -> Outcome<_> {
        let sequence = session.open()?;
        let choice = TokenChoice::Engine(SamplingPlan::greedy());
        let mut stream = TokenStream::new(&mut *session, sequence, &prompt, options, choice)?;
        let tokens =
            (&mut stream).map(|token| Ok(token?.token)).collect::<mlxcel_core::Result<Vec<TokenId>>>()?;
        let reason = stream.finish_reason();
        session.close(sequence)?;
        Ok((tokens, reason))
    };
    let (tokens, reason) = run(&mut *session, GenerateOptions::new(6))?;
    ensure!(
        tokens.len() == 6 && reason == Some(FinishReason::Length),
        "a stream of 6 tokens ended after {} as {reason:?}",
        tokens.len()
    );
    compare(subject, &prompt, &tokens, "a stream")?;
    // The first token that did not occur before becomes a stop token.
    let stop = (1..6).rev().find(|&i| !tokens[..i].contains(&tokens[i])).unwrap_or(0);
    let options = GenerateOptions::new(6).with_stop_tokens([tokens[stop]]);
    let (stopped, reason) = run(&mut *session, options)?;
    ensure!(
        stopped == tokens[..stop] && reason == Some(FinishReason::Stop),
        "with stop token {} a stream gave {stopped:?} of {tokens:?} and ended as {reason:?}",
        tokens[stop]
    );
    let (nothing, reason) = run(&mut *session, GenerateOptions::new(0))?;
    ensure!(
        nothing.is_empty() && reason == Some(FinishReason::Length),
        "a stream of no tokens gave {nothing:?}"
    );
    Ok(())
}

/// A generation runs up to the last position of the sequence and then ends with `Length`.
///
/// Kills: `capacity_one_short`.
pub fn generation_ends_when_full(subject: &Subject<'_>) -> Outcome {
    let capacity = 12;
    let prompt = subject.tokens(1, 5)?;
    let mut session = subject.model()?.open_session(&SessionOptions::default().with_capacity(capacity))?;
    let generation = session.generate_greedy(&prompt, &GenerateOptions::new(100))?;
    // The last token needs no position: it is not fed.
    let expected = capacity - prompt.len() + 1;
    ensure!(
        generation.tokens.len() == expected && generation.finish_reason == FinishReason::Length,
        "a prompt of 5 with a capacity of {capacity} gave {} tokens, not {expected}, and ended as {:?}",
        generation.tokens.len(),
        generation.finish_reason
    );
    compare(subject, &prompt, &generation.tokens, "up to the capacity")?;
    let long = subject.tokens(2, capacity + 1)?;
    refused(
        session.generate_greedy(&long, &GenerateOptions::new(1)),
        ErrorKind::CapacityExceeded,
        "a prompt that does not fit",
    )?;
    refused(
        session.generate_greedy(&[], &GenerateOptions::new(1)),
        ErrorKind::InvalidInput,
        "an empty prompt",
    )
}

/// A generation in one call closes its sequence, whether it succeeds, fails or is interrupted.
///
/// Kills: `keeps_closed_sequences`.
pub fn generation_leaves_nothing_open(subject: &Subject<'_>) -> Outcome {
    let mut session = subject.session()?;
    let prompt = subject.tokens(3, 4)?;
    let beyond = [u32::MAX];
    for turn in 0..session.capabilities().sequences + 1 {
        session.generate_greedy(&prompt, &GenerateOptions::new(2))?;
        refused(
            session.generate_greedy(&beyond, &GenerateOptions::new(2)),
            ErrorKind::InvalidInput,
            "a prompt beyond the vocabulary",
        )?;
        let mut seen = 0;
        let broken = session.generate_streaming_greedy(&prompt, &GenerateOptions::new(9), &mut |_| {
            seen += 1;
            if seen == 2 { std::ops::ControlFlow::Break(()) } else { std::ops::ControlFlow::Continue(()) }
        })?;
        ensure!(
            broken.finish_reason == FinishReason::Cancelled && broken.tokens.len() == 2,
            "turn {turn}: broken off after 2 tokens, it ended as {:?} after {}",
            broken.finish_reason,
            broken.tokens.len()
        );
    }
    Ok(())
}
