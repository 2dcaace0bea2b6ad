//! Settings of families before the current ones that their fixtures do not have.

use crate::families::{attentions, with};
use mlxcel_core::ErrorKind;
use mlxcel_models::NormScope;
use serde_json::json;

#[test]
fn what_transformers_does_not_compute_or_no_engine_does_is_refused_by_name() {
    for (fixture, key, value) in [
        ("falcon", "alibi", json!(true)),
        ("falcon", "apply_residual_connection_post_layernorm", json!(true)),
        ("falcon", "parallel_attn", json!(false)),
        ("gpt_bigcode", "add_cross_attention", json!(true)),
        ("opt", "do_layer_norm_before", json!(false)),
        ("opt", "_remove_final_layer_norm", json!(true)),
        ("opt", "word_embed_proj_dim", json!(32)),
        ("deepseek", "scoring_func", json!("sigmoid")),
        ("phi", "partial_rotary_factor", json!(0.2)),
    ] {
        let changes = match key {
            "partial_rotary_factor" => json!({"rope_parameters": null, key: value}),
            _ => json!({key: value}),
        };
        let error = with(fixture, changes).unwrap_err();
        let found = (error.kind(), error.context("field"));
        assert_eq!(found, (ErrorKind::Unsupported, Some(key)), "{fixture}: {error}");
    }
}

#[test]
fn settings_that_cannot_be_are_named() {
    for (fixture, key, value) in [
        ("codegen", "n_head", json!(2)),
        ("falcon", "num_kv_heads", json!(3)),
        ("falcon", "num_ln_in_parallel_attn", json!(3)),
        ("gptj", "rotary_dim", json!(7)),
        ("gptj", "rotary_dim", json!(18)),
        ("helium", "num_key_value_heads", json!(3)),
        ("mamba", "time_step_rank", json!(0)),
        ("mamba", "conv_kernel", json!(1)),
        ("deepseek", "num_experts_per_tok", json!(5)),
    ] {
        let error = with(fixture, json!({key: value})).unwrap_err();
        let found = (error.kind(), error.context("field"));
        assert_eq!(found, (ErrorKind::Corrupt, Some(key)), "{fixture}: {error}");
    }
}

#[test]
fn nanochat_turns_the_other_way() {
    let decoder = with("nanochat", json!({})).unwrap();
    let attention = attentions(&decoder)[0];
    assert!(attention.core.rope.as_ref().unwrap().inv_freq.iter().all(|frequency| *frequency < 0.0));
    assert_eq!(attention.query_norm.unwrap().scope, NormScope::RotatedHead);
}
