//! Every family: its description, and that no setting makes it fail otherwise than by an error.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::common::draft_heads::checkpoints;
use crate::common::{Draft, assert_field, repository};
use crate::draft_heads;
use mlxcel_core::{ErrorKind, LoadOptions};
use mlxcel_models::{Checkpoint, supported_model_types};
use safetensors::Dtype;
use serde_json::{Value, json};

/// The fixtures, by name.
fn architectures() -> Vec<(String, PathBuf)> {
    let mut folders = Vec::new();
    for parent in ["fixtures/architectures", "fixtures/encoders"] {
        let entries = fs::read_dir(repository(parent)).unwrap();
        folders.extend(entries.map(|entry| entry.unwrap().path()));
    }
    folders.sort();
    let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
    folders.into_iter().map(|path| (name(&path), path)).collect()
}

fn config(folder: &Path) -> Value {
    serde_json::from_slice(&fs::read(folder.join("config.json")).unwrap()).unwrap()
}

/// Set `UPDATE_GOLDEN` to rewrite the file, and review the changes.
#[test]
fn descriptions_print_as_they_were_reviewed() {
    let golden = repository("mlxcel-models/tests/golden/architectures.txt");
    let mut printed = String::new();
    let wholes = architectures().into_iter().map(|(name, folder)| (name, folder, LoadOptions::default()));
    let heads = checkpoints(draft_heads::SAFETENSORS).into_iter().map(|folder| {
        let name = folder.file_name().unwrap().to_string_lossy();
        (format!("draft head of {name}"), folder.clone(), draft_heads::head())
    });
    for (name, folder, options) in wholes.chain(heads) {
        let decoder = Checkpoint::open(folder).unwrap().decoder_for(&options);
        let decoder = decoder.unwrap_or_else(|error| panic!("{name}: {error}"));
        printed.push_str(&format!("# {name}\n{decoder}\n\n"));
    }
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&golden, &printed).unwrap();
    }
    assert_eq!(printed, fs::read_to_string(&golden).unwrap());
}

#[test]
fn every_family_has_a_checkpoint() {
    let folders = architectures();
    let types = folders.iter().map(|(_, folder)| config(folder)["model_type"].as_str().unwrap().to_owned());
    let supported = supported_model_types().map(str::to_owned);
    assert_eq!(supported.collect::<BTreeSet<_>>(), types.collect::<BTreeSet<_>>());
}

/// Each weight that a description names can be read, in the shape that it says.
#[test]
fn weights_are_what_descriptions_say() {
    for (name, folder) in architectures() {
        let checkpoint = Checkpoint::open(folder).unwrap();
        for weight in checkpoint.decoder().unwrap().weights() {
            let view = checkpoint.weight(weight).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(
                (&view.shape, view.bytes.len()),
                (&weight.stored_shape(), weight.byte_len()),
                "{name}: {weight}"
            );
        }
    }
}

/// Values that no setting expects, or few.
fn odd_values() -> Vec<Value> {
    vec![
        Value::Null,
        json!(0),
        json!(3),
        json!(u64::MAX),
        json!(-1e30),
        json!("gelu"),
        json!([0, "full_attention", null]),
        json!({"rope_type": "yarn", "factor": 1e-30, "partial_rotary_factor": 1e30}),
        json!({"type": "longrope", "short_factor": [1], "long_factor": [1e30]}),
    ]
}

#[test]
fn no_configuration_panics() {
    // What the arithmetic of inference does not read.
    const IDLE: [&str; 9] = [
        "model_type", "architectures", "dropout", "pdrop", "token_id", "initializer", "version", "summary",
        "use_cache",
    ];
    for (_, folder) in
        architectures().into_iter().filter(|(_, folder)| folder.join("model.safetensors").exists())
    {
        let weights: &'static [u8] = fs::read(folder.join("model.safetensors")).unwrap().leak();
        let original = config(&folder);
        let keys =
            original.as_object().unwrap().keys().filter(|key| !IDLE.iter().any(|idle| key.contains(idle)));
        for key in keys {
            for value in odd_values() {
                let mut config = original.clone();
                config[key] = value.clone();
                let config: &'static [u8] = config.to_string().into_bytes().leak();
                let files = vec![("config.json", config), ("model.safetensors", weights)].leak();
                if let Ok(decoder) = Checkpoint::from_files(files).and_then(|checkpoint| checkpoint.decoder())
                {
                    assert!(decoder.layers.len() < 10, "{key}: {value}");
                }
            }
        }
    }
}

/// The text model of a fixture as the text part of another model, whose modules begin with `prefix`.
fn wrapped(wrapper: &str, text: &str, prefix: &str, head: &str) -> Draft {
    let folder = repository(&format!("fixtures/architectures/{text}"));
    let text_config = config(&folder);
    let checkpoint = Checkpoint::open(folder).unwrap();
    let mut draft = Draft::llama();
    draft.config = json!({"model_type": wrapper, "text_config": text_config, "vision_config": {}});
    draft.tensors.clear();
    for (name, view) in checkpoint.tensors() {
        let name = match name.strip_prefix("model.") {
            Some(rest) => format!("{prefix}{rest}"),
            None => format!("{head}{name}"),
        };
        draft.tensors.insert(name, (Dtype::BF16, view.shape.clone(), view.bytes.to_vec()));
    }
    draft
}

#[test]
fn multimodal_checkpoints_open_as_their_text_model() {
    let new = ("model.language_model.", "");
    let old = ("language_model.model.", "language_model.");
    for (wrapper, text, (prefix, head)) in [
        ("gemma3", "gemma3_text", new),
        ("gemma3", "gemma3_text", old),
        ("mistral3", "mistral", old),
        ("mistral3", "ministral3", new),
        ("mistral3", "mistral4", new),
        ("qwen3_5", "qwen3_5_text", new),
        ("qwen3_5_moe", "qwen3_5_moe_text", new),
        ("llava", "llama", old),
        ("idefics3", "llama", ("model.text_model.", "")),
    ] {
        let decoder = wrapped(wrapper, text, prefix, head).decoder().unwrap();
        let alone = Checkpoint::open(repository(&format!("fixtures/architectures/{text}")))
            .unwrap()
            .decoder()
            .unwrap();
        assert_eq!(
            (&decoder.model_type, &decoder.layers),
            (&alone.model_type, &alone.layers),
            "{wrapper} {prefix}"
        );
        assert_eq!(decoder.parameters(), alone.parameters());
        let note = format!("images are not supported: this is the text model of a {wrapper} checkpoint");
        assert!(decoder.to_string().contains(&note), "{decoder}");
        assert_eq!((decoder.notes, alone.notes), (vec![note], Vec::new()));
    }
}

#[test]
fn a_text_model_uses_its_own_settings_and_the_available_head() {
    let draft = wrapped("mistral3", "mistral", "language_model.model.", "language_model.");
    assert!(!draft.decoder().unwrap().head.unwrap().tied);
    let tied = draft.clone().without("language_model.lm_head.weight").decoder().unwrap();
    assert!(tied.head.unwrap().tied, "the wrapper ties what its text part says is not");
    // What wraps a head neither scales nor caps.
    assert_eq!(
        wrapped("aya_vision", "cohere2", "language_model.model.", "").decoder().unwrap().head.unwrap().scale,
        1.0
    );

    let stop = |draft: Draft| draft.write().open().unwrap().stop_tokens().to_vec();
    assert_eq!(stop(draft.clone()), [1], "of the text part");
    assert_eq!(stop(draft.clone().set("eos_token_id", json!(7))), [7]);
    let mut silent = draft.clone();
    silent.config["text_config"].as_object_mut().unwrap().remove("eos_token_id");
    assert_eq!(stop(silent), [2], "the default of the text part's class");

    let mut unnamed = draft.clone();
    unnamed.config["text_config"].as_object_mut().unwrap().remove("model_type");
    assert_eq!(unnamed.decoder().unwrap().model_type, "mistral");
    let mut other = draft;
    other.config["text_config"]["model_type"] = json!("t5");
    let error = other.decoder().unwrap_err();
    assert_field(&error, ErrorKind::Unsupported, "text_config.model_type", "");
}
