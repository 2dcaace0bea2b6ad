//! Rows with more draft tokens than a pass takes, and than a window has room for, of which some are dropped.

use mlxcel_core::{
    Backend, Control, InferenceSession, InferenceSessionExt, LoadOptions, Precision, Row, RowResult,
    SequenceId, SessionOptions, TokenId, Want,
};

use crate::support::{Fixture, STATES, expect_close};

/// What logits may differ by, relative to the largest.
const DIFFERENCE: f32 = 1e-4;
/// Tokens before the draft tokens, the one that they follow included.
const BEFORE: usize = 40;

/// The logits at the last tokens of a row: draft tokens, and the one before them.
fn logits(
    session: &mut dyn InferenceSession,
    sequence: SequenceId,
    row: &[TokenId],
    drafts: usize,
) -> Vec<Vec<f32>> {
    let row = Row::new(sequence, row, Want::logits().with_drafts(drafts));
    match session.run_row(row, &Control::default()).unwrap() {
        RowResult::Logits(logits) => logits,
        other => panic!("{other:?} instead of logits"),
    }
}

/// Whatever part of `drafts` draft tokens is right, what follows is as if the others had never been fed.
fn hold(engine: &dyn Backend, name: &'static str, drafts: usize) {
    let options = LoadOptions::default().with_precision(Precision::Exact).with_capacity(BEFORE + drafts + 8);
    let model = engine.load(&Fixture::named(name).path.into(), &options).unwrap();
    let vocabulary = model.info().vocabulary_size;
    let text: Vec<TokenId> =
        (0..BEFORE + drafts).map(|i| ((i * i * 7 + 3) % vocabulary) as TokenId).collect();
    let mut session = model.open_session(&SessionOptions::default()).unwrap();
    let mut alone = |tokens: &[TokenId]| {
        let sequence = session.open().unwrap();
        let mut answers = logits(&mut *session, sequence, tokens, 0);
        session.close(sequence).unwrap();
        answers.remove(0)
    };
    let rights = [0, 1, drafts / 2, drafts - 1];
    let expected = rights.map(|right| {
        let held = &text[..BEFORE + right];
        (alone(held), alone(&[held, &[1, 2]].concat()))
    });
    for (right, (verified, following)) in rights.into_iter().zip(expected) {
        let what = format!("{} {name}, {right} of {drafts}", engine.name());
        let sequence = session.open().unwrap();
        session.run_row(Row::extend(sequence, &text[..BEFORE - 1]), &Control::default()).unwrap();
        let answers = logits(&mut *session, sequence, &text[BEFORE - 1..], drafts);
        expect_close(&what, &answers[right], &verified, DIFFERENCE);
        session.rewind(sequence, BEFORE + right).unwrap();
        let answers = logits(&mut *session, sequence, &[1, 2], 1);
        expect_close(&format!("behind {what}"), &answers[1], &following, DIFFERENCE);
        session.close(sequence).unwrap();
    }
}

/// A ring has room for a chunk of 128 tokens behind its window, and is a multiple of 64.
#[cfg(feature = "portable")]
#[test]
fn portable_drops_more_drafts_than_a_ring_has_room_for() {
    STATES.into_iter().for_each(|name| hold(&mlxcel_session::portable::PortableBackend::new(), name, 200));
}

/// A window has room for nothing behind it.
#[cfg(feature = "mlx")]
#[test]
fn mlx_drops_drafts_of_several_passes() {
    let engine = mlxcel_session::mlx::MlxBackend::new().with_prefill_chunk(8);
    STATES.into_iter().for_each(|name| hold(&engine, name, 30));
}

#[cfg(feature = "iree")]
mod nightly {
    use super::*;

    #[test]
    fn iree_drops_more_drafts_than_a_ring_has_room_for() {
        ["gpt_oss", "lfm2"].into_iter().for_each(|name| hold(&crate::support::iree(), name, 60));
    }
}
