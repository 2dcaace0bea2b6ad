//! Settings of families whose experts are beside attention with windows, most of them routed by sigmoids.

use serde_json::{Value, json};

use super::draw::{Draft, HeadDim};
use super::families::{FULL, SLIDING, layer_ropes, rotated, shared_width, sparse, windows};
use super::mixtures::sparse_types;

/// Experts of a width of their own, in modules `mlp`.
fn experts(d: &mut Draft, keys: &[&str]) {
    d.experts(keys);
    let width = d.width();
    d.set("moe_intermediate_size", width);
    d.expert_layout("model.layers.#.mlp");
}

/// One of these names for a tensor of each layer.
fn named(d: &mut Draft, names: &[&str]) {
    let name = d.random.pick(names);
    d.markers.push(format!("model.layers.#.{name}"));
}

pub(crate) fn cohere2_moe(d: &mut Draft) {
    rotated(d);
    windows(d);
    d.any("layer_norm_eps", &[1e-6, 1e-5, 1e-3]);
    d.flags(&["attention_bias", "norm_topk_prob"]);
    d.any("logit_scale", &[0.0625, 1.0, 0.3]);
    d.any("sliding_window_pattern", &[1, 2, 3]);
    d.any("prefix_dense_sliding_window_pattern", &[1, 2]);
    d.any("first_k_dense_replace", &[0, 1]);
    sparse_types(d);
    d.experts(&["num_experts"]);
    d.expert_layout("model.layers.#.mlp");
    d.any("num_shared_experts", &[0, 1, 2]);
    d.any("shared_expert_combination_strategy", &["average", "sum"]);
    d.any("expert_selection_fn", &["softmax", "sigmoid"]);
    let width = d.width();
    d.any("prefix_dense_intermediate_size", &[json!(width), Value::Null]);
}

pub(crate) fn flint(d: &mut Draft) {
    rotated(d);
    windows(d);
    d.flags(&["attention_bias", "norm_topk_prob"]);
    sparse(d);
    shared_width(d);
    named(d, &["self_attn.sinks", "self_attn.softmax_offset"]);
}

pub(crate) fn hy_v3(d: &mut Draft) {
    rotated(d);
    d.flags(&["attention_bias", "mlp_bias"]);
    experts(d, &["num_experts", "num_local_experts"]);
    d.any("num_shared_experts", &[1, 2]);
    d.any("router_scaling_factor", &[1.0, 2.5, 0.7]);
    sparse_types(d);
    named(d, &["mlp.gate.weight", "mlp.router.gate.weight"]);
    named(d, &["mlp.e_score_correction_bias", "mlp.expert_bias"]);
    named(d, &["mlp.shared_experts.up_proj.weight", "mlp.shared_mlp.up_proj.weight"]);
}

pub(crate) fn kolibri1(d: &mut Draft) {
    rotated(d);
    windows(d);
    experts(d, &["num_experts"]);
    shared_width(d);
    d.flag("norm_topk_prob");
    named(d, &["mlp.gate.e_score_correction_bias", "moe.router.expert_bias"]);
    named(d, &["post_self_attn_layernorm.weight", "post_attn_norm.weight"]);
}

pub(crate) fn laguna(d: &mut Draft) {
    let (heads, kv_heads) = d.random.pick(&[(1, 1), (2, 1), (3, 3), (4, 2), (6, 2)]);
    d.sizes_of(heads, kv_heads, HeadDim::Free);
    let dim = d.head_dim();
    d.set("head_dim", dim);
    d.usual();
    windows(d);
    if d.random.one_in(2) {
        let heads: Vec<_> = (0..d.layers()).map(|_| kv_heads * d.random.pick(&[1, 2, 3])).collect();
        d.set("num_attention_heads_per_layer", heads);
    }
    partial_ropes(d);
    d.flag("attention_bias");
    d.any("gating", &[json!(true), json!("per-head"), json!("per-element")]);
    experts(d, &["num_experts"]);
    shared_width(d);
    d.any("moe_routed_scaling_factor", &[1.0, 2.5, 0.7]);
    sparse_types(d);
    named(d, &["mlp.gate.e_score_correction_bias", "mlp.experts.e_score_correction_bias"]);
    named(d, &["mlp.shared_experts.up_proj.weight", "mlp.shared_expert.up_proj.weight"]);
}

pub(crate) fn mellum(d: &mut Draft) {
    d.sizes(HeadDim::Free);
    let dim = d.head_dim();
    d.set("head_dim", dim);
    d.usual();
    windows(d);
    layer_ropes(d);
    d.flags(&["attention_bias", "norm_topk_prob"]);
    experts(d, &["num_local_experts", "num_experts"]);
    sparse_types(d);
}

/// Rotary settings for each type of layer, perhaps of parts of heads.
fn partial_ropes(d: &mut Draft) {
    layer_ropes(d);
    if !d.head_dim().is_multiple_of(4) {
        return;
    }
    for layer_type in [FULL, SLIDING] {
        let part = d.random.pick(&[json!(0.5), json!(1.0)]);
        if let Some(settings) = d.config.get_mut("rope_parameters").map(|all| &mut all[layer_type])
            && settings["rope_type"] != "longrope"
            && d.random.one_in(2)
        {
            settings["partial_rotary_factor"] = part;
        }
    }
}
