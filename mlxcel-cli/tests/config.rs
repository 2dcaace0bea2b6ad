//! The configuration file: which options it can have, and what comes before it.
#![cfg(feature = "portable")]

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::program::{Run, mlxcel};

/// `mlxcel generate` of three tokens, with `HOME` in `folder`.
fn generate(folder: &Path) -> Command {
    let mut command = mlxcel(&["generate", "--prompt", "Once", "--raw", "-n", "3", "--json"]);
    command.env_remove("MLXCEL_CONFIG").env("HOME", folder);
    command.env("XDG_CONFIG_HOME", folder).env("APPDATA", folder);
    command
}

#[track_caller]
fn settings(command: &mut Command) -> Value {
    // Some settings are noted.
    let run = Run::of(command);
    assert_eq!(run.status, 0, "{run:?}");
    serde_json::from_str(&run.out).unwrap()
}

#[track_caller]
fn refusal(command: &mut Command) -> String {
    Run::of(command).refused(2, &[])
}

#[test]
fn arguments_come_before_the_environment_and_that_before_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let seed = || settings(&mut generate(folder.path()))["seed"].clone();
    assert_ne!(seed(), seed());
    fs::create_dir(folder.path().join("mlxcel")).unwrap();
    let file = folder.path().join("mlxcel").join("mlxcel.toml");
    fs::write(
        &file,
        "# mine\nbackend = \"portable\"\nseed = 7\ntemperature = 0.5\ntop-p = 0.9\nport = 9000\n",
    )
    .unwrap();
    let found = settings(&mut generate(folder.path()));
    assert_eq!((&found["backend"], &found["seed"]), (&"portable".into(), &7.into()));
    assert_eq!(found["sampling"], "temperature, top_p");
    let found = settings(generate(folder.path()).args(["--seed", "8", "--temperature", "0"]));
    assert_eq!((&found["seed"], &found["sampling"]), (&8.into(), &"".into()));

    fs::write(&file, "backend = \"portable\"").unwrap();
    assert!(refusal(generate(folder.path()).env("MLXCEL_BACKEND", "steam")).contains("steam"));
    settings(generate(folder.path()).env("MLXCEL_BACKEND", ""));
    settings(generate(folder.path()).env("MLXCEL_BACKEND", "steam").args(["--backend", "portable"]));

    // A file that is named takes the place of the user's own.
    let other = folder.path().join("other.toml");
    fs::write(&other, "seed = 9").unwrap();
    assert_eq!(settings(generate(folder.path()).env("MLXCEL_CONFIG", &other))["seed"], 9);
    assert_eq!(settings(generate(folder.path()).arg("--config").arg(&other))["seed"], 9);
    fs::write(&file, "seed = 10").unwrap();
    let both = settings(generate(folder.path()).env("MLXCEL_CONFIG", &other).arg("--config").arg(&file));
    assert_eq!(both["seed"], 10);
    assert_ne!(settings(generate(folder.path()).env("MLXCEL_CONFIG", ""))["seed"], 10);
}

#[test]
fn what_the_file_cannot_have_is_refused_with_its_line() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mlxcel.toml");
    let said = |text: &str| {
        fs::write(&file, text).unwrap();
        refusal(generate(folder.path()).arg("--config").arg(&file))
    };
    for (text, line, word) in [
        ("seed = 1\n\ntemprature = 1\n", 3, "temprature"),
        ("trust-bundle = true\n", 1, "trust-bundle"),
        ("api-key = \"x\"\n", 1, "api-key"),
        ("prompt = \"x\"\n", 1, "prompt"),
        ("config = \"x\"\n", 1, "config"),
        ("[serve]\nport = 1\n", 1, "serve"),
        ("seed = 1\nprecision = \"wide\"\n", 2, "precision"),
        ("\ntemperature = \"warm\"\n", 2, "temperature"),
        // Of another subcommand, which the file would break when that is used.
        ("port = 70000\n", 1, "port"),
        ("context = true\n", 1, "context"),
        ("seed = 1\nseed = 2\n", 2, "duplicate key"),
        ("seed = 1\nseed\n", 2, ""),
    ] {
        let said = said(text);
        assert!(said.contains(&format!("mlxcel.toml:{line}: ")) && said.contains(word), "{text:?}: {said}");
    }
    let missing = folder.path().join("none.toml");
    assert!(refusal(generate(folder.path()).arg("--config").arg(missing)).contains("none.toml"));
    // Leave is given for the model that is named beside it, and not for one that the file names.
    fs::write(&file, "model = \"models/mine\"\n").unwrap();
    let said = refusal(generate(folder.path()).arg("--config").arg(&file).arg("--trust-bundle"));
    assert!(said.contains("--model"), "{said}");
}

#[test]
fn failures_of_defaults_name_their_line() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mlxcel.toml");
    let said = |text: &str, arguments: &[&str]| {
        fs::write(&file, text).unwrap();
        refusal(generate(folder.path()).arg("--config").arg(&file).args(arguments))
    };
    for (text, line) in [("\nmodel = \"nope\"\n", 2), ("context = 5000\n", 1), ("backend = \"steam\"\n", 1)] {
        let said = said(text, &[]);
        assert!(said.contains(&format!("mlxcel.toml:{line}")), "{said}");
    }
    // An argument takes its place.
    assert!(!said("model = \"nope\"\n", &["--model", "nope"]).contains("mlxcel.toml"));
}

#[test]
fn the_help_says_what_the_file_can_have() {
    let help = Run::of(&mut mlxcel(&["serve", "--help"])).printed();
    for word in ["--config", "MLXCEL_CONFIG", "mlxcel.toml", "kv-cache", "temperature"] {
        assert!(help.contains(word), "{word}: {help}");
    }
}
