//! Hidden states on every engine are transformers' `last_hidden_state`: the head, applied to them here, gives
//! its logits.
//!
//! A head has more rows than columns, so no other states give the same logits.

use std::path::Path;

use crate::support::{Fixture, engines, load, spares};
use mlxcel_core::{
    Control, InferenceSessionExt, LoadOptions, Pooling, Precision, Row, RowResult, SessionOptions,
};
use mlxcel_models::{Checkpoint, Decoder, ElementType, WeightRef};

/// A dense weight in float32.
fn values(checkpoint: &Checkpoint, weight: &WeightRef) -> Vec<f32> {
    let view = checkpoint.weight(weight).unwrap();
    let half = |bytes: &[u8; 2]| f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16);
    match view.element_type {
        ElementType::BF16 => view.bytes.as_chunks::<2>().0.iter().map(half).collect(),
        ElementType::F32 => {
            view.bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
        }
        other => panic!("{other}"),
    }
}

/// What the head makes of a hidden state, in double precision.
fn logits(checkpoint: &Checkpoint, decoder: &Decoder, state: &[f32]) -> Vec<f32> {
    let head = decoder.head.unwrap();
    let matrix = values(checkpoint, decoder.weight(head.projection.weight));
    let biases = head.projection.bias.map(|bias| values(checkpoint, decoder.weight(bias)));
    let row = |(token, row): (usize, &[f32])| {
        let products = row.iter().zip(state).map(|(&a, &b)| f64::from(a) * f64::from(b));
        let bias = biases.as_ref().map_or(0.0, |biases| f64::from(biases[token]));
        let logit = (products.sum::<f64>() + bias) * f64::from(head.scale);
        head.soft_cap.map_or(logit, |cap| f64::from(cap) * (logit / f64::from(cap)).tanh()) as f32
    };
    matrix.chunks_exact(state.len()).enumerate().map(row).collect()
}

#[test]
fn head_times_hidden_states_equals_the_oracles_logits() {
    // Heads of each kind: tied, of their own, scaled, capped, with a bias; norms of each kind; a context that
    // is outgrown.
    let named = ["llama", "gemma2", "granite", "phi3-longrope", "stablelm", "mamba2"].map(Fixture::named);
    for fixture in named.into_iter().chain([Fixture::storyteller()]) {
        let checkpoint = Checkpoint::open(&fixture.path).unwrap();
        let decoder = checkpoint.decoder().unwrap();
        for engine in engines() {
            // What follows the last norm is no part of the compiled programs.
            if spares(&*engine) && !["llama", "phi3-longrope", "stablelm", "mamba2"].contains(&fixture.name) {
                continue;
            }
            let model = load(&*engine, &fixture, Precision::Exact);
            assert_eq!(model.capabilities().hidden_states, Some(decoder.hidden_size));
            let mut session = model.open_session(&SessionOptions::default()).unwrap();
            let longest = fixture.cases().into_iter().max_by_key(|case| case.prompt.len()).unwrap();
            let sequence = session.open().unwrap();
            let row = Row::hidden(sequence, &longest.prompt, Pooling::Last);
            let RowResult::Hidden(state) = session.run_row(row, &Control::default()).unwrap() else {
                panic!("no hidden state");
            };
            let found = logits(&checkpoint, &decoder, &state);
            let expected = &longest.prefill_logits;
            let scale = expected.iter().fold(0f32, |most, logit| most.max(logit.abs()));
            let error = found.iter().zip(expected).fold(0f32, |most, (a, b)| most.max((a - b).abs())) / scale;
            assert!(
                found.len() == expected.len() && error <= 1e-3,
                "{} {}: {error}",
                engine.name(),
                fixture.name
            );
        }
    }
}

/// Embedding models and rerankers are made of decoders, often without their heads.
#[test]
fn a_decoder_without_its_head_has_the_same_hidden_states() {
    for name in ["llama-linear", "mistral", "qwen3_next"] {
        let whole = Fixture::named(name);
        let folder = tempfile::tempdir().unwrap();
        let read = |file: &str| std::fs::read(whole.path.join(file)).unwrap();
        let mut config: serde_json::Value = serde_json::from_slice(&read("config.json")).unwrap();
        config["architectures"] = serde_json::json!(["BaseModel"]);
        config["tie_word_embeddings"] = false.into();
        std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
        let mut tensors = read("model.safetensors");
        if let Some(at) = tensors.windows(7).position(|bytes| bytes == b"lm_head") {
            tensors[at..at + 7].copy_from_slice(b"unknown");
        }
        std::fs::write(folder.path().join("model.safetensors"), tensors).unwrap();
        let prompt = whole.cases().remove(1).prompt;
        for engine in engines().iter().filter(|engine| !spares(&***engine) || name == "llama-linear") {
            let state = |path: &Path| {
                let options = LoadOptions::default().with_precision(Precision::Exact);
                let model = engine.load(&path.to_owned().into(), &options).unwrap();
                let mut session = model.open_session(&SessionOptions::default()).unwrap();
                let sequence = session.open().unwrap();
                let row = Row::hidden(sequence, &prompt, Pooling::Mean);
                let result = session.run_row(row, &Control::default()).unwrap();
                let RowResult::Hidden(state) = result else { panic!("no hidden state") };
                state
            };
            let (expected, found) = (state(&whole.path), state(folder.path()));
            let errors = found.iter().zip(&expected).map(|(a, b)| (a - b).abs());
            assert!(errors.fold(0f32, f32::max) <= 1e-5, "{} {name}", engine.name());
        }
    }
}
