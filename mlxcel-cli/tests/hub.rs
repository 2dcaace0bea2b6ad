//! Programs on models by name, from a Hugging Face cache on this machine.
#![cfg(unix)]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures").join(name).canonicalize().unwrap()
}

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

fn run(subcommand: &str, home: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mlxcel"));
    command.arg(subcommand);
    for variable in ["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_TOKEN"] {
        command.env_remove(variable);
    }
    command
        .env("HF_HOME", home)
        .env("HF_HUB_OFFLINE", "1")
        .current_dir(home)
        .args(arguments)
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
#[cfg(feature = "portable")]
fn models_open_by_hub_name_and_folders_take_precedence() {
    let home = home();
    let generate = |model: &str| {
        let arguments = ["--backend", "portable", "--tokens", "1,2,3", "-n", "4", "--json", "--model", model];
        run("generate", home.path(), &arguments)
    };
    let tokens = |output: &Output| {
        assert!(output.status.success(), "{}", text(&output.stderr));
        serde_json::from_slice::<Value>(&output.stdout).unwrap()["tokens"].clone()
    };
    let expected = tokens(&generate(fixture("architectures/llama").to_str().unwrap()));
    assert_eq!(tokens(&generate("org/llama")), expected);
    assert_eq!(tokens(&generate(&format!("org/llama@{COMMIT}"))), expected);

    let absent = generate("org/none");
    let error = text(&absent.stderr);
    assert_eq!((absent.status.code(), error.lines().count()), (Some(2), 1), "{error}");
    assert!(error.contains("org/none") && error.contains("Hugging Face cache"), "{error}");

    fs::create_dir_all(home.path().join("org/llama")).unwrap();
    let shadowed = text(&generate("org/llama").stderr);
    assert!(shadowed.contains("config.json"), "{shadowed}");
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
    let text_of = |output: &Output| {
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    assert_eq!(text_of(&generate("org/lora")), text_of(&generate(folder.to_str().unwrap())));
    let absent = text(&generate("org/none").stderr);
    assert!(absent.contains("org/none") && absent.lines().count() == 1, "{absent}");
    let merged =
        run("merge", home.path(), &["--model", "org/llama", "--adapter", "org/lora", "--out", "merged"]);
    assert!(merged.status.success(), "{}", text(&merged.stderr));
}

#[test]
fn models_lists_the_cache_with_families_and_sizes() {
    let home = home();
    let output = run("models", home.path(), &["--json"]);
    assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(0), ""));
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    let [llama, partial, unknown] = &told["models"].as_array().unwrap()[..] else { panic!("{told}") };
    assert_eq!((&llama["name"], &llama["model_type"]), (&json!("org/llama"), &json!("llama")));
    assert_eq!((&llama["commit"], &llama["missing"]), (&json!(COMMIT), &json!([])));
    assert!(llama["parameters"].as_u64() > Some(0) && llama["bytes"].as_u64() > Some(0), "{llama}");
    assert_eq!((&partial["name"], &partial["missing"]), (&json!("org/partial"), &json!(["weights"])));
    assert!(unknown["error"].as_str().unwrap().contains("abacus"), "{unknown}");

    let output = run("models", home.path(), &[]);
    let told = text(&output.stdout);
    for words in ["org/llama\n", "llama, ", "incomplete: without weights", "not supported: ", "3 models in "]
    {
        assert!(told.contains(words), "{words:?} in\n{told}");
    }
    let none = tempfile::tempdir().unwrap();
    let told = text(&run("models", none.path(), &[]).stdout);
    assert!(told.starts_with("0 models in "), "{told}");
}

#[test]
fn adapters_are_listed_with_their_rank() {
    let home = tempfile::tempdir().unwrap();
    put(home.path(), "org/lora", &fixture("adapters/llama-attention"), |name| name != "oracle.json");
    let told: Value = serde_json::from_slice(&run("models", home.path(), &["--json"]).stdout).unwrap();
    let [lora] = &told["models"].as_array().unwrap()[..] else { panic!("{told}") };
    assert!(lora["adapter_rank"].as_u64() > Some(0) && lora["error"].is_null(), "{lora}");
    let told = text(&run("models", home.path(), &[]).stdout);
    for words in ["org/lora\n", "adapter of rank ", "0 models and 1 adapters in "] {
        assert!(told.contains(words), "{words:?} in\n{told}");
    }
}

#[test]
#[cfg(feature = "portable")]
fn load_reports_what_each_engine_does_with_the_model() {
    let home = home();
    let arguments = ["--load", "--backend", "portable", "--json", "llama"];
    let output = run("models", home.path(), &arguments);
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    let [llama] = &told["models"].as_array().unwrap()[..] else { panic!("{told}") };
    assert_eq!(llama["engines"][0]["engine"], json!("portable"));
    assert_eq!(llama["engines"][0]["runs"], json!(true));
}
