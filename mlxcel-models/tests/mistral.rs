//! Mistral checkpoints and their descriptions.

use crate::common::{Draft, repository};
use mlxcel_core::{ErrorKind, Result};
use mlxcel_models::{Attention, Checkpoint, Decoder, Mixer};
use safetensors::Dtype;
use serde_json::{Value, json};

fn attention(decoder: &Decoder) -> &Attention {
    let Some(Mixer::Attention(attention)) = decoder.mixers().next() else { panic!() };
    attention
}

fn draft() -> Draft {
    Draft::llama().set("model_type", json!("mistral"))
}

#[test]
fn the_fixture_has_a_sliding_window() {
    let checkpoint = Checkpoint::open(repository("fixtures/architectures/mistral")).unwrap();
    let decoder = checkpoint.decoder().unwrap();
    assert_eq!((decoder.model_type.as_str(), decoder.layers.len()), ("mistral", 3));
    for mixer in decoder.mixers() {
        let Mixer::Attention(attention) = mixer else { panic!() };
        assert_eq!(attention.core.window, Some(16));
    }
    assert!(decoder.to_string().contains("scale 0.25, window 16, BF16"), "{decoder}");
}

#[test]
fn the_window_matches_transformers() {
    let window = |draft: Draft| -> Result<Option<usize>> { Ok(attention(&draft.decoder()?).core.window) };
    assert_eq!(window(draft()).unwrap(), Some(4096));
    assert_eq!(window(draft().set("sliding_window", Value::Null)).unwrap(), None);
    assert_eq!(window(draft().set("sliding_window", json!(1))).unwrap(), Some(1));
    for value in [json!(0), json!(-1), json!("all")] {
        let error = window(draft().set("sliding_window", value)).unwrap_err();
        assert_eq!((error.kind(), error.context("field")), (ErrorKind::Corrupt, Some("sliding_window")));
    }
    assert_eq!(window(Draft::llama().set("sliding_window", json!(4))).unwrap(), None, "Llama has none");
}

#[test]
fn defaults_are_those_of_transformers() {
    let decoder = draft().decoder().unwrap();
    assert_eq!((decoder.context_length, decoder.norm.unwrap().epsilon), (131_072, 1e-6));
    let biases = draft().set("attention_bias", json!(true)).set("mlp_bias", json!(true)).decoder().unwrap();
    assert!(attention(&biases).query.bias.is_none(), "these are not among its settings");
    assert_eq!(draft().write().open().unwrap().stop_tokens(), [2]);

    let wide = |draft: Draft| {
        draft
            .set("num_attention_heads", json!(16))
            .set("head_dim", json!(2))
            .with("model.layers.0.self_attn.q_proj.weight", Dtype::BF16, &[32, 8])
            .with("model.layers.0.self_attn.o_proj.weight", Dtype::BF16, &[8, 32])
    };
    let eight = wide(draft())
        .unset("num_key_value_heads")
        .with("model.layers.0.self_attn.k_proj.weight", Dtype::BF16, &[16, 8])
        .with("model.layers.0.self_attn.v_proj.weight", Dtype::BF16, &[16, 8]);
    assert_eq!(attention(&eight.decoder().unwrap()).kv_heads, 8);
    let all = wide(draft())
        .set("num_key_value_heads", Value::Null)
        .with("model.layers.0.self_attn.k_proj.weight", Dtype::BF16, &[32, 8])
        .with("model.layers.0.self_attn.v_proj.weight", Dtype::BF16, &[32, 8]);
    assert_eq!(attention(&all.decoder().unwrap()).kv_heads, 16);
}
