//! The program `generate`, as a user runs it: what it prints and how it ends, on good input and bad.

mod draft_head;
mod refusals;

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

use crate::program::{Run, copy_of_storyteller, fixture, mlxcel, start};
use crate::support::Fixture;

/// The engines to run with.
const BACKENDS: &[&str] = &[
    #[cfg(feature = "portable")]
    "portable",
    #[cfg(feature = "iree")]
    "iree",
    #[cfg(feature = "mlx")]
    "mlx",
];

fn generate(arguments: &[&str]) -> Run {
    generate_with(arguments, "", &[])
}

fn generate_with(arguments: &[&str], input: &str, variables: &[(&str, &str)]) -> Run {
    let mut command = mlxcel(&["generate"]);
    Run::with_input(command.args(arguments).envs(variables.iter().copied()), input.as_bytes())
}

/// The object that a run with `--json` prints, in one line.
#[track_caller]
fn json(arguments: &[&str]) -> Value {
    let printed = generate(&[arguments, &["--json"]].concat()).printed();
    assert_eq!(printed.lines().count(), 1);
    serde_json::from_str(&printed).unwrap()
}

fn storyteller() -> PathBuf {
    Fixture::storyteller().path
}

/// What transformers generated.
#[derive(Deserialize)]
pub(crate) struct Case {
    pub(crate) messages: Option<Vec<Value>>,
    text: Option<String>,
    prompt: Vec<u32>,
    greedy: Vec<u32>,
    logprobs: Vec<f64>,
    margins: Vec<f64>,
    pub(crate) completion: Option<String>,
}

pub(crate) fn oracle(folder: &Path) -> Vec<Case> {
    #[derive(Deserialize)]
    struct Oracle {
        cases: Vec<Case>,
    }
    let text = fs::read_to_string(folder.join("oracle.json")).unwrap();
    serde_json::from_str::<Oracle>(&text).unwrap().cases
}

/// Holds an output against a case, as far as the oracle's own choice was no toss-up.
pub(crate) fn assert_case(output: &Value, case: &Case) {
    let tokens: Vec<u32> = serde_json::from_value(output["tokens"].clone()).unwrap();
    let logprobs: Vec<f64> = serde_json::from_value(output["logprobs"].clone()).unwrap();
    assert_eq!(tokens.len(), logprobs.len());
    assert_eq!(output["prompt_tokens"], case.prompt.len());
    let certain = case.margins.iter().take_while(|&&margin| margin >= 1e-4).count();
    let expected: Vec<u32> = case.greedy.iter().copied().take(certain.min(tokens.len())).collect();
    assert_eq!(tokens[..expected.len()], expected);
    for (found, expected) in logprobs.iter().zip(&case.logprobs).take(expected.len()) {
        assert!((found - expected).abs() < 1e-3, "{found} is not {expected}");
    }
}

/// The ids as `--tokens` takes them.
fn ids(tokens: &[u32]) -> String {
    tokens.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

#[test]
fn an_adapter_generates_the_tokens_of_peft() {
    let [model, adapter] = ["architectures/llama", "adapters/llama-all"].map(fixture);
    let case = oracle(&adapter).remove(0);
    let (model, folder) = (model.to_str().unwrap(), adapter.to_str().unwrap());
    let (tokens, n) = (ids(&case.prompt), case.greedy.len().to_string());
    let common = ["--backend", "portable", "--precision", "exact", "--ignore-eos", "-n", &n];
    let run = |adapter: &str| {
        let own = ["--model", model, "--tokens", &tokens, "--adapter", adapter];
        generate(&[&common[..], &own, &["--json"]].concat())
    };
    assert_case(&run(folder).json(), &case);
    run(model).refused(2, &[]);
}

#[test]
fn the_bundled_model_generates_the_text_of_transformers() {
    let cases = oracle(&storyteller());
    let chat = cases.iter().find(|case| case.messages.as_ref().is_some_and(|m| m.len() == 1)).unwrap();
    let question = chat.messages.as_ref().unwrap()[0]["content"].as_str().unwrap().to_owned();
    let raw = cases.iter().find(|case| case.text.is_some()).unwrap();
    for backend in BACKENDS {
        let common = ["--backend", backend, "--precision", "exact"];
        let output = json(&[&common[..], &["--prompt", &question]].concat());
        assert_case(&output, chat);
        assert_eq!(output["text"], chat.completion.as_deref().unwrap());
        assert_eq!(output["finish_reason"], "stop");
        assert_eq!(output["backend"], *backend);
        assert_eq!(output["model_type"], "llama");
        assert_eq!(output["precision"], "exact");
        for part in ["load_s", "compile_s", "prefill_s", "decode_s"] {
            assert!(output["timings"][part].as_f64().unwrap() >= 0.0, "{part}");
        }
        assert!(output["timings"]["decode_s"].as_f64().unwrap() > 0.0);
        assert!(output["memory_bytes"].as_u64().unwrap() > 3_000_000);

        let n = raw.greedy.len().to_string();
        let text = raw.text.as_deref().unwrap();
        let output = json(&[&common[..], &["--prompt", text, "--raw", "-n", &n]].concat());
        assert_case(&output, raw);
        assert_eq!(output["text"], raw.completion.as_deref().unwrap());

        let shown = generate(&[&common[..], &["--prompt", &question]].concat()).printed();
        assert_eq!(shown, format!("{}\n", chat.completion.as_deref().unwrap()));
    }
}

#[test]
fn checkpoints_without_tokenizer_use_token_ids() {
    let folder = fixture("architectures/llama");
    let case = &oracle(&folder)[0];
    let model = folder.to_str().unwrap();
    for backend in BACKENDS {
        let tokens = ids(&case.prompt);
        let arguments = ["--backend", backend, "--precision", "exact", "--model", model, "--tokens", &tokens];
        let output = json(&[&arguments[..], &["--ignore-eos", "-n", "8"]].concat());
        assert_case(&output, case);
        assert_eq!(output["tokens"].as_array().unwrap().len(), 8);
        assert_eq!(output["text"], Value::Null);
        assert_eq!(output["finish_reason"], "length");
        let shown = generate(&[&arguments[..], &["--ignore-eos", "-n", "8"]].concat());
        let shown: Vec<u32> = shown.out.split_whitespace().map(|id| id.parse().unwrap()).collect();
        assert_eq!(output["tokens"], serde_json::json!(shown));
    }
}

#[test]
fn token_limit_and_full_context_finish_as_length() {
    let case = &oracle(&storyteller())[0];
    let prompt = ids(&case.prompt);
    for backend in BACKENDS {
        let common = ["--backend", backend, "--precision", "exact", "--tokens", &prompt];
        // The last token needs no place.
        let context = (case.prompt.len() + 4).to_string();
        for (more, tokens) in [(["-n", "3"], 3), (["--context", &context], 5), (["-n", "0"], 0)] {
            let output = json(&[&common[..], &more].concat());
            assert_eq!(output["tokens"], serde_json::json!(case.greedy[..tokens]));
            assert_eq!(output["finish_reason"], "length");
        }
    }
}

#[test]
fn stop_tokens_can_be_ignored_and_are_not_printed() {
    let case = &oracle(&storyteller())[3];
    let (prompt, n) = (ids(&case.prompt), (case.greedy.len() + 2).to_string());
    for backend in BACKENDS {
        let common = ["--backend", backend, "--precision", "exact", "--tokens", &prompt];
        let output = json(&[&common[..], &["--ignore-eos", "-n", &n]].concat());
        assert_eq!(output["tokens"].as_array().unwrap().len(), case.greedy.len() + 2);
        assert_eq!(output["tokens"][case.greedy.len() - 1], 1);
        assert!(!output["text"].as_str().unwrap().contains("<|end|>"));
    }
}

#[test]
fn equal_seeds_give_equal_texts_and_other_seeds_differ() {
    for backend in BACKENDS {
        let draw = |seed| {
            let arguments = ["--backend", backend, "-n", "24", "--temperature", "1.2", "--top-k", "50"];
            json(&[&arguments[..], &["--seed", seed]].concat())["tokens"].clone()
        };
        let first = draw("1");
        assert_eq!(first, draw("1"));
        assert_ne!(first, draw("2"));
    }
}

/// A run that draws with every step there is.
const EVERY_STEP: &[&str] = &[
    "--temperature=0.9",
    "--dynamic-temperature=0.3",
    "--top-n-sigma=2.5",
    "--top-k=40",
    "--top-p=0.98",
    "--min-p=0.01",
    "--typical-p=0.99",
    "--xtc-probability=0.3",
    "--mirostat-tau=4",
    "--repetition-penalty=1.1",
    "--presence-penalty=-0.1",
    "--frequency-penalty=0.1",
    "--penalty-window=32",
    "--no-repeat-ngram=6",
    "--dry-multiplier=0.5",
    "--logit-bias=300=0.5",
    "--logit-bias=301=-inf",
    "--forbidden-tokens=302,303",
];

#[test]
fn every_sampling_step_has_a_flag_and_a_seed_gives_the_same_text_on_every_engine() {
    let mut texts = Vec::new();
    for backend in BACKENDS {
        let common = ["--backend", backend, "--precision", "exact", "-n", "24", "--seed", "3"];
        let draw = || json(&[&common[..], EVERY_STEP, &["--top-logprobs", "2"]].concat());
        let first = draw();
        assert_eq!(
            first["sampling"],
            "forbidden_tokens, logit_bias, penalty_window, repetition_penalty, presence_penalty, \
             frequency_penalty, dry, no_repeat_ngram, top_n_sigma, temperature, dynamic_temperature, top_k, top_p, \
             min_p, typical_p, xtc, mirostat"
        );
        assert_eq!((&first["seed"], &first["tokens"]), (&3.into(), &draw()["tokens"]));
        let top = first["top_logprobs"].as_array().unwrap();
        assert_eq!((top.len(), top[0].as_array().unwrap().len()), (24, 2));
        assert!(top[0][0]["logprob"].as_f64().unwrap() >= top[0][1]["logprob"].as_f64().unwrap());
        texts.push(first["tokens"].clone());
    }
    assert!(texts.iter().all(|text| *text == texts[0]), "{texts:?}");
}

#[test]
fn a_random_seed_is_printed_and_reproduces_its_text() {
    for backend in BACKENDS {
        let common = ["--backend", backend, "-n", "12", "--temperature", "1.2"];
        let random = || json(&common);
        let (first, second) = (random(), random());
        assert_ne!(first["seed"], second["seed"]);
        let seed = first["seed"].to_string();
        assert_eq!(json(&[&common[..], &["--seed", &seed]].concat())["tokens"], first["tokens"]);
    }
}

#[test]
fn stop_strings_end_the_text_and_allowed_tokens_limit_it() {
    for backend in BACKENDS {
        let whole = json(&["--backend", backend]);
        let whole = whole["text"].as_str().unwrap();
        let stop = &whole[10..14];
        let stopped = json(&["--backend", backend, "--stop", stop, "--stop", "never"]);
        assert_eq!(stopped["finish_reason"], "stop_string");
        assert_eq!(stopped["text"], whole.split(stop).next().unwrap());
        let limited = json(&["--backend", backend, "-n", "6", "--allowed-tokens", "300,301"]);
        let tokens: Vec<u32> = serde_json::from_value(limited["tokens"].clone()).unwrap();
        assert!(tokens.len() == 6 && tokens.iter().all(|token| [300, 301].contains(token)), "{tokens:?}");
    }
}

#[test]
fn sampling_defaults_come_from_generation_config() {
    let folder = copy_of_storyteller();
    let config = r#"{"do_sample": true, "temperature": 0.7, "top_k": 20, "eos_token_id": 1}"#;
    fs::write(folder.path().join("generation_config.json"), config).unwrap();
    let model = folder.path().to_str().unwrap();
    for backend in BACKENDS {
        let common = ["--backend", backend, "--model", model, "--prompt", "Hi", "-n", "4"];
        let sampling = |more: &[&str]| json(&[&common[..], more].concat())["sampling"].clone();
        assert_eq!(sampling(&[]), "");
        assert_eq!(sampling(&["--checkpoint-sampling"]), "temperature, top_k");
        assert_eq!(sampling(&["--checkpoint-sampling", "--temperature", "0"]), "");
    }
}

#[test]
fn a_prompt_can_come_from_standard_input_and_the_engine_from_the_environment() {
    for backend in BACKENDS {
        let question = "Tell me a story about a fox named Pip.\n";
        let run = generate_with(&["--prompt", "-", "-n", "16"], question, &[("MLXCEL_BACKEND", backend)]);
        let text = run.printed();
        assert!(text.contains("Pip"), "{text}");
    }
}

#[test]
fn a_prompt_can_come_from_a_file_and_options_have_the_names_of_llama_cpp() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("prompt");
    let question = "Tell me a story about a fox named Pip.\n";
    fs::write(&file, question).unwrap();
    let common = ["--backend", BACKENDS[0], "--n-predict", "16", "-c", "64", "-t", "1"];
    let text = |more: &[&str], input| generate_with(&[&common[..], more].concat(), input, &[]).printed();
    let expected = text(&["-p", question.trim_end()], "");
    assert_eq!(text(&["--prompt-file", file.to_str().unwrap()], ""), expected);
    assert_eq!(text(&["--prompt-file", "-"], question), expected);
    let model = storyteller();
    let common = ["-m", model.to_str().unwrap(), "--temp", "0.5", "--repeat-penalty", "1.1"];
    let sampled = json(&[&common[..], &["-p", "Hi", "-n", "2"]].concat());
    assert_eq!(sampled["sampling"], "repetition_penalty, temperature");
}

#[test]
fn filters_of_a_greedy_choice_are_noted() {
    let common = ["--backend", BACKENDS[0], "-n", "2", "--top-p", "0.9", "--min-p", "0.1"];
    let run = generate(&common);
    let notes = "--top-p, --min-p";
    assert!(run.status == 0 && run.err.contains("--temperature"), "{}", run.err);
    assert!(notes.split(", ").all(|option| run.err.contains(option)), "{}", run.err);
    generate(&[&common[..], &["--temperature", "0.5"]].concat()).printed();
}

#[test]
fn a_closed_output_pipe_is_not_an_error() {
    for backend in BACKENDS {
        let mut child = start(&mut mlxcel(&["generate", "--backend", backend, "-n", "32"]));
        drop(child.stdout.take());
        Run::ended(child.wait_with_output().unwrap()).printed();
    }
}

#[cfg(feature = "iree")]
#[test]
fn a_missing_compiler_is_exit_status_1_and_a_warm_start_compiles_nothing() {
    let cache = tempfile::tempdir().unwrap();
    let cache = ("MLXCEL_CACHE_DIR", cache.path().to_str().unwrap());
    let no_compiler = ("MLXCEL_IREE_COMPILER", "/there/is/no/iree-compile");
    let arguments = ["--backend", "iree", "-n", "4", "--json"];
    let refused = generate_with(&arguments, "", &[cache, no_compiler]);
    refused.refused(1, &["/there/is/no/iree-compile", "MLXCEL_IREE_COMPILER"]);
    let compile_seconds =
        || generate_with(&arguments, "", &[cache]).json()["timings"]["compile_s"].as_f64().unwrap();
    assert!(compile_seconds() > 0.0);
    assert_eq!(compile_seconds(), 0.0);
}

#[test]
fn help_and_version_are_no_errors() {
    let help = generate(&["--help"]).printed();
    for flag in [
        "--model", "--prompt", "--raw", "--tokens", "-n", "--backend", "--precision", "--context",
        "--threads", "--ignore-eos", "--json",
    ] {
        assert!(help.contains(flag), "{flag}");
    }
    assert_eq!(generate(&["--version"]).status, 0);
}

#[test]
#[cfg(feature = "iree")]
fn a_profile_lists_every_pass() {
    let arguments = ["--backend", "iree", "--precision", "exact", "-n", "8", "--ignore-eos", "--profile"];
    let run = generate(&arguments);
    assert_eq!(run.status, 0, "{}", run.err);
    assert!(
        run.err.lines().any(|line| line.starts_with("decode 1@") && line.contains(": 7 passes of ")),
        "{}",
        run.err
    );
    assert!(!run.out.contains("passes of"));
    let output = json(&arguments);
    let programs = output["profile"]["programs"].as_array().unwrap();
    let decode = programs.iter().find(|program| program["phase"] == "decode").unwrap();
    assert_eq!((decode["passes"].as_u64(), decode["tokens"].as_u64()), (Some(7), Some(1)));
    assert!(decode["time"].as_f64() < decode["wall"].as_f64());
    assert!(decode["dispatches"][0]["time"].as_f64() > Some(0.0));
    assert!(programs.iter().any(|program| program["phase"] == "prefill"));
    assert!(json(&["--backend", "iree", "--precision", "exact", "-n", "1"]).get("profile").is_none());
}

#[test]
#[cfg(feature = "portable")]
fn an_engine_that_is_not_profiled_says_so() {
    let run = generate(&["--backend", "portable", "--profile"]);
    assert_eq!(run.status, 2);
    let words = "--profile is an option of the engines iree and pjrt, but the engine is portable";
    assert_eq!(run.err, format!("error: {words}\n"));
}

#[test]
fn output_follows_the_requested_format() {
    let folder = tempfile::tempdir().unwrap();
    let schema = folder.path().join("schema.json");
    fs::write(&schema, r#"{"type":"array","items":{"enum":["fox","owl"]},"minItems":1,"maxItems":2}"#)
        .unwrap();
    let grammar = folder.path().join("grammar.lark");
    fs::write(&grammar, "start: \"a\" \"b\"+ \"c\"").unwrap();
    let form = |arguments: &[&str]| {
        let drawn = ["--temperature", "1.5", "--seed", "3", "-n", "100"];
        json(&[&["--backend", BACKENDS[0]], &drawn[..], arguments].concat())
    };
    let animals = form(&["--json-schema", schema.to_str().unwrap()]);
    let animals: Vec<String> = serde_json::from_str(animals["text"].as_str().unwrap()).unwrap();
    assert!((1..=2).contains(&animals.len()));
    let number = form(&["--regex", "[0-9]{3}"]);
    assert!(number["text"].as_str().unwrap().parse::<u16>().is_ok() && number["finish_reason"] == "stop");
    let letters = form(&["--grammar", grammar.to_str().unwrap()]);
    assert!(letters["text"].as_str().unwrap().starts_with("ab"));
    let choice = form(&["--choice", "yes", "--choice", "no"]);
    assert!(["yes", "no"].contains(&choice["text"].as_str().unwrap()));
    for wrong in
        [&["--regex", "("][..], &["--json-schema", "missing.json"], &["--regex", "a", "--choice", "b"]]
    {
        assert_eq!(generate(wrong).status, 2, "{wrong:?}");
    }
}
