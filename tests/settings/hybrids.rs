//! Settings of families whose layers keep states of fixed size, or convolutions, beside attention.

use serde_json::json;

use super::draw::{ACTIVATIONS, Draft, HeadDim, Ropes};
use super::families::{FULL, SLIDING, layer_ropes, multipliers, rotated, shared_width, sparse};
use super::mixtures::{granite_experts, grouped_experts};

pub(crate) const LINEAR: &str = "linear_attention";

pub(crate) fn bamba(d: &mut Draft) {
    d.sizes(HeadDim::Free);
    d.rope(Ropes::All, Some("partial_rotary_factor"));
    // The key counts inside of the rotary settings alone.
    let factor = d.config.remove("partial_rotary_factor").unwrap();
    for key in ["rope_parameters", "rope_scaling"] {
        if let Some(settings) = d.config.get_mut(key) {
            settings["partial_rotary_factor"] = factor.clone();
        }
    }
    d.any("partial_rotary_factor", &[0.25, 1.0]);
    d.usual();
    d.flags(&["attention_bias", "mlp_bias"]);
    state_space(d);
    let attending: Vec<_> = (0..d.layers()).filter(|_| d.random.one_in(2)).collect();
    d.set("attn_layer_indices", attending);
}

pub(crate) fn granitemoehybrid(d: &mut Draft) {
    rotated(d);
    d.any("position_embedding_type", &["rope", "nope"]);
    d.flag("attention_bias");
    multipliers(d);
    state_space(d);
    if d.random.one_in(2) {
        let types: Vec<_> = (0..d.layers()).map(|_| d.random.pick(&["mamba", "attention"])).collect();
        d.set("layers_block_type", types);
    } else {
        d.layer_types(&[FULL, LINEAR]);
    }
    d.experts(&["num_local_experts"]);
    if d.random.one_in(3) {
        d.set("num_local_experts", 0);
    }
    let width = d.width();
    d.set("shared_intermediate_size", width);
    if d.random.one_in(3) {
        d.markers.push("model.layers.#.mlp.gate_proj.weight".to_owned());
    }
    granite_experts(d);
}

pub(crate) fn falcon_h1(d: &mut Draft) {
    rotated(d);
    d.flags(&["attention_bias", "mlp_bias", "projectors_bias", "mamba_rms_norm", "mamba_norm_before_gate"]);
    state_space(d);
    // The width of all heads goes before the factor.
    let inner = d.size("mamba_expand") * d.size("hidden_size");
    d.one("mamba_d_ssm", &[json!(inner), json!(null)]);
    for key in [
        "ssm_in_multiplier",
        "ssm_out_multiplier",
        "attention_in_multiplier",
        "attention_out_multiplier",
        "key_multiplier",
        "embedding_multiplier",
        "lm_head_multiplier",
    ] {
        d.any(key, &[1.0, 0.4, 1.6]);
    }
    d.any("mlp_multipliers", &[json!([1.0, 0.5]), json!([0.7, 1.3])]);
    d.any("ssm_multipliers", &[json!([1.0, 1.0, 1.0, 1.0, 2.0]), json!([0.7, 1.3, 0.5, 2.0, 0.9])]);
}

pub(crate) fn jamba(d: &mut Draft) {
    d.sizes(HeadDim::Derived);
    d.usual();
    let period = d.random.pick(&[1, 2, 3]);
    d.set("attn_layer_period", period);
    let offset = d.random.below(period);
    d.set("attn_layer_offset", offset);
    d.experts(&["num_experts", "num_local_experts"]);
    if d.random.one_in(4) {
        d.config.remove("num_local_experts");
        d.set("num_experts", 1);
        d.set("num_experts_per_tok", 1);
    }
    let period = d.random.pick(&[1, 2, 3]);
    d.set("expert_layer_period", period);
    let offset = d.random.below(period);
    d.set("expert_layer_offset", offset);
    d.any("mamba_expand", &[1, 2, 3]);
    d.one("mamba_d_state", &[2, 5, 8, 16]);
    d.any("mamba_d_conv", &[2, 3, 4]);
    let rank = if d.packable { 32 } else { d.random.pick(&[1, 3, 8]) };
    d.one("mamba_dt_rank", &[json!(rank), json!("auto")]);
    if d.packable {
        d.set("mamba_dt_rank", rank);
    }
    d.flags(&["mamba_proj_bias", "mamba_conv_bias"]);
    d.expert_layout("model.layers.#.feed_forward");
}

pub(crate) fn olmo_hybrid(d: &mut Draft) {
    rotated(d);
    d.flags(&["attention_bias", "linear_allow_neg_eigval"]);
    if d.random.one_in(3) {
        for key in ["rope_parameters", "rope_scaling"] {
            d.config.remove(key);
        }
        d.set("rope_theta", json!(null));
    }
    d.layer_types(&[FULL, LINEAR]);
    let keys = d.random.pick(&[1, 2, 3]);
    d.set("linear_num_key_heads", keys);
    let values = keys * d.random.pick(&[1, 2, 3]);
    d.set("linear_num_value_heads", values);
    let dims: &[usize] = if d.packable { &[32, 64] } else { &[2, 4, 8, 12, 20] };
    d.any("linear_key_head_dim", dims);
    if !d.config.contains_key("linear_key_head_dim") {
        let least = d.size("hidden_size").max(2 * keys);
        d.set("linear_key_head_dim", least / (2 * keys));
    }
    d.any("linear_value_head_dim", dims);
    d.any("linear_conv_kernel_dim", &[2, 3, 4]);
    for names in [["attention_layer_norm", "feedforward_layer_norm"], ["conv1d", "conv1d"]] {
        if d.random.one_in(2) {
            let within = if names[0] == "conv1d" { "linear_attn." } else { "" };
            d.markers.extend(names.map(|name| format!("model.layers.#.{within}{name}.weight")));
        }
    }
}

/// A state space in the keys that hybrids have. Its heads are `mamba_expand` times as wide as the stream.
fn state_space(d: &mut Draft) {
    let expand = d.random.pick(&[1, 2]);
    let inner = expand * d.size("hidden_size");
    let dividing =
        |number: usize| (1..=16).filter(move |part| number.is_multiple_of(*part)).collect::<Vec<_>>();
    let heads = d.random.pick(&dividing(inner));
    let groups = d.random.pick(&dividing(heads));
    d.set("mamba_expand", expand);
    d.set("mamba_n_heads", heads);
    d.set("mamba_n_groups", groups);
    d.any("mamba_d_head", &[json!("auto"), json!(inner / heads)]);
    d.one("mamba_d_state", &[2, 8, 16, 20]);
    d.any("mamba_d_conv", &[2, 3, 4]);
    d.any("time_step_limit", &[json!([0.0, 1.0]), json!([0.01, 0.5])]);
    d.flags(&["mamba_proj_bias", "mamba_conv_bias"]);
}

pub(crate) fn lfm2(d: &mut Draft) {
    convolutions(d);
    if d.random.one_in(2) {
        d.set("block_auto_adjust_ff_dim", false);
    } else {
        d.one("block_multiple_of", &[8, 32]);
        d.any("block_ffn_dim_multiplier", &[1.0, 1.3]);
    }
    if d.size("intermediate_size") < 8 {
        d.set("intermediate_size", 24);
    }
}

pub(crate) fn lfm2_moe(d: &mut Draft) {
    convolutions(d);
    d.one("num_dense_layers", &[0, 0, 1, 2]);
    d.experts(&["num_experts"]);
    let width = d.width();
    d.set("moe_intermediate_size", width);
    d.flags(&["use_expert_bias", "norm_topk_prob"]);
    d.any("routed_scaling_factor", &[1.0, 2.5, 0.7]);
    d.expert_layout("model.layers.#.feed_forward");
}

pub(crate) fn lfm3(d: &mut Draft) {
    d.sizes(HeadDim::Free);
    let dim = d.head_dim();
    d.set("head_dim", dim);
    layer_ropes(d);
    d.any("norm_eps", &[1e-6, 1e-5, 1e-3]);
    d.flags(&[
        "conv_bias",
        "tie_word_embeddings",
        "attention_bias",
        "use_sandwich_norm",
        "use_attention_gate",
    ]);
    d.any("conv_L_cache", &[2, 3, 5, 7]);
    d.one("sliding_window", &[1, 3, 7, 16, 30]);
    d.layer_types(&[FULL, SLIDING, "conv"]);
    let name = d.random.pick(&["g_proj", "gate_proj"]);
    d.markers.push(format!("model.layers.#.self_attn.{name}.weight"));
}

/// LFM2's attention and short convolutions.
fn convolutions(d: &mut Draft) {
    d.sizes(HeadDim::Derived);
    d.rope(Ropes::All, None);
    d.any("norm_eps", &[1e-6, 1e-5, 1e-3]);
    d.flags(&["conv_bias", "tie_word_embeddings"]);
    d.any("conv_L_cache", &[2, 3, 5]);
    d.layer_types(&[FULL, "conv"]);
    if !d.config.contains_key("layer_types") {
        let attending: Vec<_> = (0..d.layers()).filter(|_| d.random.one_in(2)).collect();
        d.set("full_attn_idxs", attending);
    }
}

pub(crate) fn mamba2(d: &mut Draft) {
    let groups = d.random.pick(&[1, 1, 2, 3]);
    let heads = groups * d.random.pick(&[1, 2, 4]);
    let expand = d.random.pick(&[1, 2]);
    let dim = expand * if d.packable { 32 } else { d.random.pick(&[2, 4, 8, 12]) };
    d.layers_and_vocabulary();
    d.set("num_heads", heads);
    d.set("head_dim", dim);
    d.set("expand", expand);
    d.set("hidden_size", heads * dim / expand);
    d.set("n_groups", groups);
    d.one("state_size", &[2, 8, 16, 20]);
    d.any("conv_kernel", &[2, 3, 4]);
    d.any("hidden_act", &ACTIVATIONS);
    d.any("layer_norm_epsilon", &[1e-6, 1e-5, 1e-3]);
    d.any("time_step_limit", &[json!([0.0, 1.0]), json!([0.01, 0.5])]);
    d.flags(&["use_bias", "use_conv_bias", "tie_word_embeddings"]);
}

pub(crate) fn nemotron_h(d: &mut Draft) {
    d.sizes(HeadDim::Free);
    d.any("layer_norm_epsilon", &[1e-6, 1e-5, 1e-3]);
    d.flags(&["tie_word_embeddings", "mlp_bias", "use_bias"]);
    let kinds: Vec<_> = (0..d.layers()).map(|_| d.random.below(4)).collect();
    let named = |names: [&'static str; 4]| kinds.iter().map(|&kind| names[kind]).collect::<Vec<_>>();
    if d.random.one_in(2) {
        d.set("hybrid_override_pattern", named(["M", "*", "-", "E"]).concat());
    } else {
        let attention = d.random.pick(&["attention", FULL]);
        d.set("layers_block_type", named(["mamba", attention, "mlp", "moe"]));
    }
    if kinds.contains(&3) {
        d.any("mlp_hidden_act", &["relu2"]);
    } else {
        d.any("mlp_hidden_act", &ACTIVATIONS);
    }
    let groups = d.random.pick(&[1, 1, 2, 3]);
    let heads = groups * d.random.pick(&[1, 2, 4]);
    d.set("mamba_num_heads", heads);
    d.one("mamba_head_dim", if d.packable { &[32, 64] } else { &[4, 12] });
    let key = d.random.pick(&["n_groups", "mamba_n_groups"]);
    d.set(key, groups);
    d.one("ssm_state_size", &[2, 8, 16, 20]);
    let key = d.random.pick(&["conv_kernel", "mamba_d_conv"]);
    d.any(key, &[2, 3, 4]);
    let key = d.random.pick(&["use_conv_bias", "mamba_conv_bias"]);
    d.flag(key);
    d.any("mamba_hidden_act", &ACTIVATIONS);
    d.any("time_step_min", &[0.001, 0.05]);
    grouped_experts(d, "n_routed_experts", "n_shared_experts");
    d.markers.clear();
    d.markers.push("backbone.layers.#.mixer.gate.e_score_correction_bias".to_owned());
    match d.random.below(3) {
        0 => d.markers.push("backbone.layers.#.mixer.experts.up_proj".to_owned()),
        1 => d.markers.push("backbone.layers.#.mixer.switch_mlp.fc1.weight".to_owned()),
        _ => {}
    }
    let width = d.width();
    d.set("moe_shared_expert_intermediate_size", width);
}

pub(crate) fn rwkv7(d: &mut Draft) {
    let heads = d.random.pick(&[1, 2, 3, 4]);
    let dim = if d.packable { d.random.pick(&[32, 64]) } else { d.random.pick(&[4, 8, 12, 20]) };
    let hidden = heads * dim;
    d.layers_and_vocabulary();
    d.set("hidden_size", hidden);
    if d.random.one_in(3) {
        d.set("head_dim", json!(null));
        d.set("num_heads", heads);
    } else {
        d.set("head_dim", dim);
    }
    if d.random.one_in(2) {
        let width = d.width();
        d.set("intermediate_size", width);
    } else {
        d.any("hidden_ratio", &[json!(2), json!(3.5), json!(null)]);
    }
    for key in ["decay_low_rank_dim", "gate_low_rank_dim", "a_low_rank_dim", "v_low_rank_dim"] {
        d.one(key, if d.packable { &[32, 64] } else { &[1, 3, 8] });
    }
    d.any("norm_eps", &[1e-6, 1e-5, 1e-3]);
    d.any("hidden_act", &["sqrelu"]);
    let widths = vec![hidden; d.layers()];
    d.any("value_dim", &[json!(hidden), json!(widths), json!(null)]);
    d.any("attn", &[json!(null)]);
    d.flags(&["norm_first", "norm_bias", "tie_word_embeddings"]);
    if d.random.one_in(3) {
        d.markers.push("model.layers.#.attn.x_x".to_owned());
    }
}

pub(crate) fn qwen3_next(d: &mut Draft) {
    gated_delta_rule(d);
    d.flag("norm_topk_prob");
    sparse(d);
    shared_width(d);
}

pub(crate) fn qwen3_5_text(d: &mut Draft) {
    gated_delta_rule(d);
}

pub(crate) fn qwen3_5_moe_text(d: &mut Draft) {
    gated_delta_rule(d);
    d.experts(&["num_experts"]);
    let width = d.width();
    d.set("moe_intermediate_size", width);
    shared_width(d);
    d.expert_layout("model.layers.#.mlp");
}

/// Qwen3-Next's gated attention and delta rule.
fn gated_delta_rule(d: &mut Draft) {
    d.sizes(HeadDim::Free);
    d.set("head_dim", d.head_dim());
    d.rope(Ropes::All, Some("partial_rotary_factor"));
    d.usual();
    d.flag("attention_bias");
    let keys = d.random.pick(&[1, 2, 3]);
    let values = keys * d.random.pick(&[1, 2]);
    d.set("linear_num_key_heads", keys);
    d.set("linear_num_value_heads", values);
    let dims: &[usize] = if d.packable { &[32, 64] } else { &[2, 4, 8, 12] };
    d.one("linear_key_head_dim", dims);
    d.one("linear_value_head_dim", dims);
    d.any("linear_conv_kernel_dim", &[2, 3, 4]);
    d.any("full_attention_interval", &[1, 2, 3]);
    d.layer_types(&[FULL, LINEAR]);
}
