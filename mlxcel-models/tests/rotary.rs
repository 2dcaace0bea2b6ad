//! Rotary settings of families: what they mean, and which are refused.

use mlxcel_core::ErrorKind;
use mlxcel_models::AttentionMask;
use serde_json::{Value, json};

use crate::common::assert_field;
use crate::families::{attentions, with};

#[test]
fn rotary_settings_that_transformers_reads_in_another_way_are_refused() {
    let original = |fixture| {
        let changes =
            json!({"rope_parameters": null, "rope_scaling": null, "original_max_position_embeddings": 64});
        (fixture, changes, "original_max_position_embeddings")
    };
    let linear = json!({"rope_type": "linear", "factor": 8.0});
    for (fixture, changes, field) in [
        original("apertus"),
        original("gpt_oss"),
        original("ministral3"),
        original("mistral4"),
        ("gemma3_text", json!({"rope_scaling": {"type": "linear", "factor": 8.0}}), "rope_scaling.type"),
        (
            "gemma3_text",
            json!({"rope_scaling": linear, "rope_parameters": {"full_attention": {"beta_fast": 3}}}),
            "rope_parameters.full_attention.beta_fast",
        ),
        ("mimo_v2_flash", json!({"rope_scaling": linear}), "rope_scaling"),
        ("step3p5", json!({"yarn_only_types": ["sliding_attention"]}), "yarn_only_types"),
        ("step3p5", json!({"yarn_only_types": null}), "yarn_only_types"),
        ("step3p5", json!({"rope_scaling": {"type": "linear", "factor": 8.0}}), "rope_scaling.type"),
        ("step3p5", json!({"rope_theta": [1e4, 1e4, 2e4, 1e4]}), "rope_theta"),
    ] {
        let error = with(fixture, changes).unwrap_err();
        let found = (error.kind(), error.context("field"));
        assert_eq!(found, (ErrorKind::Unsupported, Some(field)), "{fixture}: {error}");
    }
}

#[test]
fn ministral_has_default_rope_scaling() {
    let decoder = with("ministral3", json!({"rope_parameters": null})).unwrap();
    let core = &attentions(&decoder)[0].core;
    let scale = core.query_scale.unwrap();
    assert_eq!((scale.beta, scale.original_context), (0.1, 16_384));
    assert_eq!(core.rope.as_ref().unwrap().attention_factor, 1.0);
    let plain =
        with("ministral3", json!({"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}})).unwrap();
    assert_eq!(attentions(&plain)[0].core.query_scale, None);
}

#[test]
fn hunyuan_stretches_the_base_of_its_rotary_embedding_by_alpha() {
    let slowest = |scaling: Value| {
        let decoder = with("hunyuan_v1_dense", json!({"rope_parameters": scaling})).unwrap();
        let rope = attentions(&decoder)[0].core.rope.clone().unwrap();
        rope.inv_freq[7]
    };
    let dynamic =
        |alpha: Value| json!({"rope_type": "dynamic", "rope_theta": 1e4, "factor": 1.0, "alpha": alpha});
    let plain = slowest(json!({"rope_type": "default", "rope_theta": 1e4}));
    // 7/8 of the exponent 16/14 that is the whole base's.
    assert!((plain / slowest(dynamic(json!(16.0))) / 16.0 - 1.0).abs() < 1e-5);
    assert_eq!(slowest(dynamic(json!(0))), plain, "zero counts as absent");
    assert_eq!(slowest(dynamic(Value::Null)), plain);

    let narrow = json!({"head_dim": 2, "rope_parameters": dynamic(json!(16.0))});
    let error = with("hunyuan_v1_dense", narrow).unwrap_err();
    assert_field(&error, ErrorKind::Unsupported, "rope_parameters.alpha", "");
}

#[test]
fn olmo_hybrid_does_not_rotate_without_a_base() {
    let rotates = |changes: Value| {
        let decoder = with("olmo_hybrid", changes).unwrap();
        decoder.mixers().any(|mixer| mixer.ropes().next().is_some())
    };
    assert!(rotates(json!({"rope_parameters": null})));
    assert!(!rotates(json!({"rope_parameters": {"rope_type": "default", "rope_theta": null}})));
}

#[test]
fn llama4_reads_chunks_rotations_and_experts_of_published_files() {
    let published = json!({"no_rope_layers": [], "layer_types": null, "no_rope_layer_interval": null,
        "attn_temperature_tuning": 4, "attention_chunk_size": null});
    let decoder = with("llama4_text", published).unwrap();
    let cores: Vec<_> = attentions(&decoder).into_iter().map(|attention| &attention.core).collect();
    let chunks: Vec<_> =
        cores.iter().map(|core| core.window.filter(|_| core.mask == AttentionMask::Chunked)).collect();
    assert_eq!(chunks, [Some(8192), Some(8192), Some(8192), None]);
    let scaled: Vec<_> = cores.iter().map(|core| (core.rope.is_some(), core.query_scale.is_some())).collect();
    assert_eq!(scaled, [(true, false), (true, false), (true, false), (false, true)]);
    let untuned = with("llama4_text", json!({"attn_temperature_tuning": 0, "use_qk_norm": false})).unwrap();
    let plain = attentions(&untuned)[2];
    assert_eq!((plain.core.query_scale, plain.query_norm, plain.key_norm), (None, None, None));
}
