//! NaN weights. Needs [`Subject::with_broken_weights`].

use mlxcel_core::{
    Capabilities, ErrorKind, Pooling, Row, SamplingField, SamplingParams, SamplingPlan, SessionOptions,
    TokenMask, Want,
};

use crate::failure::{Failure, Outcome, ensure, refused};
use crate::outlook::step;
use crate::subject::Subject;

/// With NaN logits, every want returns an error of the kind [`Device`](ErrorKind::Device) and poisons the
/// sequence: no token, no probability and no logits are returned.
///
/// Kills: `samples_from_nan`, `returns_nan_logits`.
pub fn broken_weights_are_refused(subject: &Subject<'_>) -> Outcome {
    let model = subject.broken_model()?.ok_or_else(|| Failure::new("the subject has no broken weights"))?;
    let vocabulary = model.info().vocabulary_size;
    let claimed = model.capabilities().clone();
    let greedy = SamplingPlan::greedy();
    let mask = TokenMask::allowing(vocabulary, [0]);
    let drawn = drawn(&claimed)?;
    let mut wants = vec![(Want::token(&greedy), "the next token")];
    if claimed.top_logprobs > 0 {
        wants.push((Want::token(&greedy).with_top(1), "the most likely tokens"));
    }
    if claimed.token_masks {
        wants.push((Want::token(&greedy).with_masks(std::slice::from_ref(&mask)), "a token of a mask"));
    }
    if let Some(plan) = &drawn {
        wants.push((Want::token(plan), "a draw"));
    }
    if claimed.logits {
        wants.push((Want::logits(), "logits"));
    }
    if claimed.every_position {
        wants.push((Want::likelihoods(0), "every position"));
    }
    if claimed.hidden_states.is_some() {
        wants.push((Want::hidden(Pooling::Last), "a hidden state"));
        wants.push((Want::hidden(Pooling::Mean), "a mean of hidden states"));
    }
    let mut session = model.open_session(&SessionOptions::default())?;
    let tokens = subject.tokens(0, 5)?;
    for (want, what) in wants {
        for (length, how) in [(5, "after a prompt"), (1, "after one token")] {
            let sequence = session.open()?;
            let result = step(&mut *session, &[Row::new(sequence, &tokens[..length], want)])?.remove(0);
            refused(result, ErrorKind::Device, format_args!("{what} {how}"))?;
            ensure!(session.state(sequence)?.poisoned, "{what} {how} left the sequence healthy");
            session.close(sequence)?;
        }
    }
    Ok(())
}

/// A plan that samples, if the engine does.
fn drawn(claimed: &Capabilities) -> Outcome<Option<SamplingPlan>> {
    if !claimed.sampling.contains(SamplingField::Temperature) {
        return Ok(None);
    }
    let params = SamplingParams::greedy().with_temperature(1.0);
    Ok(Some(SamplingPlan::negotiate(&params, claimed)?))
}
