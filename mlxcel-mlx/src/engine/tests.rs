//! The engine holds the contract, and nothing is excepted: with faults, and with each option that could break it.

use std::path::{Path, PathBuf};

use mlxcel_conformance::{Expectations, Subject, suite};
use mlxcel_core::{LoadOptions, Precision};

use super::*;

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

/// A checkpoint on `engine`, with room for two prompt chunks and a little, so that whatever grows does.
fn subject(engine: &MlxBackend, checkpoint: &str) -> Subject<'static> {
    let engine = engine.clone().with_prefill_chunk(64);
    let (other, failing) = (engine.clone(), engine.clone());
    Subject::new(engine, folder(checkpoint))
        .with_load(LoadOptions::default().with_precision(Precision::Exact).with_capacity(160))
        .with_prompts(prompts(checkpoint))
        .with_other_model(move || other.load(&folder("llama").into(), &LoadOptions::default()))
        .with_faulty(move |passes| Box::new(MlxBackend { failing_pass: Some(passes), ..failing.clone() }))
}

mod plain {
    use super::*;

    suite!(subject(&MlxBackend::new(), "storyteller"), Expectations::none());
}

mod looking_ahead {
    use super::*;

    suite!(subject(&MlxBackend::new().with_look_ahead(true), "storyteller"), Expectations::none());
}

mod quantized {
    use super::*;

    suite!(subject(&MlxBackend::new(), "storyteller-4bit"), Expectations::none());
}

mod windowed {
    use super::*;

    suite!(
        subject(&MlxBackend::new().with_look_ahead(true), "mistral"),
        Expectations::none()
    );
}

#[test]
fn a_model_claims_what_its_caches_can() {
    let load = |capacity| {
        let options = LoadOptions::default().with_capacity(capacity);
        MlxBackend::new().load(&folder("mistral").into(), &options).unwrap().capabilities().clone()
    };
    assert!(!load(160).rewind && load(160).fork && load(160).snapshot);
    assert!(load(4).rewind, "nothing leaves a window that is never filled");
}

#[test]
fn options_that_the_engine_cannot_honour_are_errors_that_name_them() {
    use mlxcel_core::ErrorKind::{InvalidInput, Unsupported};
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
