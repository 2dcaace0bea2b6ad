//! What sequences keep, on the device: windows that wrap, states that do not grow, forks and snapshots of both.

use std::path::Path;

use mlxcel_core::{
    Backend, Control, ErrorKind, InferenceSession, LoadOptions, Precision, Row, RowResult, SequenceId,
    SessionOptions, StepOutput,
};

use super::IreeBackend;

fn feed(session: &mut dyn InferenceSession, sequence: SequenceId, tokens: &[u32]) -> Vec<f32> {
    let mut out = StepOutput::default();
    session.step(&[Row::logits(sequence, tokens)], &Control::default(), &mut out).unwrap();
    match out.take().remove(0).unwrap() {
        RowResult::Logits(logits) => logits,
        other => panic!("{other:?} are no logits"),
    }
}

#[track_caller]
fn assert_near(found: &[f32], expected: &[f32], what: &str) {
    let scale = expected.iter().fold(0f32, |most, logit| most.max(logit.abs()));
    let error = found.iter().zip(expected).fold(0f32, |most, (a, b)| most.max((a - b).abs()));
    assert!(error <= 1e-4 * scale, "{what}: {error} of {scale}");
}

#[test]
fn chunks_forks_and_snapshots_go_on_where_a_sequence_stands() {
    let text: Vec<u32> = (0..260).map(|i| 3 + (i * 37 + i * i % 11) % 250).collect();
    let cache = tempfile::tempdir().unwrap();
    let engine = IreeBackend::new().with_cache_dir(cache.path());
    // Windows of 16 in a ring of 192 positions (128 without kernels), and convolutions beside full caches.
    for architecture in ["mistral", "lfm2"] {
        let folder =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/architectures").join(architecture);
        let options = LoadOptions::default().with_precision(Precision::Exact).with_sequences(3);
        let model =
            engine.load(&folder.into(), &options).unwrap_or_else(|error| panic!("{architecture}: {error}"));
        assert!(!model.capabilities().rewind);
        let mut session = model.open_session(&SessionOptions::default()).unwrap();
        let [whole, sequence] = [session.open().unwrap(), session.open().unwrap()];
        let expected = feed(&mut *session, whole, &text[..200]);
        for part in [&text[..1], &text[1..10], &text[10..190]] {
            feed(&mut *session, sequence, part);
        }
        for token in text[190..199].chunks(1) {
            feed(&mut *session, sequence, token);
        }
        assert_near(&feed(&mut *session, sequence, &text[199..200]), &expected, architecture);
        let held = session.stats().kv_bytes;
        let snapshot = session.snapshot(sequence).unwrap();
        let fork = session.fork(sequence).unwrap();
        let expected = feed(&mut *session, whole, &text[200..]);
        assert_near(&feed(&mut *session, fork, &text[200..]), &expected, &format!("{architecture} forked"));
        if architecture == "mistral" {
            assert_eq!(session.stats().kv_bytes, held / 2 * 3, "a window does not grow");
        }
        session.close(fork).unwrap();
        let restored = session.restore(&snapshot).unwrap();
        let found = feed(&mut *session, restored, &text[200..]);
        assert_near(&found, &expected, &format!("{architecture} restored"));
        assert_eq!(session.rewind(restored, 0).unwrap_err().kind(), ErrorKind::Unsupported);
    }
}
