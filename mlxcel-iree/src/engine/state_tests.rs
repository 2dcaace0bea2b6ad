//! What sequences keep, on the device: windows that wrap, states that do not grow, forks and snapshots of
//! both.

use std::fs;
use std::path::{Path, PathBuf};

use mlxcel_core::{
    Backend, Capabilities, Control, ErrorKind, InferenceSession, LoadOptions, Precision, Row, SamplingParams,
    SamplingPlan, SequenceId, SessionOptions, StepOutput, TokenMask, Want,
};

use crate::backend::IreeBackend;
use crate::testing::cache_dir;

pub(super) fn feed(session: &mut dyn InferenceSession, sequence: SequenceId, tokens: &[u32]) -> Vec<f32> {
    let mut out = StepOutput::default();
    session.step(&[Row::logits(sequence, tokens)], &Control::default(), &mut out).unwrap();
    out.take().remove(0).unwrap().into_logits().unwrap()
}

#[track_caller]
fn assert_near(found: &[f32], expected: &[f32], what: &str) {
    let scale = expected.iter().fold(0f32, |most, logit| most.max(logit.abs()));
    let error = found.iter().zip(expected).fold(0f32, |most, (a, b)| most.max((a - b).abs()));
    assert!(error <= 1e-4 * scale, "{what}: {error} of {scale}");
}

fn fixture(architecture: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/architectures").join(architecture)
}

/// A copy of a fixture in which the first element of `tensor`, of 16 bits, is not a number.
fn broken(architecture: &str, tensor: &str) -> tempfile::TempDir {
    let (from, folder) = (fixture(architecture), tempfile::tempdir().unwrap());
    fs::copy(from.join("config.json"), folder.path().join("config.json")).unwrap();
    let mut file = fs::read(from.join("model.safetensors")).unwrap();
    let length = u64::from_le_bytes(*file.first_chunk::<8>().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&file[8..8 + length]).unwrap();
    let at = 8 + length + header[tensor]["data_offsets"][0].as_u64().unwrap() as usize;
    file[at..at + 2].copy_from_slice(&0x7fffu16.to_le_bytes());
    fs::write(folder.path().join("model.safetensors"), file).unwrap();
    folder
}

fn assert_all_fail(engine: &IreeBackend, folder: &Path, options: &LoadOptions) {
    let model = engine.load(&folder.into(), options).unwrap();
    let mut session = model.open_session(&SessionOptions::default()).unwrap();
    let plan = SamplingPlan::negotiate(&SamplingParams::default(), &Capabilities::new(1, 1)).unwrap();
    let mask = TokenMask::allowing(model.info().vocabulary_size, [5, 6]);
    for want in [
        Want::token(&plan),
        Want::token(&plan).with_masks(std::slice::from_ref(&mask)).with_top(1),
        Want::logits(),
        Want::likelihoods(1),
    ] {
        let sequence = session.open().unwrap();
        let mut out = StepOutput::default();
        session.step(&[Row::new(sequence, &[3, 4], want)], &Control::default(), &mut out).unwrap();
        let error = out.rows()[0].as_ref().unwrap_err();
        assert_eq!(
            (error.kind(), error.message()),
            (ErrorKind::Device, "a logit is not a number"),
            "{want:?}"
        );
        assert!(session.state(sequence).unwrap().poisoned);
        session.close(sequence).unwrap();
    }
}

#[test]
fn sequences_continue_after_chunks_forks_and_snapshots_and_nan_logits_fail() {
    let text: Vec<u32> = (0..260).map(|i| 3 + (i * 37 + i * i % 11) % 250).collect();
    let engine = IreeBackend::new().with_cache_dir(cache_dir()).with_prefill_chunk(16);
    let options = LoadOptions::default().with_precision(Precision::Exact).with_sequences(3);
    // Windows of 16 in a ring, and convolutions beside full caches.
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
    // The same programs over weights that are no numbers: of the head, of a norm, of what becomes scores.
    for tensor in
        ["lm_head.weight", "model.layers.1.input_layernorm.weight", "model.layers.0.self_attn.q_proj.weight"]
    {
        assert_all_fail(&engine, broken("mistral", tensor).path(), &options);
    }
}
