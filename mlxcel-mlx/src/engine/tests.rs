//! The engine passes all conformance checks without exceptions: with faults, and with each option that could
//! break it.

use std::ops::Range;
use std::path::{Path, PathBuf};

use mlxcel_conformance::{Expectations, Subject, suite};
use mlxcel_core::{
    Control, ErrorKind, FaultPoint, InferenceSession, InferenceSessionExt, LoadOptions, PositionResult,
    Precision, Row, RowResult, SamplingParams, SamplingPlan, SessionOptions, StepOutput, TokenMask, Want,
};

use super::*;

mod draft_heads;

/// The window of the layers of `mistral`.
const WINDOW: usize = 16;

/// The folder of a checkpoint: `storyteller`, or one of the fixtures.
fn folder(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    match name {
        "storyteller" => root.join("examples/models/storyteller"),
        "storyteller-4bit" => root.join("fixtures/storyteller-4bit"),
        name => root.join("fixtures/architectures").join(name),
    }
}

/// The prompts of a checkpoint's oracle.
fn prompts(name: &str) -> Vec<Vec<u32>> {
    let text = std::fs::read(folder(name).join("oracle.json")).unwrap();
    let oracle: serde_json::Value = serde_json::from_slice(&text).unwrap();
    let cases = oracle["cases"].as_array().unwrap().iter();
    cases.map(|case| serde_json::from_value(case["prompt"].clone()).unwrap()).collect()
}

/// The engine's fault points: it compiles nothing, and copies nothing on the device before computing.
const FAULT_POINTS: [FaultPoint; 3] = [FaultPoint::Allocation, FaultPoint::Dispatch, FaultPoint::ReadBack];

/// No exceptions, except that only `windowed` tests broken weights.
fn expectations() -> Expectations {
    Expectations::none().skip("broken_weights_are_refused", "`windowed` has them")
}

/// A checkpoint on `engine`, with capacity for two prompt chunks and some more tokens, so that growing states
/// grow.
fn subject(engine: &MlxBackend, checkpoint: &str) -> Subject<'static> {
    let engine = engine.clone().with_prefill_chunk(64);
    let (other, failing) = (engine.clone(), engine.clone());
    Subject::new(engine, folder(checkpoint))
        .with_load(LoadOptions::default().with_precision(Precision::Exact).with_capacity(160))
        .with_prompts(prompts(checkpoint))
        .with_output_states()
        .with_other_model(move || other.load(&folder("llama").into(), &LoadOptions::default()))
        .with_faulty(FAULT_POINTS, move |faults| Box::new(failing.clone().with_faults(faults)))
}

mod plain {
    use super::*;

    suite!(subject(&MlxBackend::new(), "storyteller"), expectations());
}

mod quantized {
    use super::*;

    suite!(subject(&MlxBackend::new(), "storyteller-4bit"), expectations());
}

mod windowed {
    use super::*;

    fn windowed() -> Subject<'static> {
        let engine = MlxBackend::new().with_look_ahead(true);
        let broken = broken(0..256);
        subject(&engine, "mistral").with_window(WINDOW).with_bounded_state(WINDOW).with_broken_weights(
            move || engine.load(&broken.path().into(), &LoadOptions::default().with_capacity(160)),
        )
    }

    suite!(windowed(), Expectations::none());
}

mod latent {
    use super::*;

    suite!(subject(&MlxBackend::new(), "deepseek_v3"), expectations());
}

mod recurrent_in_parts {
    use super::*;

    suite!(subject(&MlxBackend::new().with_look_ahead(true), "qwen3_next"), expectations());
}

mod length_dependent {
    use super::*;

    suite!(subject(&MlxBackend::new().with_look_ahead(true), "phi3-longrope"), expectations());
}

#[test]
fn capabilities_follow_from_the_caches() {
    let load = |name, capacity| {
        let options = LoadOptions::default().with_capacity(capacity);
        MlxBackend::new().load(&folder(name).into(), &options).unwrap().capabilities().clone()
    };
    for name in ["mistral", "mamba2", "lfm2", "gpt_oss"] {
        let claimed = load(name, 160);
        assert!(!claimed.rewind && claimed.fork && claimed.snapshot, "{name}");
    }
    for name in ["deepseek_v3", "glm_moe_dsa", "phi3-longrope"] {
        assert!(load(name, 160).rewind, "{name}");
    }
    assert!(load("mistral", 4).rewind, "a window that is never filled drops nothing");
}

/// The results at each of `tokens`, fed to a new sequence in chunks.
fn every_position(model: &dyn Model, tokens: &[u32], chunk: usize) -> Vec<PositionResult> {
    let mut session = model.open_session(&SessionOptions::default()).unwrap();
    let sequence = session.open().unwrap();
    let mut positions = Vec::new();
    for chunk in tokens.chunks(chunk) {
        let row = Row::new(sequence, chunk, Want::likelihoods(0));
        match session.run_row(row, &Control::default()).unwrap() {
            RowResult::Likelihoods(own) => positions.extend(own),
            other => panic!("{other:?} instead of positions"),
        }
    }
    positions
}

#[test]
fn logits_depend_on_earlier_positions_only() {
    // Beyond 64 positions, all are rotated with other frequencies.
    let options = LoadOptions::default().with_precision(Precision::Exact);
    let model = MlxBackend::new().load(&folder("phi3-longrope").into(), &options).unwrap();
    let prompt = prompts("phi3-longrope").into_iter().max_by_key(Vec::len).unwrap();
    assert!(prompt.len() > 70);
    let whole = every_position(&*model, &prompt, usize::MAX);
    for chunk in [1, 7, 70] {
        let parts = every_position(&*model, &prompt, chunk);
        for (at, (part, whole)) in parts.iter().zip(&whole).enumerate() {
            let error = (part.best.logprob - whole.best.logprob).abs();
            assert!(error < 1e-4, "position {at} in chunks of {chunk}: {error}");
        }
    }
}

#[test]
fn rewinding_below_a_boundary_leaves_no_trace() {
    let options = LoadOptions::default().with_precision(Precision::Exact);
    let model = MlxBackend::new().load(&folder("phi3-longrope").into(), &options).unwrap();
    let prompt = prompts("phi3-longrope").into_iter().max_by_key(Vec::len).unwrap();
    let mut session = model.open_session(&SessionOptions::default()).unwrap();
    let logits = |session: &mut dyn InferenceSession, sequence, tokens: &[u32]| {
        session.run_row(Row::logits(sequence, tokens), &Control::default()).unwrap().into_logits().unwrap()
    };
    let fresh = |session: &mut dyn InferenceSession, length: usize| {
        let sequence = session.open().unwrap();
        logits(session, sequence, &prompt[..length])
    };
    let close = |a: &[f32], b: &[f32]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-4);
    let (below, beyond) = (fresh(&mut *session, 50), fresh(&mut *session, 70));
    for restored in [false, true] {
        // A snapshot in between records its epoch.
        let mut sequence = session.open().unwrap();
        let pass_on = |session: &mut dyn InferenceSession, sequence| match restored {
            true => {
                let snapshot = session.snapshot(sequence).unwrap();
                session.restore(&snapshot).unwrap()
            }
            false => sequence,
        };
        assert!(close(&logits(&mut *session, sequence, &prompt[..70]), &beyond));
        session.rewind(sequence, 40).unwrap();
        sequence = pass_on(&mut *session, sequence);
        assert!(close(&logits(&mut *session, sequence, &prompt[40..50]), &below), "{restored}");
        sequence = pass_on(&mut *session, sequence);
        assert!(close(&logits(&mut *session, sequence, &prompt[50..70]), &beyond), "{restored}");
    }
}

/// A copy of the checkpoint `mistral` with NaN embeddings for some tokens.
fn broken(tokens: Range<usize>) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    for entry in folder("mistral").read_dir().unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
    }
    let path = copy.path().join("model.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let embedding = &header["model.embed_tokens.weight"];
    let row = embedding["shape"][1].as_u64().unwrap() as usize * 2;
    let at = 8 + length + embedding["data_offsets"][0].as_u64().unwrap() as usize;
    bytes[at + tokens.start * row..at + tokens.end * row].fill(0xff);
    std::fs::write(&path, bytes).unwrap();
    copy
}

#[test]
fn nan_logits_fail_only_their_row() {
    let folder = broken(7..8);
    let mut seeded = SamplingParams::greedy();
    seeded.temperature = 0.8;
    for look_ahead in [false, true] {
        let engine = MlxBackend::new().with_look_ahead(look_ahead);
        let model = engine.load(&folder.path().into(), &LoadOptions::default()).unwrap();
        let greedy = SamplingPlan::greedy();
        let drawn = SamplingPlan::negotiate(&seeded, model.capabilities()).unwrap();
        let mask = TokenMask::allowing(model.info().vocabulary_size, [3, 4]);
        let wants = [
            Want::token(&greedy),
            Want::token(&greedy).with_masks(std::slice::from_ref(&mask)).with_top(3),
            Want::token(&drawn),
            Want::logits(),
            Want::logits().with_drafts(1),
            Want::likelihoods(2),
        ];
        for want in wants {
            let mut session = model.open_session(&SessionOptions::default()).unwrap();
            let [bad, good, other] = [(); 3].map(|()| session.open().unwrap());
            let mut out = StepOutput::new();
            let rows = [
                Row::new(bad, &[7, 5], want),
                Row::next(good, &[5, 8], &greedy),
                Row::logits(other, &[5, 8]),
            ];
            session.step(&rows, &Control::default(), &mut out).unwrap();
            let [first, second, third] = <[_; 3]>::try_from(out.take()).unwrap();
            let (error, second) = (first.unwrap_err(), second.unwrap());
            assert_eq!((error.kind(), error.message()), (ErrorKind::Device, "a logit is not a number"));
            assert!(session.state(bad).unwrap().poisoned && !session.state(good).unwrap().poisoned);
            let token = second.into_token().unwrap();
            let logits = third.unwrap().into_logits().unwrap();
            assert!(logits.iter().all(|&logit| logit <= logits[token.token as usize]), "{want:?}");
            let row = Row::next(good, std::slice::from_ref(&token.token), &greedy);
            assert!(session.run_row(row, &Control::default()).is_ok(), "{want:?}");
        }
    }
}

#[test]
fn options_that_the_engine_cannot_honour_are_errors_that_name_them() {
    use ErrorKind::{InvalidInput, Unsupported};
    let options = LoadOptions::default;
    let refused = |engine: MlxBackend, options: &LoadOptions| {
        engine.load(&folder("llama").into(), options).map(drop).unwrap_err()
    };
    let plain = MlxBackend::new;
    let error = refused(plain(), &options().with_device("tpu"));
    assert_eq!((error.kind(), error.context("device")), (InvalidInput, Some("tpu")));
    for (engine, options, field) in [
        (plain(), options().with_threads(0), "threads"),
        (plain(), options().with_capacity(513), "capacity"),
        (plain(), options().with_sequences(0), "sequences"),
        (plain().with_prefill_chunk(0), options(), "prefill_chunk"),
    ] {
        let error = refused(engine, &options);
        assert_eq!((error.kind(), error.context("field")), (InvalidInput, Some(field)));
    }
    let error = refused(plain(), &options().with_precision(Precision::Fast));
    assert_eq!((error.kind(), error.context("precision")), (Unsupported, Some("fast")));
}

/// What `plain` and `recurrent_in_parts` have in common with others.
mod nightly {
    mod indexed {
        use super::super::*;

        suite!(subject(&MlxBackend::new(), "glm_moe_dsa"), expectations());
    }

    mod looking_ahead {
        use super::super::*;

        suite!(subject(&MlxBackend::new().with_look_ahead(true), "storyteller"), expectations());
    }

    mod recurrent {
        use super::super::*;

        suite!(
            subject(&MlxBackend::new().with_look_ahead(true), "mamba2").with_bounded_state(1),
            expectations()
        );
    }
}
