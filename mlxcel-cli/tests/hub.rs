//! Programs on models by name, from a Hugging Face cache on this machine.
#![cfg(unix)]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use serde_json::json;

use crate::program::{Run, fixture, mlxcel};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// Puts the files of a fixture into a cache as the hub's clients do: links into `blobs`.
fn put(home: &Path, repo: &str, fixture: &Path, wanted: impl Fn(&str) -> bool) {
    let repo = home.join("hub").join(format!("models--{}", repo.replace('/', "--")));
    let snapshot = repo.join("snapshots").join(COMMIT);
    for folder in [&snapshot, &repo.join("blobs"), &repo.join("refs")] {
        fs::create_dir_all(folder).unwrap();
    }
    fs::write(repo.join("refs/main"), COMMIT).unwrap();
    for (number, entry) in fs::read_dir(fixture).unwrap().enumerate() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        if entry.path().is_file() && wanted(&name) {
            fs::copy(entry.path(), repo.join("blobs").join(number.to_string())).unwrap();
            symlink(format!("../../blobs/{number}"), snapshot.join(name)).unwrap();
        }
    }
}

/// A cache with a model, one without its weights, and one of an unknown family.
fn home() -> tempfile::TempDir {
    let home = tempfile::tempdir().unwrap();
    let llama = fixture("architectures/llama");
    put(home.path(), "org/llama", &llama, |_| true);
    put(home.path(), "org/partial", &llama, |name| name == "config.json");
    put(home.path(), "org/unknown", &llama, |name| name != "config.json");
    let snapshot = home.path().join("hub/models--org--unknown/snapshots").join(COMMIT);
    fs::write(snapshot.join("config.json"), r#"{"model_type": "abacus"}"#).unwrap();
    home
}

fn run(subcommand: &str, home: &Path, arguments: &[&str]) -> Run {
    let mut command = mlxcel(&[subcommand]);
    for variable in ["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_TOKEN"] {
        command.env_remove(variable);
    }
    command.env("HF_HOME", home).env("HF_HUB_OFFLINE", "1").current_dir(home);
    Run::of(command.args(arguments))
}

#[test]
#[cfg(feature = "portable")]
fn models_open_by_hub_name_and_folders_take_precedence() {
    let home = home();
    let generate = |model: &str| {
        let arguments = ["--backend", "portable", "--tokens", "1,2,3", "-n", "4", "--json", "--model", model];
        run("generate", home.path(), &arguments)
    };
    let tokens = |model: &str| generate(model).json()["tokens"].clone();
    let expected = tokens(fixture("architectures/llama").to_str().unwrap());
    assert_eq!(tokens("org/llama"), expected);
    assert_eq!(tokens(&format!("org/llama@{COMMIT}")), expected);
    generate("org/none").refused(2, &["org/none", "Hugging Face cache"]);

    fs::create_dir_all(home.path().join("org/llama")).unwrap();
    generate("org/llama").refused(2, &["config.json"]);
}

#[test]
#[cfg(feature = "portable")]
fn adapters_are_found_by_hub_name() {
    let home = home();
    let folder = fixture("adapters/llama-attention");
    put(home.path(), "org/lora", &folder, |name| name != "oracle.json");
    let generate = |adapter: &str| {
        let arguments =
            ["--backend", "portable", "--tokens", "1,2,3", "-n", "6", "--model", "org/llama", "--adapter"];
        run("generate", home.path(), &[&arguments[..], &[adapter]].concat())
    };
    assert_eq!(generate("org/lora").printed(), generate(folder.to_str().unwrap()).printed());
    generate("org/none").refused(2, &["org/none"]);
    run("merge", home.path(), &["--model", "org/llama", "--adapter", "org/lora", "--out", "merged"])
        .printed();
}

#[test]
fn models_lists_the_cache_with_families_and_sizes() {
    let home = home();
    let told = run("models", home.path(), &["--json"]).json();
    let [llama, partial, unknown] = &told["models"].as_array().unwrap()[..] else { panic!("{told}") };
    assert_eq!((&llama["name"], &llama["model_type"]), (&json!("org/llama"), &json!("llama")));
    assert_eq!((&llama["commit"], &llama["missing"]), (&json!(COMMIT), &json!([])));
    assert!(llama["parameters"].as_u64() > Some(0) && llama["bytes"].as_u64() > Some(0), "{llama}");
    assert_eq!((&partial["name"], &partial["missing"]), (&json!("org/partial"), &json!(["weights"])));
    assert!(unknown["error"].as_str().unwrap().contains("abacus"), "{unknown}");

    let told = run("models", home.path(), &[]).out;
    for words in ["org/llama\n", "llama, ", "incomplete: without weights", "not supported: ", "3 models in "]
    {
        assert!(told.contains(words), "{words:?} in\n{told}");
    }
    let none = tempfile::tempdir().unwrap();
    let told = run("models", none.path(), &[]).out;
    assert!(told.starts_with("0 models in "), "{told}");
}

#[test]
fn adapters_are_listed_with_their_rank() {
    let home = tempfile::tempdir().unwrap();
    put(home.path(), "org/lora", &fixture("adapters/llama-attention"), |name| name != "oracle.json");
    let told = run("models", home.path(), &["--json"]).json();
    let [lora] = &told["models"].as_array().unwrap()[..] else { panic!("{told}") };
    assert!(lora["adapter_rank"].as_u64() > Some(0) && lora["error"].is_null(), "{lora}");
    let told = run("models", home.path(), &[]).out;
    for words in ["org/lora\n", "adapter of rank ", "0 models and 1 adapters in "] {
        assert!(told.contains(words), "{words:?} in\n{told}");
    }
}

#[test]
#[cfg(feature = "portable")]
fn load_reports_what_each_engine_does_with_the_model() {
    let home = home();
    let arguments = ["--load", "--backend", "portable", "--json", "llama"];
    let told = run("models", home.path(), &arguments).json();
    let [llama] = &told["models"].as_array().unwrap()[..] else { panic!("{told}") };
    assert_eq!(llama["engines"][0]["engine"], json!("portable"));
    assert_eq!(llama["engines"][0]["runs"], json!(true));
}
