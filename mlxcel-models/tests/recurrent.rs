//! Families with recurrences: what their settings do to the description, and which are refused.

use crate::common::values::values;
use crate::common::{Draft, assert_field};
use mlxcel_core::ErrorKind;
use mlxcel_models::{Activation, Checkpoint, Decoder, Mixer, Mlp, Operation, StateShape, StateSpace};
use safetensors::Dtype;
use serde_json::{Value, json};

fn state_space(decoder: &Decoder) -> &StateSpace {
    match &decoder.layers[0].blocks[0].operation {
        Operation::Mixer(Mixer::StateSpace(mixer)) => mixer,
        other => panic!("{other:?}"),
    }
}

/// For each layer, whether it has attention.
fn attends(decoder: &Decoder) -> Vec<bool> {
    decoder.mixers().map(|mixer| matches!(mixer, Mixer::Attention(_))).collect()
}

#[test]
fn states_follow_from_the_mixers() {
    let groups = |family| Draft::fixture(family).decoder().unwrap().state_groups();
    let shapes =
        |family| groups(family).into_iter().map(|group| (group.shape, group.layers)).collect::<Vec<_>>();
    let fixed = |shape: &[usize]| StateShape::Fixed { shape: shape.to_vec() };
    assert_eq!(shapes("mamba2"), [(fixed(&[160, 3]), 3), (fixed(&[8, 16, 16]), 3)]);
    let cache = |head_dim| StateShape::Cache { kv_heads: 2, head_dim, window: None };
    assert_eq!(shapes("lfm2"), [(fixed(&[64, 2]), 3), (cache(16), 1)]);
    let narrow = StateShape::Cache { kv_heads: 2, head_dim: 8, window: None };
    assert_eq!(shapes("granitemoehybrid"), [(fixed(&[96, 3]), 2), (fixed(&[8, 8, 8]), 2), (narrow, 1)]);
    assert_eq!(shapes("rwkv7"), [(fixed(&[64, 1]), 6), (fixed(&[4, 16, 16]), 3)]);
    assert_eq!(shapes("qwen3_next"), [(fixed(&[128, 3]), 3), (fixed(&[4, 16, 16]), 3), (cache(32), 1)]);
}

#[test]
fn time_steps_have_the_bounds_of_the_settings() {
    let limits = |draft: &Draft| state_space(&draft.decoder().unwrap()).dt_limits;
    let draft = Draft::fixture("mamba2");
    assert_eq!(limits(&draft), (0.0, f32::INFINITY));
    assert_eq!(limits(&draft.clone().unset("time_step_limit")), (0.0, f32::INFINITY));
    assert_eq!(limits(&draft.clone().set("time_step_limit", json!([0.25, 2.0]))), (0.25, 2.0));
    // As Python writes it.
    let written = draft.write();
    let bare = draft.config.to_string().replace(r#"{"__float__":"Infinity"}"#, "Infinity");
    assert!(bare.contains("[0.0,Infinity]"), "{bare}");
    written.put("config.json", bare.as_bytes());
    let decoder = Checkpoint::open(written.folder.path()).unwrap().decoder().unwrap();
    assert_eq!(state_space(&decoder).dt_limits, (0.0, f32::INFINITY));
    for bad in
        [json!([1.0, 0.5]), json!([0.0]), json!(0.5), json!([{"__float__": "NaN"}, 1.0]), json!(["0", "1"])]
    {
        let error = draft.clone().set("time_step_limit", bad.clone()).decoder().unwrap_err();
        assert_field(&error, ErrorKind::Corrupt, "time_step_limit", &bad.to_string());
    }
}

#[test]
fn float_names_inside_strings_stay_strings() {
    let draft = Draft::fixture("mamba2");
    let written = draft.write();
    let strange = draft.config.to_string().replace(r#"{"__float__":"Infinity"}"#, "Infinity");
    let strange = strange.replacen('{', r#"{"note": "an \"Infinity\" or -Infinity, \\", "#, 1);
    written.put("config.json", strange.as_bytes());
    assert_eq!(state_space(&written.open().unwrap().decoder().unwrap()).dt_limits.1, f32::INFINITY);
    written.put("config.json", strange.replace("Infinity,", "Infinitely,").as_bytes());
    assert!(written.open().is_ok());
    written.put("config.json", strange.replace("Infinity]", "Infinitely]").as_bytes());
    assert_eq!(written.open().unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn each_group_of_heads_has_its_own_norm() {
    let mut draft = Draft::fixture("mamba2").set("n_groups", json!(2)).set("hidden_act", json!("gelu"));
    for layer in 0..3 {
        let mixer = format!("backbone.layers.{layer}.mixer");
        draft.put(&format!("{mixer}.in_proj.weight"), Dtype::BF16, &[328, 64]);
        draft.put(&format!("{mixer}.conv1d.weight"), Dtype::BF16, &[192, 1, 4]);
        draft.put(&format!("{mixer}.conv1d.bias"), Dtype::BF16, &[192]);
    }
    let decoder = draft.decoder().unwrap();
    let mixer = state_space(&decoder);
    let norm = mixer.norm.unwrap();
    assert_eq!((norm.width, &decoder.weight(norm.weight.unwrap()).shape[..]), (64, &[2, 64][..]));
    assert_eq!((mixer.input.outputs, mixer.convolution.activation), (192, Some(Activation::Gelu)));
    let [z, input, dt] =
        [mixer.gate, mixer.input, mixer.dt].map(|part| decoder.weight(part.weight).to_string());
    let name = "backbone.layers.0.mixer.in_proj.weight";
    assert_eq!(z, format!("{name}[0..128] BF16 [128, 64]"));
    assert_eq!(input, format!("{name}[128..320] BF16 [192, 64]"));
    assert_eq!(dt, format!("{name}[320..328] BF16 [8, 64]"));
}

#[test]
fn lfm2_sizes_its_mlps_as_published() {
    let width = |draft: Draft, width: usize| {
        let mut draft = draft;
        for layer in 0..4 {
            let module = format!("model.layers.{layer}.feed_forward");
            for (name, shape) in [("w1", [width, 64]), ("w3", [width, 64]), ("w2", [64, width])] {
                draft.put(&format!("{module}.{name}.weight"), Dtype::BF16, &shape);
            }
        }
        match draft.decoder().unwrap().layers[0].blocks[1].operation {
            Operation::Mlp(Mlp::Gated { up, .. }) => assert_eq!(up.outputs, width),
            ref other => panic!("{other:?}"),
        }
    };
    let adjusted = Draft::fixture("lfm2").unset("block_auto_adjust_ff_dim").set("block_ff_dim", json!(300));
    width(adjusted.clone(), 256);
    width(adjusted.clone().set("block_multiple_of", json!(16)), 208);
    let scaled =
        adjusted.clone().set("block_multiple_of", json!(16)).set("block_ffn_dim_multiplier", json!(1.3));
    width(scaled, 272);
    width(adjusted.set("block_ffn_dim_multiplier", Value::Null), 200);
}

#[test]
fn which_layers_attend_follows_from_the_settings() {
    let decoder =
        Draft::fixture("lfm2").unset("layer_types").set("full_attn_idxs", json!([2])).decoder().unwrap();
    assert_eq!(attends(&decoder), [false, false, true, false]);
    let error = Draft::fixture("lfm2").unset("layer_types").decoder().unwrap_err();
    let missing = error.context("tensor").unwrap_or_default();
    assert!(missing.starts_with("model.layers.0.self_attn"), "all attend where nothing is said: {error}");
    let decoder = Draft::fixture("qwen3_next").unset("layer_types").decoder().unwrap();
    assert_eq!(attends(&decoder), [false, false, false, true]);
}

#[test]
fn rwkv_is_read_in_older_and_converted_layouts() {
    let published = Draft::fixture("rwkv7");
    let all_values = |draft: &Draft| {
        let written = draft.write();
        let checkpoint = written.open().unwrap();
        let decoder = checkpoint.decoder().unwrap();
        decoder.weights().map(|weight| values(&checkpoint, weight).unwrap()).collect::<Vec<_>>()
    };
    let expected = all_values(&published);
    let mut older = published.clone();
    for layer in 0..3 {
        let module = format!("model.layers.{layer}.attn");
        let mixes = older.taken(["r", "w", "k", "v", "a", "g"].map(|mix| format!("{module}.x_{mix}")));
        older.tensors.insert(format!("{module}.x_x"), (Dtype::BF16, vec![6, 64], mixes));
    }
    assert!(all_values(&older) == expected);
    let mut converted = published.clone();
    for (name, (_, shape, _)) in &mut converted.tensors {
        if ["k_k", "k_a", "g_norm.weight", "g_norm.bias"].iter().any(|part| name.ends_with(part)) {
            *shape = vec![4, 16];
        }
    }
    assert!(all_values(&converted) == expected);
    for (key, value) in [
        ("a_low_rank_dim", Value::Null),
        ("head_dim", Value::Null),
        ("num_heads", json!(7)),
        ("attn", json!(0)),
    ] {
        let changed = published.clone().set(key, value);
        assert_eq!(changed.decoder().is_ok(), key != "attn", "{key}");
    }
    let norms = |draft: Draft| draft.decoder().unwrap().embedding.norm.is_some();
    assert!(
        norms(published.clone().unset("norm_first")) && !norms(published.set("norm_first", json!(false)))
    );
}

#[test]
fn impossible_settings_are_rejected_by_name() {
    let cases = [
        ("mamba2", "num_heads", json!(7), ErrorKind::Corrupt),
        ("mamba2", "n_groups", json!(3), ErrorKind::Corrupt),
        ("mamba2", "conv_kernel", json!(1), ErrorKind::Corrupt),
        ("mamba2", "hidden_act", json!("mish"), ErrorKind::Unsupported),
        ("lfm2", "layer_types", json!(["conv", "conv", "sliding_attention", "conv"]), ErrorKind::Unsupported),
        ("lfm2", "conv_L_cache", json!(0), ErrorKind::Corrupt),
        ("rwkv7", "head_dim", json!(24), ErrorKind::Corrupt),
        ("rwkv7", "hidden_act", json!("relu"), ErrorKind::Unsupported),
        ("rwkv7", "value_dim", json!([64, 128, 64]), ErrorKind::Unsupported),
        ("rwkv7", "value_dim", json!(128), ErrorKind::Unsupported),
        ("rwkv7", "attn", json!({"layers": [1], "num_heads": 4}), ErrorKind::Unsupported),
        ("qwen3_next", "linear_num_value_heads", json!(3), ErrorKind::Corrupt),
        ("qwen3_next", "layer_types", json!(["linear_attention"]), ErrorKind::Corrupt),
        ("qwen3_next", "num_experts_per_tok", json!(7), ErrorKind::Corrupt),
    ];
    for (family, field, value, kind) in cases {
        let error = Draft::fixture(family).set(field, value.clone()).decoder().unwrap_err();
        assert_eq!((error.kind(), error.context("field")), (kind, Some(field)), "{family}, {value}: {error}");
    }
}
