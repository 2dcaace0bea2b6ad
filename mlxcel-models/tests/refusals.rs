//! Bad checkpoints: each is refused with an error that names the file and the way out.

use std::fs;
use std::path::Path;

use crate::common::{Draft, Written, chain};
use mlxcel_core::{Error, ErrorKind};
use mlxcel_models::Checkpoint;
use proptest::prelude::*;
use safetensors::Dtype;
use serde_json::{Value, json};

fn assert_refused(error: &Error, kind: ErrorKind, file: &str, words: &str) {
    let text = chain(error);
    assert_eq!(error.kind(), kind, "{text}");
    assert!(error.context("path").is_some_and(|path| Path::new(path).ends_with(file)), "{text}");
    assert!(text.contains(words), "{text}");
    assert!(!text.contains('\n'), "{text}");
}

#[test]
fn a_missing_folder_is_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let error = Checkpoint::open(folder.path().join("absent")).unwrap_err();
    assert_refused(&error, ErrorKind::NotFound, "absent", "the folder does not exist");
}

#[test]
fn a_file_instead_of_a_folder_is_rejected() {
    let written = Draft::llama().write();
    let error = Checkpoint::open(written.path("model.safetensors")).unwrap_err();
    assert_refused(&error, ErrorKind::InvalidInput, "model.safetensors", "no GGUF file");
}

#[test]
fn a_folder_without_config_is_rejected() {
    let written = Draft::llama().write();
    written.remove("config.json");
    assert_refused(&written.refusal(), ErrorKind::NotFound, "config.json", "config.json is missing");
    fs::create_dir(written.path("config.json")).unwrap();
    assert_refused(&written.refusal(), ErrorKind::Corrupt, "config.json", "regular file");
}

#[cfg(unix)]
#[test]
fn pipes_and_devices_instead_of_files_are_rejected() {
    use rustix::fs::{CWD, FileType, mknodat};

    for name in ["config.json", "generation_config.json", "model.safetensors"] {
        let written = Draft::llama().write();
        let _ = fs::remove_file(written.path(name));
        mknodat(CWD, written.path(name), FileType::Fifo, 0o600.into(), 0).unwrap();
        assert_refused(&written.refusal(), ErrorKind::Corrupt, name, "regular file");
        written.remove(name);
        std::os::unix::fs::symlink("/dev/zero", written.path(name)).unwrap();
        let error = written.refusal();
        assert!(matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::InvalidInput), "{error}");
    }
}

#[cfg(unix)]
#[test]
fn weight_links_may_lead_anywhere_and_settings_links_may_not() {
    let (written, elsewhere) = (Draft::llama().write(), tempfile::tempdir().unwrap());
    let to_link = |name: &str| {
        fs::rename(written.path(name), elsewhere.path().join(name)).unwrap();
        std::os::unix::fs::symlink(elsewhere.path().join(name), written.path(name)).unwrap();
    };
    to_link("model.safetensors");
    written.open().unwrap();
    to_link("config.json");
    assert_refused(&written.refusal(), ErrorKind::InvalidInput, "config.json", "link out of the folder");
}

#[test]
fn oversized_settings_are_rejected() {
    let written = Draft::llama().write();
    fs::File::create(written.path("config.json")).unwrap().set_len(200 << 20).unwrap();
    assert_refused(&written.refusal(), ErrorKind::Corrupt, "config.json", "implausible");
    written.put("config.json", format!("[{}0]", "{\"\":0},".repeat(1 << 20)).as_bytes());
    assert_refused(&written.refusal(), ErrorKind::Corrupt, "config.json", "more JSON values");
}

#[test]
fn settings_must_be_an_object() {
    let written = Draft::llama().write();
    written.put("config.json", b"{\"model_type\": ");
    assert_refused(&written.refusal(), ErrorKind::Corrupt, "config.json", "not JSON");
    written.put("config.json", b"[1, 2]");
    assert_refused(&written.refusal(), ErrorKind::Corrupt, "config.json", "should contain a JSON object");
    written.put("config.json", b"");
    assert_refused(&written.refusal(), ErrorKind::Corrupt, "config.json", "not JSON");
    written.put("config.json", "[".repeat(1_000).as_bytes());
    assert_refused(&written.refusal(), ErrorKind::Corrupt, "config.json", "not JSON");
}

#[test]
fn invalid_generation_config_is_rejected() {
    let written = Draft::llama().write();
    written.put("generation_config.json", b"<html>");
    assert_refused(&written.refusal(), ErrorKind::Corrupt, "generation_config.json", "not JSON");
}

#[test]
fn an_unknown_or_missing_model_type_is_rejected() {
    let written = Draft::llama().set("model_type", json!("t5")).write();
    assert!(written.open().is_ok(), "its tensors can still be looked at");
    let error = written.refusal();
    assert_refused(&error, ErrorKind::Unsupported, "config.json", "'t5' is not known; supported: ");
    assert_eq!(error.context("field"), Some("model_type"));
    let error = Draft::llama().unset("model_type").write().refusal();
    assert_refused(&error, ErrorKind::Corrupt, "config.json", "missing");
    let error = Draft::llama().set("model_type", json!(7)).write().refusal();
    assert_refused(&error, ErrorKind::Corrupt, "config.json", "should be a string");
}

#[test]
fn a_missing_tensor_is_rejected() {
    for name in ["model.norm.weight", "model.layers.0.mlp.up_proj.weight", "model.embed_tokens.weight"] {
        let error = Draft::llama().without(name).write().refusal();
        assert_eq!((error.kind(), error.context("tensor")), (ErrorKind::NotFound, Some(name)));
        assert!(error.context("path").is_some());
    }
    let error = Draft::llama().set("tie_word_embeddings", json!(false)).write().refusal();
    assert_eq!(error.context("tensor"), Some("lm_head.weight"));
    let error = Draft::llama().set("num_hidden_layers", json!(2)).write().refusal();
    assert_eq!(error.context("tensor"), Some("model.layers.1.input_layernorm.weight"));
}

#[test]
fn a_tensor_of_the_wrong_shape_is_rejected() {
    let name = "model.layers.0.self_attn.k_proj.weight";
    for shape in [&[8, 8][..], &[8, 4], &[32]] {
        let error = Draft::llama().with(name, Dtype::BF16, shape).write().refusal();
        assert_refused(&error, ErrorKind::Corrupt, "model.safetensors", &format!("{shape:?}"));
        assert!(error.message().contains("[4, 8]"), "{error}");
        assert_eq!(error.context("tensor"), Some(name));
    }
}

#[test]
fn a_tensor_of_the_wrong_element_type_is_rejected() {
    let error = Draft::llama().with("model.norm.weight", Dtype::I8, &[8]).write().refusal();
    assert_refused(&error, ErrorKind::Unsupported, "model.safetensors", "I8");
    assert_eq!(error.context("tensor"), Some("model.norm.weight"));
}

#[test]
fn truncated_weights_are_rejected() {
    let draft = Draft::llama();
    let file = draft.safetensors(|_| true);
    let written = draft.write();
    for length in [1, 7, 8, 100, file.len() / 2, file.len() - 1] {
        written.put("model.safetensors", &file[..length]);
        assert_refused(&written.refusal(), ErrorKind::Corrupt, "model.safetensors", "truncated");
    }
    written.put("model.safetensors", b"");
    assert_refused(&written.refusal(), ErrorKind::Corrupt, "model.safetensors", "empty");
}

#[test]
fn an_invalid_header_is_rejected() {
    let lie = |from: &str, to: &str| {
        let draft = Draft::llama();
        let file = draft.safetensors(|_| true);
        let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
        let header = String::from_utf8(file[8..8 + length].to_vec()).unwrap();
        assert!(header.contains(from), "{header}");
        let header = header.replacen(from, to, 1);
        let mut lying = (header.len() as u64).to_le_bytes().to_vec();
        lying.extend_from_slice(header.as_bytes());
        lying.extend_from_slice(&file[8 + length..]);
        let written = draft.write();
        written.put("model.safetensors", &lying);
        written.refusal()
    };
    for (from, to) in [
        ("\"data_offsets\":[0,", "\"data_offsets\":[16,"),
        ("\"shape\":[8,8]", "\"shape\":[8,9]"),
        ("\"shape\":[8,8]", "\"shape\":[18446744073709551615,8]"),
        ("\"dtype\":\"BF16\"", "\"dtype\":\"F32\""),
    ] {
        let error = lie(from, to);
        assert_refused(&error, ErrorKind::Corrupt, "model.safetensors", "read safetensors header");
        assert!(error.context("tensor").is_some(), "{error}");
    }
}

/// A sharded checkpoint after its index went through `change`.
fn reindexed(change: impl FnOnce(&mut Value)) -> Written {
    let written = Draft::llama().write_sharded();
    let path = written.path("model.safetensors.index.json");
    let mut index = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    change(&mut index);
    written.put("model.safetensors.index.json", index.to_string().as_bytes());
    written
}

#[test]
fn a_missing_shard_is_rejected() {
    let written = Draft::llama().write_sharded();
    written.remove("model-00001-of-00002.safetensors");
    assert_refused(&written.refusal(), ErrorKind::NotFound, "model-00001-of-00002.safetensors", "shard");
}

#[test]
fn a_corrupt_shard_is_rejected() {
    let written = Draft::llama().write_sharded();
    written.put("model-00002-of-00002.safetensors", &[1, 2, 3]);
    assert_refused(&written.refusal(), ErrorKind::Corrupt, "model-00002-of-00002.safetensors", "truncated");
}

#[test]
fn an_index_with_the_wrong_shard_is_rejected() {
    let written = reindexed(|index| {
        index["weight_map"]["model.norm.weight"] = json!("model-00001-of-00002.safetensors");
    });
    let error = written.refusal();
    assert_refused(&error, ErrorKind::NotFound, "model-00001-of-00002.safetensors", "lacks a tensor");
    assert_eq!(error.context("tensor"), Some("model.norm.weight"));
}

#[test]
fn an_index_outside_of_the_folder_is_rejected() {
    let outside = Draft::llama().write();
    for shard in ["../x.safetensors", "/etc/passwd", outside.path("model.safetensors").to_str().unwrap()] {
        let written = reindexed(|index| index["weight_map"]["model.norm.weight"] = json!(shard));
        let error = written.refusal();
        assert_refused(
            &error,
            ErrorKind::Corrupt,
            "model.safetensors.index.json",
            "outside of the checkpoint",
        );
    }
}

#[test]
fn an_invalid_index_is_rejected() {
    for content in ["", "[]", "{}", "{\"weight_map\": 3}", "{\"weight_map\": {\"a\": 1}}"] {
        let written = Draft::llama().write_sharded();
        written.put("model.safetensors.index.json", content.as_bytes());
        assert_refused(
            &written.refusal(),
            ErrorKind::Corrupt,
            "model.safetensors.index.json",
            "not a weight index",
        );
    }
}

#[test]
fn checkpoints_without_safetensors_are_rejected() {
    let cases = [
        (None, ErrorKind::NotFound, "neither model.safetensors nor"),
        (Some("pytorch_model.bin"), ErrorKind::Unsupported, "save_pretrained"),
        (Some("pytorch_model-00001-of-00002.bin"), ErrorKind::Unsupported, "save_pretrained"),
        (Some("consolidated.00.pth"), ErrorKind::Unsupported, "save_pretrained"),
        (Some("model-Q4_0.gguf"), ErrorKind::NotFound, "to open model-Q4_0.gguf, name that file"),
        (Some("adapter_model.safetensors"), ErrorKind::Unsupported, "adapter"),
        (Some("model-00001-of-00002.safetensors"), ErrorKind::NotFound, "shards need their index"),
    ];
    for (instead, kind, words) in cases {
        let written = Draft::llama().write();
        written.remove("model.safetensors");
        if let Some(name) = instead {
            written.put(name, b"x");
        }
        assert_refused(&written.refusal(), kind, "model.safetensors", words);
    }
}

#[test]
fn embedded_files_are_validated_alike() {
    static FILES: &[(&str, &[u8])] = &[("config.json", b"{\"model_type\": \"llama\"}")];
    let error = Checkpoint::from_files(FILES).unwrap_err();
    assert_refused(&error, ErrorKind::NotFound, "model.safetensors (embedded)", "neither");
    let error = Checkpoint::from_files(&[]).unwrap_err();
    assert_refused(&error, ErrorKind::NotFound, "config.json (embedded)", "config.json is missing");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn mutated_weights_never_panic(
        position in any::<prop::sample::Index>(), byte in any::<u8>(), cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let draft = Draft::llama();
        let mut file = draft.safetensors(|_| true);
        *position.get_mut(&mut file[..1200]) = byte;
        if let Some(cut) = cut {
            file.truncate(cut.index(file.len()));
        }
        let written = draft.write();
        written.put("model.safetensors", &file);
        if let Ok(checkpoint) = written.open() {
            checkpoint.fingerprint();
            if let Ok(decoder) = checkpoint.decoder() {
                for weight in decoder.weights() {
                    prop_assert_eq!(checkpoint.weight(weight).unwrap().bytes.len(), weight.byte_len());
                }
            }
        }
    }

    #[test]
    fn mutated_settings_never_panic(position in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let draft = Draft::llama();
        let mut config = draft.config.to_string().into_bytes();
        *position.get_mut(&mut config) = byte;
        let written = draft.write();
        written.put("config.json", &config);
        if let Ok(decoder) = written.open().and_then(|checkpoint| checkpoint.decoder()) {
            let _ = decoder.to_string();
        }
    }
}
