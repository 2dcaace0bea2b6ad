//! EAGLE-3 draft heads against their reference, walked by operations in plain loops; and heads that do not
//! belong to a model.

use std::path::{Path, PathBuf};

use crate::common::draft_heads::{HEADS, oracle};
use crate::common::{Draft, assert_field, repository};
use crate::draft_heads::{check_with, head};
use mlxcel_core::{ErrorKind, LoadOptions, Result};
use mlxcel_models::{Checkpoint, Decoder, OutputStates};
use safetensors::Dtype;
use serde_json::json;

fn fixture(name: &str) -> PathBuf {
    repository("fixtures/eagle3").join(name)
}

fn states() -> LoadOptions {
    LoadOptions::default().with_output_states(true)
}

/// The model of a fixture with a head.
fn opened(model: &str, head: &Path) -> Result<Checkpoint> {
    Checkpoint::for_options(&fixture(model).into(), &states().with_draft_head(head))
}

/// The model of a fixture as it is loaded for its head, and the head.
fn described(model: &str, draft: &Draft) -> [Result<Decoder>; 2] {
    let written = draft.write();
    [states(), head()].map(|options| opened(model, written.folder.path())?.decoder_for(&options))
}

fn depths(decoder: &Decoder) -> &[usize] {
    match &decoder.output_states {
        Some(OutputStates::Fused { depths, .. }) => depths,
        other => panic!("{other:?}"),
    }
}

#[test]
fn heads_match_the_states_and_logits_of_the_reference() {
    for (model, head) in HEADS {
        check_with(&oracle(head), &opened(model, &fixture(head)).unwrap());
    }
}

#[test]
fn a_head_borrows_what_it_lacks() {
    for (name, borrows, logits) in [("llama", true, 26), ("qwen3", false, 64)] {
        let [model, head] = described(name, &Draft::eagle3_head(name)).map(Result::unwrap);
        let of_model = model.weights().map(|weight| &weight.tensor).collect::<Vec<_>>();
        let shared = head.weights().filter(|weight| of_model.contains(&&weight.tensor)).count();
        assert_eq!((shared, head.logits(), head.layers.len()), (usize::from(borrows), logits, 1), "{name}");
        assert_eq!(model.output_state_width(), Some(head.hidden_size), "{name}");
    }
    let without_logits =
        Draft::eagle3_head("llama").without("lm_head.weight").without("d2t").unset("draft_vocab_size");
    let [_, head] = described("llama", &without_logits).map(Result::unwrap);
    assert_eq!((head.logits(), head.head_tokens.clone()), (48, None));
    assert_eq!(head.weights().filter(|weight| !weight.tensor.starts_with("draft_head.")).count(), 2);
}

/// `eagle_config` counts the layers whose results are read, and the field beside it those whose inputs are.
#[test]
fn the_layers_that_a_head_reads_are_named_or_the_default_ones() {
    const LAYERS: &str = "eagle_aux_hidden_state_layer_ids";
    let head = Draft::eagle3_head("llama").unset("eagle_config");
    let model_for = |draft: &Draft| {
        let [model, _] = described("llama", draft);
        model
    };
    let depths_of = |draft: &Draft| model_for(draft).map(|model| depths(&model).to_vec());
    let named = |ids: serde_json::Value| head.clone().set("eagle_config", json!({ LAYERS: ids }));
    assert_eq!(depths_of(&named(json!([0, 2, 3]))).unwrap(), [1, 3, 4]);
    assert_eq!(depths_of(&named(json!([4, 2, 0]))).unwrap(), [1, 3, 5]);
    assert_eq!(depths_of(&head.clone().set(LAYERS, json!([0, 2, 4]))).unwrap(), [0, 2, 4]);
    let [model, _] = described("qwen3", &Draft::eagle3_head("qwen3")).map(Result::unwrap);
    assert_eq!(depths(&model), [2, 3, 4]);
    for refused in [head.clone(), named(json!([0, 2, 5])), named(json!([0, 2, 2])), named(json!([]))] {
        let error = model_for(&refused).unwrap_err();
        assert_field(&error, ErrorKind::InvalidInput, LAYERS, "");
    }
}

#[test]
fn heads_of_other_models_are_refused() {
    let head = Draft::eagle3_head("llama");
    for (model, draft, field) in [
        ("qwen3", head.clone(), "vocab_size"),
        ("qwen3", head.clone().set("vocab_size", json!(64)), "hidden_size"),
        ("qwen3", Draft::eagle3_head("qwen3").set("target_hidden_size", json!(48)), "target_hidden_size"),
    ] {
        for error in described(model, &draft).map(Result::unwrap_err) {
            assert_field(&error, ErrorKind::InvalidInput, field, "");
        }
    }
    // The embedding of a model of another width cannot be borrowed.
    let [_, error] = described("qwen3", &Draft::eagle3_head("qwen3").without("embed_tokens.weight"));
    assert_eq!(error.unwrap_err().context("field"), Some("hidden_size"));
}

#[test]
fn incomplete_and_unknown_heads_are_refused_by_name() {
    let head = Draft::eagle3_head("llama");
    for error in described("llama", &head.clone().without("fc.weight")).map(Result::unwrap_err) {
        assert_eq!(
            (error.kind(), error.context("tensor")),
            (ErrorKind::NotFound, Some("fc.weight")),
            "{error}"
        );
    }
    for (draft, kind, tensor) in [
        (head.clone().without("d2t"), ErrorKind::NotFound, "d2t"),
        (head.clone().with("d2t", Dtype::I64, &[25]), ErrorKind::Corrupt, "d2t"),
        (head.clone().with("d2t", Dtype::I64, &[26]), ErrorKind::Corrupt, "d2t"),
        (head.clone().with("d2t", Dtype::I32, &[26]), ErrorKind::Corrupt, "d2t"),
        (
            head.clone().without("midlayer.input_layernorm.weight"),
            ErrorKind::NotFound,
            "midlayer.input_layernorm.weight",
        ),
    ] {
        let error = described("llama", &draft)[1].clone().unwrap_err();
        assert_eq!((error.kind(), error.context("tensor")), (kind, Some(tensor)), "{error}");
    }
    let mut doubled = head.clone();
    doubled.tensors.get_mut("d2t").unwrap().2[8..16].copy_from_slice(&3_i64.to_le_bytes());
    assert_eq!(described("llama", &doubled)[1].clone().unwrap_err().kind(), ErrorKind::Corrupt);
    for (draft, field) in [
        (head.clone().set("speculators_model_type", json!("peagle")), "speculators_model_type"),
        (head.clone().set("eagle_config", json!({"use_aux_hidden_state": false})), "use_aux_hidden_state"),
        (head.clone().set("norm_before_fc", json!(true)).set("fc_norm", json!(true)), "fc_norm"),
        (head.clone().set("kv_lora_rank", json!(512)), "kv_lora_rank"),
        (head.clone().set("layer_types", json!(["sliding_attention"])), "layer_types"),
        (Draft::llama(), "architectures"),
    ] {
        for error in described("llama", &draft).map(Result::unwrap_err) {
            let found = (error.kind(), error.context("field").map(|named| named.rsplit('.').next().unwrap()));
            assert_eq!(found, (ErrorKind::Unsupported, Some(field)), "{error}");
        }
    }
}

/// The kind of an error, and the field or tensor that it names, without the objects around it.
fn named(error: &mlxcel_core::Error) -> (ErrorKind, Option<&str>) {
    let name = error.context("field").or_else(|| error.context("tensor")).or_else(|| error.context("key"));
    let is_field = error.context("field").is_some();
    (error.kind(), name.map(|name| if is_field { name.rsplit('.').next().unwrap() } else { name }))
}

#[test]
fn further_norms_layers_and_nested_settings_are_checked_by_name() {
    use ErrorKind::{Corrupt, InvalidInput, NotFound, Unsupported};
    let [nested, layers] = ["qwen3-speculators", "qwen3-layers"].map(Draft::eagle3_head);
    let of_layers = |key: &str, value: serde_json::Value| {
        let mut changed = nested.clone();
        changed.config["transformer_layer_config"][key] = value;
        changed
    };
    let later_norm = "layers.1.hidden_norm.weight";
    // Whether the model refuses it, for which it computes states, or the head.
    for (by_head, draft, expected) in [
        (0, of_layers("vocab_size", json!(63)), (InvalidInput, "vocab_size")),
        (0, of_layers("hidden_size", json!(24)), (InvalidInput, "hidden_size")),
        (0, of_layers("layer_types", json!(["sliding_attention"])), (Unsupported, "layer_types")),
        (0, nested.clone().set("target_hidden_size", json!(16)), (InvalidInput, "target_hidden_size")),
        (
            0,
            nested.clone().set("transformer_layer_config", json!("llama")),
            (Corrupt, "transformer_layer_config"),
        ),
        (0, nested.clone().set("norm_before_fc", json!("yes")), (Corrupt, "norm_before_fc")),
        (0, nested.clone().without("input_norm.weight"), (NotFound, "input_norm.weight")),
        (0, nested.clone().with("input_norm.weight", Dtype::BF16, &[32]), (Corrupt, "input_norm.weight")),
        (0, layers.clone().without("fc_norm.2.weight"), (NotFound, "fc_norm.2.weight")),
        (0, layers.clone().with("fc.bias", Dtype::BF16, &[25]), (Corrupt, "fc.bias")),
        (1, nested.clone().without("d2t"), (NotFound, "d2t")),
        (1, nested.clone().set("draft_vocab_size", json!(21)), (Corrupt, "lm_head.weight")),
        (1, layers.clone().without("layers.1.mlp.up_proj.weight"), (NotFound, "layers.1.mlp.up_proj.weight")),
        (1, layers.clone().with(later_norm, Dtype::BF16, &[24]), (Unsupported, later_norm)),
        (1, layers.clone().set("num_hidden_layers", json!(3)), (NotFound, "layers.2.input_layernorm.weight")),
    ] {
        let error = described("qwen3", &draft)[by_head].clone().unwrap_err();
        assert_eq!(named(&error), (expected.0, Some(expected.1)), "{error}");
    }
    // Older names, and a number of logits that only a tensor says.
    let older = layers.clone().unset("fc_norm").set("use_aux_norm", json!(true)).renamed(|name| {
        let places = ["low", "mid", "high"].iter().enumerate();
        places.fold(name.to_owned(), |name, (at, place)| {
            name.replace(&format!("fc_norm.{at}"), &format!("aux_norm_{place}"))
        })
    });
    let shortened = nested.clone().unset("draft_vocab_size");
    assert_eq!(described("qwen3", &older).map(Result::unwrap)[0].output_state_width(), Some(24));
    assert_eq!(described("qwen3", &shortened).map(Result::unwrap)[1].logits(), 20);
}

#[test]
fn gguf_heads_with_missing_or_wrong_parts_are_refused_by_name() {
    let whole = std::fs::read(fixture("qwen3-gguf-head/model.gguf")).unwrap();
    let numbers =
        |numbers: &[i32]| numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<_>>();
    let tokens = |tokens: &[i64]| tokens.iter().flat_map(|token| token.to_le_bytes()).collect::<Vec<_>>();
    for (from, to, expected) in [
        (b"eagle3.target_layers".to_vec(), b"eagle3.target_rows__".to_vec(), "eagle3.target_layers"),
        (b"eagle3.vocab_size".to_vec(), b"eagle3.words_size".to_vec(), "eagle3.vocab_size"),
        (numbers(&[1, 3, 6]), numbers(&[3, 1, 6]), "eagle3.target_layers"),
        (numbers(&[1, 3, 6]), numbers(&[1, 3, 8]), "eagle_aux_hidden_state_layer_ids"),
        (b"enc.output_norm.weight".to_vec(), b"enc.output_form.weight".to_vec(), "enc.output_form.weight"),
        (b"fc.weight".to_vec(), b"fd.weight".to_vec(), "fd.weight"),
        (tokens(&[1, 4, 7]), tokens(&[1, 4, 64]), "draft_tokens"),
        (tokens(&[1, 4, 7]), tokens(&[1, 4, 4]), "draft_tokens"),
        (tokens(&[1, 4, 7]), tokens(&[1, 4, -7]), "draft_tokens"),
        (b"d2t".to_vec(), b"t2d".to_vec(), "t2d"),
    ] {
        let at = whole.windows(from.len()).position(|bytes| bytes == from).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("head.gguf");
        std::fs::write(&path, [&whole[..at], &to, &whole[at + from.len()..]].concat()).unwrap();
        let errors = [states(), head()].map(|options| opened("qwen3", &path)?.decoder_for(&options));
        let error = errors.into_iter().find_map(Result::err).unwrap();
        assert_eq!(named(&error).1, Some(expected), "{error}");
    }
}

#[test]
fn a_head_is_no_model_by_itself() {
    let checkpoint = Checkpoint::open(fixture("llama-head")).unwrap();
    assert!(checkpoint.is_draft_head() && !Checkpoint::open(fixture("llama")).unwrap().is_draft_head());
    let error = checkpoint.decoder().unwrap_err();
    assert_field(&error, ErrorKind::Unsupported, "architectures", "");
}

#[test]
fn a_fingerprint_covers_the_head() {
    let [own, other] = ["llama-head", "qwen3-head"].map(|head| opened("llama", &fixture(head)).unwrap());
    let alone = Checkpoint::open(fixture("llama")).unwrap();
    let prints = [&own, &other, &alone].map(Checkpoint::fingerprint);
    assert!(prints[0] != prints[1] && prints[0] != prints[2] && prints[1] != prints[2], "{prints:?}");
    assert_eq!(own.reopen().unwrap().unwrap().fingerprint(), prints[0]);
    // A model without states of its head is the same with and without it.
    let plain = LoadOptions::default().with_draft_head(fixture("llama-head"));
    let plain = Checkpoint::for_options(&fixture("llama").into(), &plain).unwrap();
    assert_eq!(plain.fingerprint(), prints[2]);
}
