//! Adapters on every engine, against what PEFT computes in float32: tokens and logits, one by one and
//! together in one pass.

use std::path::Path;
use std::sync::Arc;

use crate::support::{CAPACITY, Fixture, engines_and_plugin};
use mlxcel_conformance::{Need, Subject, checks};
use mlxcel_conformance::{OracleCase, Tolerance};
use mlxcel_core::{
    Adapter, AdapterLimits, Answer, Backend, Control, ErrorKind, InferenceSession, InferenceSessionExt,
    LoadOptions, Model, Precision, Row, RowResult, SamplingPlan, SequenceOptions, SessionOptions, StepOutput,
    Want,
};
use mlxcel_models::Checkpoint;
use mlxcel_models::read::Float;
use mlxcel_quantize::{MergeOptions, merge};

/// Below this margin of the oracle's best logit over its second, a float32 engine may honestly choose the
/// other token.
const HONEST_MARGIN: f32 = 1e-3;
/// The largest difference of prefill logits, relative to the largest magnitude.
const LOGITS: f32 = 1e-4;

/// The folder of an adapter, with an `oracle.json`.
fn adapter(name: &'static str) -> Fixture {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/adapters").join(name);
    Fixture { name, path }
}

fn options(adapter: Option<&Adapter>) -> SequenceOptions {
    let options = SequenceOptions::default();
    adapter.map_or_else(|| options.clone(), |adapter| options.clone().with_adapter(adapter))
}

fn argmax(logits: &[f32]) -> u32 {
    let best = logits.iter().enumerate().max_by(|(_, a), (_, b)| a.total_cmp(b));
    best.map(|(token, _)| token as u32).unwrap()
}

/// One sequence for each case, fed its prompt, whose logits are those of the oracle; then all decode
/// together.
fn check(session: &mut dyn InferenceSession, cases: &[(OracleCase, Option<&Adapter>)], what: &str) {
    let mut rows = Vec::new();
    for (index, (case, adapter)) in cases.iter().enumerate() {
        let sequence = session.open_with(&options(*adapter)).unwrap();
        let row = Row::new(sequence, &case.prompt, Want::logits());
        let logits = session.run_row(row, &Control::default()).unwrap().into_logits().unwrap();
        let checked = case.check_logits(&logits, &Tolerance::new(0.0, 0.0, LOGITS));
        checked.unwrap_or_else(|failure| panic!("{what}, sequence {index}: {failure}"));
        rows.push((sequence, case.greedy[0]));
    }
    let (plan, mut out) = (SamplingPlan::greedy(), StepOutput::new());
    let least = cases.iter().map(|(case, _)| case.greedy.len()).min().unwrap();
    for step in 1..least {
        let tokens: Vec<[u32; 1]> = rows.iter().map(|&(_, token)| [token]).collect();
        // Rows want different things in different steps.
        let wants =
            (0..).map(|index| if (index + step) % 2 == 0 { Want::logits() } else { Want::token(&plan) });
        let fed = rows.iter().zip(&tokens).zip(wants);
        let fed: Vec<_> =
            fed.map(|(((sequence, _), token), want)| Row::new(*sequence, token, want)).collect();
        session.step(&fed, &Control::default(), &mut out).unwrap();
        for (index, (result, (case, _))) in out.take().into_iter().zip(cases).enumerate() {
            let token = match result.unwrap() {
                RowResult::Tokens(chosen) => chosen[0].token,
                result => argmax(&result.into_logits().unwrap()),
            };
            let (expected, honest) = (case.greedy[step], case.margins[step] < HONEST_MARGIN);
            assert!(token == expected || honest, "{what}, sequence {index}, token {step}: {token}");
            // Where both are honest, the oracle's goes on.
            rows[index].1 = expected;
        }
    }
    rows.iter().for_each(|(sequence, _)| session.close(*sequence).unwrap());
}

/// Room for two adapters of a rank up to five.
fn room() -> AdapterLimits {
    AdapterLimits::new(2, 5)
}

/// How a base model is loaded: the same for all tests, so that they share programs.
fn load_options() -> LoadOptions {
    LoadOptions::default().with_precision(Precision::Exact).with_capacity(CAPACITY).with_sequences(3)
}

/// The base model with room for adapters.
fn load(engine: &dyn Backend, base: &'static str) -> Arc<dyn Model> {
    engine.load(&Fixture::named(base).path.into(), &load_options().with_adapters(room())).unwrap()
}

#[test]
fn adapters_together_equal_peft_on_every_engine() {
    let oracles = [adapter("llama-attention"), adapter("llama-all")];
    for engine in engines_and_plugin() {
        let name = engine.name();
        let model = load(&*engine, "llama");
        assert_eq!(model.capabilities().adapters, Some(room()));
        let mut session = model.open_session(&SessionOptions::default()).unwrap();
        let load = |index: usize| model.load_adapter(&oracles[index].path.clone().into()).unwrap();
        let loaded = [load(0), load(1)];
        let [plain, first, second] =
            [&Fixture::named("llama"), &oracles[0], &oracles[1]].map(|fixture| fixture.cases());
        for (index, ((plain, first), second)) in plain.iter().zip(&first).zip(&second).enumerate() {
            let cases = [
                (plain.clone(), None),
                (first.clone(), Some(&loaded[0])),
                (second.clone(), Some(&loaded[1])),
            ];
            check(&mut *session, &cases, &format!("{name}, case {index}"));
        }
        // In the other's slot, each is what it was.
        drop(loaded);
        let loaded = [load(1), load(0)];
        let cases = [
            (first[0].clone(), Some(&loaded[1])),
            (plain[0].clone(), None),
            (second[0].clone(), Some(&loaded[0])),
        ];
        check(&mut *session, &cases, &format!("{name}, reloaded"));
    }
}

#[test]
fn adapters_hold_the_contract_on_every_engine() {
    let sources = ["llama-zero", "llama-attention", "llama-all"].map(|name| adapter(name).path.into());
    for engine in engines_and_plugin() {
        let name = engine.name().to_owned();
        let subject = Subject::new(engine, Fixture::named("llama").path)
            .with_load(load_options())
            .with_adapters(room(), sources.clone());
        for check in checks::ALL.iter().filter(|check| check.needs.contains(&Need::Adapters)) {
            let result = (check.run)(&subject);
            assert!(result.is_ok(), "{name}, {}: {result:?}", check.name);
        }
    }
}

/// Adapters of other bases, each alone.
fn check_bases(engine: &dyn Backend) {
    for (base, name) in
        [("phi3", "phi3-fused"), ("lfm2", "lfm2-recurrence"), ("qwen2_moe", "qwen2_moe-shared")]
    {
        let model = load(engine, base);
        let oracle = adapter(name);
        let loaded = model.load_adapter(&oracle.path.clone().into()).unwrap();
        let mut session = model.open_session(&SessionOptions::default()).unwrap();
        for case in oracle.cases() {
            check(&mut *session, &[(case, Some(&loaded))], &format!("{}, {name}", engine.name()));
        }
    }
}

#[test]
fn adapters_of_fused_projections_recurrences_and_shared_experts_equal_peft() {
    // The portable engine: how adapters lie is the same on all.
    check_bases(&mlxcel_session::portable::PortableBackend::new());
}

/// Eight adapters, and a row without one, in one pass: each row is what it is alone.
fn check_eight(engine: &dyn Backend) {
    let load = load_options().with_sequences(9).with_adapters(AdapterLimits::new(8, 4));
    let model = engine.load(&Fixture::named("llama").path.into(), &load).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let from = adapter("llama-attention").path;
    let settings = std::fs::read(from.join("adapter_config.json")).unwrap();
    let mut settings: serde_json::Value = serde_json::from_slice(&settings).unwrap();
    let mut loaded = vec![None];
    for number in 1..=8 {
        let to = folder.path().join(number.to_string());
        std::fs::create_dir(&to).unwrap();
        settings["lora_alpha"] = (3 * number).into();
        std::fs::write(to.join("adapter_config.json"), settings.to_string()).unwrap();
        let weights = "adapter_model.safetensors";
        std::fs::copy(from.join(weights), to.join(weights)).unwrap();
        loaded.push(Some(model.load_adapter(&to.into()).unwrap()));
    }
    let mut session = model.open_session(&SessionOptions::default()).unwrap();
    let prompt = [7, 30, 90, 11, 5];
    let open = |session: &mut dyn InferenceSession| -> Vec<_> {
        let sequences = loaded.iter().map(|adapter| {
            let sequence = session.open_with(&options(adapter.as_ref())).unwrap();
            session.run_row(Row::extend(sequence, &prompt), &Control::default()).unwrap();
            sequence
        });
        sequences.collect()
    };
    let sequences = open(&mut *session);
    let row = |sequence| Row::new(sequence, &[42], Want::logits());
    let alone = sequences.iter().map(|&sequence| {
        let logits = session.run_row(row(sequence), &Control::default()).unwrap().into_logits().unwrap();
        session.close(sequence).unwrap();
        logits
    });
    let alone: Vec<_> = alone.collect();
    let sequences = open(&mut *session);
    let rows: Vec<_> = sequences.iter().map(|&sequence| row(sequence)).collect();
    let mut out = StepOutput::new();
    session.step(&rows, &Control::default(), &mut out).unwrap();
    assert!(alone.windows(2).all(|pair| pair[0] != pair[1]), "{}: two adapters are one", engine.name());
    for (index, (together, alone)) in out.take().into_iter().zip(&alone).enumerate() {
        let together = together.unwrap().into_logits().unwrap();
        let largest = alone.iter().fold(0.0f32, |largest, logit| largest.max(logit.abs()));
        let far = together.iter().zip(alone).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(far <= 1e-5 * largest, "{}, row {index}: {far:e} of {largest}", engine.name());
    }
}

#[test]
fn eight_adapters_and_none_share_a_pass() {
    check_eight(&mlxcel_session::portable::PortableBackend::new());
}

mod nightly {
    #[test]
    fn eight_adapters_share_a_pass_on_every_engine() {
        super::engines_and_plugin().iter().for_each(|engine| super::check_eight(&**engine));
    }

    #[test]
    fn adapters_of_other_bases_equal_peft_on_every_engine() {
        super::engines_and_plugin().iter().for_each(|engine| super::check_bases(&**engine));
    }
}

#[test]
fn rows_of_several_tokens_and_adapters_share_a_pass() {
    let engine = mlxcel_session::portable::PortableBackend::new();
    let model = load(&engine, "llama");
    let load = |name| model.load_adapter(&adapter(name).path.into()).unwrap();
    let loaded = [load("llama-attention"), load("llama-all")];
    let adapters = [Some(&loaded[0]), None, Some(&loaded[1])];
    let tokens: Vec<u32> = (0..9).map(|index| 20 + 11 * index).collect();
    let mut session = model.open_session(&SessionOptions::default()).unwrap();
    // A prompt and a decoding row of each, with results at every position, at the last, and hidden.
    for want in [Want::likelihoods(2), Want::logits(), Want::hidden(mlxcel_core::Pooling::Mean)] {
        let alone: Vec<_> = adapters
            .iter()
            .map(|adapter| {
                let sequence = session.open_with(&options(*adapter)).unwrap();
                let found = session.run_row(Row::new(sequence, &tokens, want), &Control::default()).unwrap();
                session.close(sequence).unwrap();
                found
            })
            .collect();
        let sequences: Vec<_> =
            adapters.iter().map(|adapter| session.open_with(&options(*adapter)).unwrap()).collect();
        let rows: Vec<_> = sequences.iter().map(|&sequence| Row::new(sequence, &tokens, want)).collect();
        let mut out = StepOutput::new();
        session.step(&rows, &Control::default(), &mut out).unwrap();
        let together: Vec<_> = out.take().into_iter().map(Result::unwrap).collect();
        assert_eq!(together, alone, "{:?}", matches!(want.answer, Answer::Logits));
        assert_ne!(together[0], together[2]);
        sequences.iter().for_each(|&sequence| session.close(sequence).unwrap());
    }
}

/// A copy of a base model in float32, in which merged weights are not rounded to fewer bits.
fn float32_copy(base: &'static str, to: &Path) {
    let from = Fixture::named(base).path;
    let checkpoint = Checkpoint::open(&from).unwrap();
    let (mut header, mut bytes) = (serde_json::Map::new(), Vec::new());
    for (name, view) in checkpoint.tensors() {
        let float = Float::of(view.element_type).unwrap();
        let mut values = vec![0.0; view.bytes.len() / float.bytes()];
        float.read(view.bytes, &mut values);
        let start = bytes.len();
        bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        let entry =
            serde_json::json!({ "dtype": "F32", "shape": view.shape, "data_offsets": [start, bytes.len()] });
        header.insert(name.to_owned(), entry);
    }
    let header = serde_json::to_vec(&header).unwrap();
    std::fs::create_dir_all(to).unwrap();
    std::fs::copy(from.join("config.json"), to.join("config.json")).unwrap();
    let file = [&(header.len() as u64).to_le_bytes()[..], &header, &bytes].concat();
    std::fs::write(to.join("model.safetensors"), file).unwrap();
}

#[test]
fn merged_checkpoints_equal_peft() {
    let engine = mlxcel_session::portable::PortableBackend::new();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("merged");
    let _ = std::fs::remove_dir_all(&folder);
    for (base, name) in [
        ("llama", "llama-attention"),
        ("llama", "llama-all"),
        ("phi3", "phi3-fused"),
        ("lfm2", "lfm2-recurrence"),
        ("qwen2_moe", "qwen2_moe-shared"),
        ("llama", "llama-dora"),
        ("phi3", "phi3-embeddings"),
        ("mistral", "mistral-saved"),
    ] {
        let (copy, merged) = (folder.join(base), folder.join(name));
        float32_copy(base, &copy);
        let oracle = adapter(name);
        merge(&Checkpoint::open(&copy).unwrap(), oracle.path.clone(), &merged, &MergeOptions::default())
            .unwrap();
        let model = engine.load(&merged.into(), &load_options()).unwrap();
        let mut session = model.open_session(&SessionOptions::default()).unwrap();
        for case in oracle.cases() {
            check(&mut *session, &[(case, None)], &format!("{name}, merged"));
        }
    }
}

#[test]
fn changes_that_programs_have_no_room_for_are_refused_by_name() {
    let engine = mlxcel_session::portable::PortableBackend::new();
    for (base, name, field) in [
        ("llama", "llama-dora", Some("use_dora")),
        ("phi3", "phi3-embeddings", None),
        ("mistral", "mistral-saved", Some("modules_to_save")),
    ] {
        let error = load(&engine, base).load_adapter(&adapter(name).path.into()).map(drop).unwrap_err();
        assert_eq!((error.kind(), error.context("field")), (ErrorKind::Unsupported, field));
        assert!(field.is_some() || error.context("tensor").is_some_and(|tensor| tensor.contains("lm_head")));
    }
}

#[test]
fn adapters_and_base_models_in_other_formats_equal_peft() {
    let engine = mlxcel_session::portable::PortableBackend::new();
    let formats = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/formats");
    let models = [Fixture::named("llama").path, formats.join("gguf-llama-bf16")];
    for (base, names) in [
        (0, &["llama-attention-mlx", "llama-attention-gguf", "llama-all-gguf"][..]),
        (1, &["llama-attention-gguf", "llama-all-gguf", "llama-attention", "llama-all"]),
    ] {
        let options = load_options().with_adapters(room());
        let model = engine.load(&models[base].clone().into(), &options).unwrap();
        let mut session = model.open_session(&SessionOptions::default()).unwrap();
        for name in names {
            let oracle = adapter(name);
            let file = oracle.path.join("adapter.gguf");
            let source = if file.exists() { file } else { oracle.path.clone() };
            let loaded = model.load_adapter(&source.into()).unwrap();
            for case in oracle.cases() {
                check(&mut *session, &[(case, Some(&loaded))], &format!("{name} on base {base}"));
            }
        }
    }
}
