//! What settings do to the descriptions of families, beside those that the fixtures have.

use std::fs;

use crate::common::{Draft, Written, assert_field, repository};
use mlxcel_core::{ErrorKind, Result};
use mlxcel_models::{Arrangement, Attention, Decoder, Mixer};
use serde_json::{Map, Value, json};

/// A fixture with other settings: `null` removes one.
pub(crate) fn with(fixture: &str, changes: Value) -> Result<Decoder> {
    with_config(&format!("architectures/{fixture}"), |config| {
        for (key, value) in changes.as_object().unwrap() {
            match value {
                Value::Null => {
                    config.remove(key);
                }
                value => {
                    config.insert(key.clone(), value.clone());
                }
            }
        }
    })
}

pub(crate) fn with_config(fixture: &str, change: impl FnOnce(&mut Map<String, Value>)) -> Result<Decoder> {
    let folder = repository(&format!("fixtures/{fixture}"));
    let written = Written { folder: tempfile::tempdir().unwrap() };
    for name in ["model.safetensors", "config.json"] {
        fs::copy(folder.join(name), written.path(name)).unwrap();
    }
    let mut config: Value = serde_json::from_slice(&fs::read(written.path("config.json")).unwrap()).unwrap();
    change(config.as_object_mut().unwrap());
    written.put("config.json", config.to_string().as_bytes());
    written.open()?.decoder()
}

pub(crate) fn attentions(decoder: &Decoder) -> Vec<&Attention> {
    fn attention(mixer: &Mixer) -> &Attention {
        match mixer {
            Mixer::Attention(attention) => attention,
            other => panic!("{other:?}"),
        }
    }
    decoder.mixers().map(attention).collect()
}

/// Of each layer the window and whether it rotates.
fn views(fixture: &str, changes: Value) -> Vec<(Option<usize>, bool)> {
    let decoder = with(fixture, changes).unwrap();
    attentions(&decoder)
        .iter()
        .map(|attention| (attention.core.window, attention.core.rope.is_some()))
        .collect()
}

/// Settings of published files, and of those that transformers writes, with others that mean the same there.
#[test]
fn settings_mean_what_transformers_makes_of_them() {
    let overrides = json!({"head_dim": 16, "num_key_value_heads": 1});
    let part = json!({"rope_type": "proportional", "partial_rotary_factor": 0.5});
    let kinds = json!(["linear_attention", "moe", "full_attention", "mlp"]);
    let step = |within: Value, beside: Value| {
        let mut rope = json!({"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": within});
        rope.as_object_mut().unwrap().retain(|_, value| !value.is_null());
        let ropes = json!({"full_attention": rope, "sliding_attention": rope});
        json!({"rope_parameters": ropes, "partial_rotary_factor": beside})
    };
    let mimo = |part: Option<f64>| {
        let mut full = json!({"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4});
        full.as_object_mut()
            .unwrap()
            .extend(part.map(|part| ("partial_rotary_factor".to_owned(), part.into())));
        json!({"rope_parameters": {"full_attention": full, "sliding_attention": {"rope_theta": 1e4}}})
    };
    for (fixture, written, meant) in [
        ("glm4_moe_lite", json!({"partial_rotary_factor": 1.0}), json!({})),
        ("deepseek_v3", json!({"partial_rotary_factor": 0.5}), json!({})),
        ("bailing_hybrid", json!({"partial_rotary_factor": 0.5}), json!({})),
        ("gemma4_text", json!({"per_layer_config": {"01": overrides, "04": overrides}}), json!({})),
        ("ernie4_5_moe", json!({"num_experts_per_tok": 3}), json!({"moe_k": 3})),
        ("deepseek_v32", json!({"layer_types": vec!["deepseek_sparse_attention"; 3]}), json!({})),
        ("kimi_linear", json!({"num_shared_experts": null, "n_shared_experts": 1}), json!({})),
        // The names of older files, in which a scaling is of layers with entries alone and has no magnitude.
        (
            "deepseek_v4",
            json!({
                "rope_parameters": null, "partial_rotary_factor": null, "qk_rope_head_dim": 8,
                "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
                "compress_rates": null, "compress_rate_csa": 4, "compress_rate_hca": 8,
            }),
            json!({}),
        ),
        ("arcee", json!({"rope_interleave": true}), json!({})),
        ("deepseek_v2", json!({"rope_interleave": false}), json!({})),
        (
            "arcee",
            json!({"rope_parameters": {"rope_type": "proportional"}, "partial_rotary_factor": 0.5}),
            json!({"rope_parameters": part}),
        ),
        // The name that transformers maps to another one wins.
        ("gpt2", json!({"num_attention_heads": 2}), json!({"n_head": 2})),
        ("hunyuan_v1_moe", json!({"num_experts_per_tok": 1}), json!({"moe_topk": 1})),
        ("internlm3", json!({"qkv_bias": true, "attention_bias": false}), json!({})),
        ("internlm3", json!({"bias": true, "mlp_bias": false}), json!({})),
        ("kimi_linear", json!({"norm_topk_prob": false}), json!({})),
        ("longcat_flash", json!({"num_experts_per_tok": 2}), json!({"moe_topk": 2})),
        ("nemotron_h", json!({"layer_types": kinds, "layers_block_type": ["mlp"]}), json!({})),
        // An object without rotary settings keeps families from assuming theirs.
        (
            "gpt_oss",
            json!({"rope_scaling": null, "rope_parameters": {}}),
            json!({"rope_scaling": null, "rope_parameters": {"rope_theta": 150_000.0}}),
        ),
        (
            "ministral3",
            json!({"rope_parameters": null, "rope_scaling": {}}),
            json!({"rope_parameters": null}),
        ),
        (
            "gemma4_text",
            json!({"rope_parameters": null, "rope_theta": 1000.0}),
            json!({"rope_parameters": null}),
        ),
        ("mimo_v2_flash", mimo(None), mimo(Some(1.0))),
        ("step3p5", step(json!(null), json!(0.5)), step(json!(0.5), json!(null))),
    ] {
        let shown = written.to_string();
        assert_eq!(with(fixture, written).unwrap(), with(fixture, meant).unwrap(), "{fixture}: {shown}");
    }
}

#[test]
fn a_flag_that_is_null_is_false() {
    for (fixture, key) in [
        ("deepseek_v3", "norm_topk_prob"),
        ("deepseek_v3", "rope_interleave"),
        ("qwen3_next", "norm_topk_prob"),
    ] {
        let with = |value: Value| {
            with_config(&format!("architectures/{fixture}"), |config| drop(config.insert(key.into(), value)))
        };
        let [null, off, on] = [Value::Null, json!(false), json!(true)].map(|value| with(value).unwrap());
        assert!(null == off && off != on, "{fixture}: {key}");
    }
}

#[test]
fn a_decoder_that_is_not_causal_reads_in_both_directions() {
    let decoder = with("qwen3", json!({"is_causal": false})).unwrap();
    assert!(decoder.is_bidirectional() && decoder.head.is_none());
    for fixture in ["mistral", "gpt_oss", "mamba2", "deepseek_v3"] {
        let error = with(fixture, json!({"is_causal": false})).unwrap_err();
        let found = (error.kind(), error.context("field"));
        assert_eq!(found, (ErrorKind::Unsupported, Some("is_causal")), "{fixture}");
    }
}

#[test]
fn settings_that_are_not_implemented_are_refused_by_name() {
    for (fixture, key, value) in [
        ("gemma", "use_bidirectional_attention", json!(true)),
        ("gemma2", "use_bidirectional_attention", json!(true)),
        ("cohere2", "use_qk_norm", json!(true)),
        ("cohere2", "use_gated_activation", json!(false)),
        ("cohere2", "use_parallel_block", json!(false)),
        ("cohere2", "rotary_pct", json!(0.5)),
        ("cohere2", "position_embedding_type", json!("learned")),
        ("starcoder2", "norm_type", json!("rms_norm")),
        ("starcoder2", "mlp_type", json!("gated")),
        ("phi3", "attention_bias", json!(true)),
        ("phi3", "lm_head_bias", json!(true)),
        ("gpt2", "add_cross_attention", json!(true)),
        ("gpt2", "activation_function", json!("quick_gelu")),
        ("qwen2", "use_mrope", json!(true)),
        ("qwen3", "layer_types", json!(["chunked_attention", "full_attention", "full_attention"])),
        ("granite", "hidden_act", json!("mish")),
        ("stablelm", "hidden_act", json!("mish")),
        ("afmoe", "score_func", json!("softmax")),
        ("afmoe", "route_norm", json!(false)),
        ("afmoe", "n_group", json!(2)),
        ("deepseek_v2", "topk_method", json!("group_limited_greedy")),
        ("deepseek_v2", "norm_topk_prob", json!(true)),
        ("ernie4_5_moe", "use_bias", json!(true)),
        ("ernie4_5_moe", "moe_norm_min", json!(0.5)),
        ("exaone_moe", "mlp_layer_types", json!(["dense", "sparse", "linear"])),
        ("glm4_moe_lite", "mlp_layer_types", json!(["dense", "sparse", "linear"])),
        ("granitemoehybrid", "position_embedding_type", json!("learned")),
        ("hunyuan_v1_dense", "use_qk_norm", json!(false)),
        ("hunyuan_v1_dense", "use_cla", json!(true)),
        ("hunyuan_v1_dense", "rope_interleave", json!(true)),
        ("hunyuan_v1_moe", "use_mixed_mlp_moe", json!(false)),
        ("hunyuan_v1_moe", "moe_layer_num_skipped", json!(1)),
        (
            "llama4_text",
            "layer_types",
            json!(["chunked_attention", "full_attention", "full_attention", "sliding_attention"]),
        ),
        ("internlm3", "mlp_bias", json!(false)),
        ("minicpm", "num_experts", json!(8)),
        ("minicpm", "sparse_config", json!({"kernel_size": 32})),
        ("mimo_v2_flash", "add_full_attention_sink_bias", json!(true)),
        ("mimo_v2_flash", "swa_num_key_value_heads", json!(3)),
        ("mimo_v2_flash", "n_shared_experts", json!(1)),
        ("phimoe", "num_experts_per_tok", json!(1)),
        ("minimax_m2", "scoring_func", json!("softmax")),
        ("minimax_m2", "shared_intermediate_size", json!(64)),
        ("minimax_m2", "attn_type_list", json!([1, 0, 1])),
        ("gemma4_text", "use_bidirectional_attention", json!("all")),
        ("gemma3n_text", "hidden_size_per_layer_input", json!(0)),
        ("kimi_linear", "mla_use_nope", json!(false)),
        ("kimi_linear", "qk_rope_head_dim", json!(5)),
        ("bailing_hybrid", "mlp_layer_types", json!(["dense", "sparse", "sparse", "linear"])),
        ("longcat_flash", "attention_method", json!("GQA")),
        ("longcat_flash", "zero_expert_type", json!("copy")),
        ("longcat_flash", "mla_scale_q_lora", json!(false)),
        ("longcat_flash", "mla_scale_kv_lora", json!(false)),
        ("longcat_flash", "router_bias", json!(true)),
        ("longcat_flash", "norm_topk_prob", json!(true)),
        ("longcat_flash", "rope_interleave", json!(false)),
        ("longcat_flash", "qk_head_dim", json!(24)),
        ("deepseek_v32", "indexer_rope_interleave", json!(true)),
        ("deepseek_v32", "rope_interleave", json!(false)),
        ("deepseek_v32", "qk_head_dim", json!(24)),
        ("deepseek_v32", "mlp_bias", json!(true)),
        ("deepseek_v32", "scoring_func", json!("softmax")),
        ("deepseek_v32", "layer_types", json!(["indexed_attention", "full_attention", "indexed_attention"])),
        ("deepseek_v4", "scoring_func", json!("softmax")),
        ("deepseek_v4", "hidden_act", json!("gelu")),
        ("deepseek_v4", "attention_bias", json!(true)),
        ("deepseek_v4", "mlp_bias", json!(true)),
        ("deepseek_v4", "num_key_value_heads", json!(2)),
        ("deepseek_v4", "n_shared_experts", json!(2)),
        ("deepseek_v4", "layer_types", json!(vec!["full_attention"; 4])),
        ("deepseek_v4", "mlp_layer_types", json!(vec!["dense"; 4])),
        ("step3p5", "use_head_wise_attn_gate", json!(false)),
        ("step3p5", "use_qk_norm", json!(false)),
        ("step3p5", "use_moe", json!(false)),
        ("step3p5", "use_moe_router_bias", json!(false)),
        ("step3p5", "zero_centered", json!(false)),
        ("step3p5", "use_bidirectional_attention", json!(true)),
        ("step3p5", "moe_layer_offset", json!(1)),
        ("step3p5", "moe_every_n_layer", json!(2)),
        ("step3p5", "moe_router_activation", json!("softmax")),
        ("step3p5", "att_impl_type", json!("MLA")),
        ("step3p5", "hidden_act", json!("gelu")),
        ("step3p5", "use_rope_layers", json!([1, 0, 1, 1])),
        ("step3p5", "gating", json!("per-element")),
        ("step3p5", "per_layer_config", json!({"1": {"num_attention_heads": 2}})),
        ("step3p5", "sparse_attention_config", json!({"sparse_block_size": 8})),
        ("axk1", "scoring_func", json!("softmax")),
        ("cohere2_moe", "expert_selection_fn", json!("argmax")),
        ("cohere2_moe", "shared_expert_combination_strategy", json!("product")),
        ("cohere2_moe", "use_parallel_block", json!(false)),
        ("hy_v3", "qk_norm", json!(false)),
        ("hy_v3", "route_norm", json!(false)),
        ("laguna", "gating", json!(false)),
        ("laguna", "gating_types", json!(vec!["per_element"; 4])),
        ("laguna", "moe_apply_router_weight_on_input", json!(true)),
        ("laguna", "moe_router_logit_softcapping", json!(30.0)),
        ("laguna", "moe_router_score_func", json!("sqrtsoftplus")),
        ("laguna", "qkv_bias", json!(true)),
        ("laguna", "rope_scaling", json!({"rope_type": "linear", "factor": 2.0})),
        ("lfm3", "rope_scaling", json!({"rope_type": "linear", "factor": 2.0})),
        ("mellum", "use_sliding_window", json!(false)),
        ("youtu", "mlp_bias", json!(true)),
        ("youtu", "rope_traditional", json!(false)),
        ("nemotron_h", "moe_latent_size", json!(8)),
        ("nemotron_h", "mlp_hidden_act", json!("silu")),
    ] {
        let error = with(fixture, json!({key: value})).unwrap_err();
        assert_field(&error, ErrorKind::Unsupported, key, fixture);
    }
    let packed = json!({"quantization_config": {"quant_method": "bitnet", "linear_class": "bitlinear"}});
    let error = with("bitnet", packed).unwrap_err();
    assert_eq!(error.context("field"), Some("quantization_config.quant_method"));
    let letters =
        with("exaone4", json!({"layer_types": null, "sliding_window_pattern": "LLLG"})).unwrap_err();
    assert_field(&letters, ErrorKind::Unsupported, "sliding_window_pattern", "");
}

#[test]
fn settings_that_contradict_each_other_are_named() {
    for (fixture, changes, field) in [
        ("qwen3", json!({"layer_types": ["full_attention"]}), "layer_types"),
        ("gemma2", json!({"layer_types": "full_attention"}), "layer_types"),
        (
            "qwen2",
            json!({"layer_types": ["sliding_attention", "full_attention", "full_attention"]}),
            "sliding_window",
        ),
        ("smollm3", json!({"no_rope_layers": [1, 0]}), "no_rope_layers"),
        ("smollm3", json!({"no_rope_layers": null, "no_rope_layer_interval": 0}), "no_rope_layer_interval"),
        ("gpt_neox", json!({"num_attention_heads": 3}), "num_attention_heads"),
        ("gpt2", json!({"n_head": 5}), "n_head"),
        ("cwm", json!({"sliding_window": 0}), "sliding_window"),
        ("flint", json!({"num_experts_per_tok": 99}), "num_experts_per_tok"),
        ("granite_swa", json!({"layer_rope_theta": [0, 1e4]}), "layer_rope_theta"),
        ("granite_swa", json!({"layer_rope_theta": [0, -1, 1e4, 1e4]}), "layer_rope_theta"),
        ("hy_v3", json!({"num_shared_experts": 0}), "num_shared_experts"),
        ("laguna", json!({"num_attention_heads_per_layer": [4, 2]}), "num_attention_heads_per_layer"),
        ("laguna", json!({"num_attention_heads_per_layer": [4, 2, 3, 4]}), "num_attention_heads_per_layer"),
        ("laguna", json!({"num_attention_heads_per_layer": [4, 0, 2, 4]}), "num_attention_heads_per_layer"),
        (
            "laguna",
            json!({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}),
            "rope_parameters.sliding_attention",
        ),
        ("hunyuan_v1_moe", json!({"moe_topk": [1, 2]}), "moe_topk"),
        ("hunyuan_v1_moe", json!({"moe_topk": [1, 2, 5]}), "moe_topk"),
        ("hunyuan_v1_moe", json!({"num_experts": [4, 0, 4]}), "num_experts"),
        ("olmo_hybrid", json!({"linear_num_value_heads": 3}), "linear_num_value_heads"),
        ("jamba", json!({"attn_layer_offset": 3}), "attn_layer_offset"),
        ("jamba", json!({"expert_layer_period": 0}), "expert_layer_period"),
        ("mimo_v2_flash", json!({"num_key_value_heads": 4}), "num_key_value_heads"),
        (
            "mimo_v2_flash",
            json!({"layer_types": null, "hybrid_layer_pattern": [0, 1]}),
            "hybrid_layer_pattern",
        ),
        ("llama4_text", json!({"no_rope_layers": [1, 0]}), "no_rope_layers"),
        ("gemma4_text", json!({"num_kv_shared_layers": 4}), "num_kv_shared_layers"),
        ("gemma4_text", json!({"num_kv_shared_layers": 6}), "num_kv_shared_layers"),
        ("gemma4_text", json!({"top_k_experts": 5}), "top_k_experts"),
        ("gemma4_text", json!({"num_experts": null}), "num_experts"),
        (
            "gemma4_text",
            json!({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}),
            "rope_parameters.sliding_attention",
        ),
        ("gemma3n_text", json!({"activation_sparsity_pattern": [0.5]}), "activation_sparsity_pattern"),
        (
            "gemma3n_text",
            json!({"activation_sparsity_pattern": [0.5, 1.0, 0, 0, 0]}),
            "activation_sparsity_pattern",
        ),
        ("gemma3n_text", json!({"intermediate_size": [40]}), "intermediate_size"),
        ("gemma3n_text", json!({"altup_active_idx": 3}), "altup_active_idx"),
        (
            "kimi_linear",
            json!({"layer_types": null, "linear_attn_config": {"full_attn_layers": [2], "kda_layers": [1, 3]}}),
            "linear_attn_config.kda_layers",
        ),
        ("longcat_flash", json!({"num_hidden_layers": 3}), "num_hidden_layers"),
        ("longcat_flash", json!({"moe_topk": 9}), "moe_topk"),
        ("deepseek_v32", json!({"index_head_dim": 7}), "index_head_dim"),
        ("deepseek_v4", json!({"index_head_dim": 4}), "index_head_dim"),
        ("deepseek_v4", json!({"o_groups": 3}), "o_groups"),
        ("deepseek_v4", json!({"layer_types": null, "compress_ratios": [0, 4]}), "compress_ratios"),
        (
            "deepseek_v4",
            json!({"rope_parameters": {"main": {"rope_theta": 1e4}}}),
            "rope_parameters.compress",
        ),
        ("step3p5", json!({"num_attention_groups": 3}), "num_attention_groups"),
        (
            "step3p5",
            json!({"attention_other_setting": {"num_attention_heads": 5}}),
            "attention_other_setting.num_attention_heads",
        ),
        ("step3p5", json!({"num_sliding_attention_heads": 5}), "num_sliding_attention_heads"),
        ("step3p5", json!({"layer_types": ["full_attention"]}), "layer_types"),
        ("step3p5", json!({"rope_theta": [1e4, 1e4]}), "rope_theta"),
        ("step3p5", json!({"partial_rotary_factors": [0.5]}), "partial_rotary_factors"),
        ("step3p5", json!({"moe_layers_enum": "1,two"}), "moe_layers_enum"),
        ("step3p5", json!({"moe_top_k": 7}), "moe_top_k"),
        ("step3p5", json!({"swiglu_limits": ["none"]}), "swiglu_limits"),
        ("falcon_h1", json!({"ssm_multipliers": [1.0, 2.0]}), "ssm_multipliers"),
        ("falcon_h1", json!({"mamba_d_ssm": 50}), "mamba_n_heads"),
    ] {
        let error = with(fixture, changes).unwrap_err();
        assert_field(&error, ErrorKind::Corrupt, field, fixture);
    }
}

#[test]
fn windows_and_rotations_follow_each_familys_settings() {
    const ROTATED: (Option<usize>, bool) = (None, true);
    const PLAIN: (Option<usize>, bool) = (None, false);
    let window = |size| (Some(size), true);
    let qwen =
        json!({"layer_types": null, "use_sliding_window": true, "sliding_window": 9, "max_window_layers": 1});
    for fixture in ["qwen2", "qwen3"] {
        assert_eq!(views(fixture, qwen.clone()), [ROTATED, window(9), window(9)]);
        assert_eq!(
            views(fixture, json!({"layer_types": null, "sliding_window": 9})),
            [ROTATED; 3],
            "it is turned off"
        );
    }
    assert_eq!(
        views("gemma2", json!({"layer_types": null, "sliding_window": null})),
        [window(4096), ROTATED, window(4096)]
    );
    let third = json!({"layer_types": null, "sliding_window_pattern": 3});
    let two = [window(16), window(16), ROTATED];
    assert_eq!(views("gemma3_text", third), [two, two].concat());
    assert_eq!(views("olmo3", json!({"layer_types": null})), [window(16), window(16), window(16), ROTATED]);
    let second = json!({"layer_types": null, "sliding_window_pattern": 2});
    let pair = [window(16), PLAIN];
    assert_eq!(views("cohere2", second.clone()), [pair, pair].concat());
    assert_eq!(views("exaone4", second), [pair, pair].concat());
    let full = ["full_attention"; 4];
    assert_eq!(views("exaone4", json!({"layer_types": full})), [PLAIN; 4], "there is a window, if unused");
    let smollm = json!({"no_rope_layers": [0, 1, 0, 1], "layer_types": null, "use_sliding_window": true, "sliding_window": 9});
    let pair = [(Some(9), false), ROTATED];
    assert_eq!(views("smollm3", smollm), [pair, pair].concat());
    let pair = [ROTATED, PLAIN];
    let interval = json!({"no_rope_layers": null, "layer_types": null, "no_rope_layer_interval": 2});
    assert_eq!(views("smollm3", interval), [pair, pair].concat());
    assert_eq!(views("starcoder2", json!({"sliding_window": null})), [ROTATED; 3]);
    assert_eq!(views("phi3", json!({"sliding_window": 7})), [window(7); 3]);
}

#[test]
fn soft_caps_are_there_unless_they_are_null() {
    let caps = |fixture: &str, changes: Value| {
        let decoder = with(fixture, changes).unwrap();
        (attentions(&decoder)[0].core.soft_cap, decoder.head.unwrap().soft_cap)
    };
    let keys = ["attn_logit_softcapping", "final_logit_softcapping"];
    assert_eq!(caps("gemma2", json!({keys[0]: 2.5, keys[1]: null})), (Some(2.5), Some(30.0)), "its default");
    assert_eq!(
        caps("gemma3_text", json!({keys[0]: 2.5, keys[1]: 7})),
        (None, Some(7.0)),
        "the first is not used"
    );
}

#[test]
fn scales_follow_from_their_multipliers() {
    let scales = |fixture: &str, changes: Value| {
        let decoder = with(fixture, changes).unwrap();
        attentions(&decoder).iter().map(|attention| attention.core.scale).collect::<Vec<_>>()
    };
    assert_eq!(scales("gpt2", json!({"scale_attn_by_inverse_layer_idx": true})), [0.25, 0.125, 0.25 / 3.0]);
    assert_eq!(scales("gpt2", json!({"scale_attn_weights": false})), [1.0; 3]);
    assert_eq!(scales("gemma2", json!({"query_pre_attn_scalar": 64})), [0.125; 3]);
    assert_eq!(scales("granite", json!({"attention_multiplier": 0.5})), [0.5; 3]);
    let granite = with(
        "granite",
        json!({"logits_scaling": 16, "embedding_multiplier": 3, "residual_multiplier": null}),
    );
    let granite = granite.unwrap();
    assert_eq!((granite.head.unwrap().scale, granite.embedding.scale), (1.0 / 16.0, 3.0));
    assert!(granite.layers.iter().flat_map(|layer| &layer.blocks).all(|block| block.residual_scale == 1.0));
}

#[test]
fn blocks_are_parallel_or_sequential() {
    for (parallel, arrangement) in [(true, Arrangement::Parallel), (false, Arrangement::Sequential)] {
        let decoder = with("gpt_neox", json!({"use_parallel_residual": parallel})).unwrap();
        assert!(decoder.layers.iter().all(|layer| layer.arrangement == arrangement));
        let norms = |decoder: &Decoder| {
            let blocks = &decoder.layers[0].blocks;
            blocks[0].norm_before.unwrap().weight == blocks[1].norm_before.unwrap().weight
        };
        assert!(!norms(&decoder), "each has a norm of its own");
        let decoder = with("stablelm", json!({"use_parallel_residual": parallel})).unwrap();
        assert!(decoder.layers.iter().all(|layer| layer.arrangement == arrangement));
        assert_eq!(norms(&decoder), parallel, "they share a norm");
    }
}

#[test]
fn tensors_are_found_by_older_names_and_without_the_head_around_them() {
    let bare = |base: &'static str| move |name: &str| name.strip_prefix(base).unwrap_or(name).to_owned();
    for (fixture, base) in
        [("gpt2", "transformer."), ("llama", "model."), ("gpt_neox", "gpt_neox."), ("opt", "model.")]
    {
        let decoder = Draft::fixture(fixture).renamed(bare(base)).decoder().unwrap();
        assert_eq!(decoder.layers, with(fixture, json!({})).unwrap().layers, "{fixture}");
    }
    let decoder =
        Draft::fixture("gpt_neox").renamed(|name| name.replace("embed_out", "lm_head")).decoder().unwrap();
    assert_eq!(decoder.weight(decoder.head.unwrap().projection.weight).tensor, "lm_head.weight");
    let error = Draft::fixture("llama")
        .renamed(|name| name.replace("model.embed_tokens", "other"))
        .decoder()
        .unwrap_err();
    assert_eq!(error.context("tensor"), Some("model.embed_tokens.weight"));
}
