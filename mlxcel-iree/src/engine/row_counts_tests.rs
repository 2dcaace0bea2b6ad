//! A row's logits are the same to the last bit however many rows and tokens share its passes.

use std::path::{Path, PathBuf};

use mlxcel_core::{
    Backend, Control, InferenceSession, LoadOptions, Row, RowResult, SequenceId, SessionOptions, StepOutput,
    TokenId, Want,
};

use crate::backend::IreeBackend;
use crate::testing::cache_dir;

/// Long enough for a chunk of 16 tokens, single tokens behind it and draft tokens.
const TEXT: [TokenId; 24] =
    [0, 40, 71, 18, 9, 300, 212, 5, 77, 64, 31, 2, 500, 611, 13, 90, 8, 45, 123, 321, 99, 6, 41, 17];

fn models() -> [PathBuf; 2] {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    [root.join("examples/models/storyteller"), root.join("fixtures/storyteller-4bit")]
}

/// The bits of the logits that each row wants.
fn step(session: &mut dyn InferenceSession, rows: &[Row<'_>]) -> Vec<Vec<Vec<u32>>> {
    let mut out = StepOutput::default();
    session.step(rows, &Control::default(), &mut out).unwrap();
    let bits = |logits: Vec<f32>| logits.into_iter().map(f32::to_bits).collect();
    let results = out.take().into_iter().map(|result| match result.unwrap() {
        RowResult::Logits(each) => each.into_iter().map(bits).collect(),
        RowResult::Extended => Vec::new(),
        other => panic!("{other:?} are no logits"),
    });
    results.collect()
}

/// A sequence that holds this many tokens of the text, computed in chunks of at most `chunk`.
fn sequence(session: &mut dyn InferenceSession, tokens: usize, chunk: usize) -> SequenceId {
    let sequence = session.open().unwrap();
    for chunk in TEXT[..tokens].chunks(chunk) {
        step(session, &[Row::extend(sequence, chunk)]);
    }
    sequence
}

#[test]
fn logits_do_not_depend_on_how_many_rows_share_a_pass() {
    for folder in models() {
        let load = LoadOptions::default().with_capacity(200).with_sequences(2);
        let model = IreeBackend::new().with_cache_dir(cache_dir()).load(&folder.into(), &load).unwrap();
        let mut session = model.open_session(&SessionOptions::default()).unwrap();
        let session = &mut *session;
        let what = model.info().model_type.clone();
        assert!(model.capabilities().bitwise_batch_invariance || !cfg!(target_arch = "x86_64"));
        // What follows each of the last four tokens, one by one.
        let (before, last) = TEXT.split_at(TEXT.len() - 4);
        let single = sequence(session, before.len(), 1);
        let wanted: Vec<_> = last
            .iter()
            .map(|token| step(session, &[Row::logits(single, &[*token])]).remove(0).remove(0))
            .collect();

        let chunked = sequence(session, before.len(), 16);
        let verified = Row::new(chunked, last, Want::logits().with_drafts(3));
        assert!(step(session, &[verified])[0] == wanted, "{what}: verified behind a chunk of 16");
        session.rewind(chunked, before.len()).unwrap();
        session.rewind(single, 0).unwrap();
        let rows = [Row::logits(chunked, &last[..1]), Row::extend(single, &TEXT[..1])];
        assert!(step(session, &rows)[0][0] == wanted[0], "{what}: beside another sequence");
        session.close(single).unwrap();

        let whole = session.open().unwrap();
        let found = step(session, &[Row::logits(whole, &TEXT)]).remove(0).remove(0);
        assert!(found == wanted[3], "{what}: of the whole text");
    }
}
