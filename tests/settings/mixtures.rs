//! Settings of families with mixtures of experts.

use serde_json::{Value, json};

use super::draw::{Draft, HeadDim, Ropes};
use super::families::{FULL, SLIDING, exaone4, hunyuan, rotated};

pub(crate) fn afmoe(d: &mut Draft) {
    rotated(d);
    d.flags(&["attention_bias", "mup_enabled"]);
    d.one("sliding_window", &[1, 3, 7, 16, 30]);
    d.any("global_attn_every_n_layers", &[1, 2, 3]);
    d.layer_types(&[FULL, SLIDING]);
    d.one("num_dense_layers", &[0, 0, 1, 2]);
    d.experts(&["num_experts"]);
    let width = d.width();
    d.set("moe_intermediate_size", width);
    d.any("num_shared_experts", &[1, 2]);
    d.any("route_scale", &[1.0, 2.5, 0.7]);
    d.markers.push("model.layers.#.mlp.expert_bias".to_owned());
    d.expert_layout("model.layers.#.mlp");
}

pub(crate) fn dots1(d: &mut Draft) {
    rotated(d);
    d.flag("attention_bias");
    d.window("sliding_window");
    d.any("max_window_layers", &[0, 1, 2]);
    if d.config.get("sliding_window").is_some_and(Value::is_number) {
        d.layer_types(&[FULL, SLIDING]);
    }
    d.one("first_k_dense_replace", &[0, 0, 1, 2]);
    grouped_experts(d, "n_routed_experts", "n_shared_experts");
}

pub(crate) fn ernie4_5_moe(d: &mut Draft) {
    rotated(d);
    let count = d.random.pick(&[2, 3, 4, 6, 8]);
    let chosen = 1 + d.random.below(count.min(4));
    let key = d.random.pick(&["moe_num_experts", "num_experts"]);
    d.set(key, count);
    d.set("moe_k", chosen);
    let width = d.width();
    d.set("moe_intermediate_size", width);
    d.any("moe_num_shared_experts", &[0, 1, 2]);
    d.any("moe_layer_start_index", &[0, 1]);
    d.any("moe_layer_end_index", &[-1, 1, 2]);
    d.any("moe_layer_interval", &[1, 1, 2]);
    let module = d.random.pick(&["moe_statics", "gate.moe_statics"]);
    d.markers.push(format!("model.layers.#.mlp.{module}.e_score_correction_bias"));
    d.expert_layout("model.layers.#.mlp");
}

pub(crate) fn exaone_moe(d: &mut Draft) {
    exaone4(d);
    d.one("first_k_dense_replace", &[0, 0, 1, 2]);
    sparse_types(d);
    grouped_experts(d, "num_experts", "num_shared_experts");
}

pub(crate) fn glm4_moe(d: &mut Draft) {
    d.sizes(HeadDim::Free);
    d.rope(Ropes::All, Some("partial_rotary_factor"));
    d.usual();
    d.flags(&["attention_bias", "use_qk_norm"]);
    d.one("first_k_dense_replace", &[0, 0, 1, 2]);
    grouped_experts(d, "n_routed_experts", "n_shared_experts");
}

pub(crate) fn minimax_m2(d: &mut Draft) {
    d.sizes(HeadDim::Free);
    d.rope(Ropes::All, Some("partial_rotary_factor"));
    // Published files give the width of the rotated part instead of a fraction.
    let rotated = (d.head_dim() as f64 * d.config["partial_rotary_factor"].as_f64().unwrap()) as usize;
    if rotated.is_multiple_of(2) && d.random.one_in(2) {
        d.config.remove("partial_rotary_factor");
        d.set("rotary_dim", rotated);
    }
    d.usual();
    d.experts(&["num_local_experts", "num_experts"]);
    let module = d.random.pick(&["block_sparse_moe", "mlp"]);
    d.markers.push(format!("model.layers.#.{module}.gate.weight"));
    d.markers.push(format!("model.layers.#.{module}.e_score_correction_bias"));
    d.expert_layout(&format!("model.layers.#.{module}"));
}

pub(crate) fn hunyuan_v1_moe(d: &mut Draft) {
    hunyuan(d);
    d.experts(&["num_experts", "num_local_experts"]);
    let most = d.size("num_experts_per_tok");
    if d.random.one_in(2) {
        d.config.remove("num_experts_per_tok");
        let chosen: Vec<_> = (0..d.layers()).map(|_| 1 + d.random.below(most)).collect();
        d.set("moe_topk", chosen);
    }
    d.expert_layout("model.layers.#.mlp");
}

pub(crate) fn mimo_v2_flash(d: &mut Draft) {
    let (heads, kv_heads) = d.random.pick(&[(2, 1), (4, 1), (4, 2), (6, 1), (6, 3), (8, 2)]);
    d.sizes_of(heads, kv_heads, HeadDim::Free);
    d.usual();
    // The default is wider than what fixtures have.
    let dim = d.head_dim();
    d.set("head_dim", dim);
    let width = if d.packable { d.random.pick(&[32, 64]) } else { d.random.pick(&[1, 4, 6, 12, 40]) };
    d.set("v_head_dim", width);
    d.flag("attention_bias");
    d.any("attention_value_scale", &[json!(0.5), json!(1.3), Value::Null]);
    let key = d.random.pick(&["sliding_window", "sliding_window_size"]);
    d.one(key, &[1, 3, 7, 16, 30]);
    d.layer_types(&[FULL, SLIDING]);
    d.any("partial_rotary_factor", &[1.0, 0.5]);
    if dim < 6 {
        d.set("partial_rotary_factor", 1.0);
    }
    sparse_types(d);
    grouped_experts(d, "n_routed_experts", "n_shared_experts");
    d.config.remove("n_shared_experts");
}

pub(crate) fn step3p5(d: &mut Draft) {
    let (heads, kv_heads) = d.random.pick(&[(1, 1), (2, 1), (3, 3), (4, 2), (6, 2)]);
    d.sizes_of(heads, kv_heads, HeadDim::Free);
    let dim = d.head_dim();
    d.set("head_dim", dim);
    if d.random.one_in(2) {
        d.config.remove("num_key_value_heads");
        d.set("num_attention_groups", kv_heads);
    }
    d.usual();
    d.config.remove("hidden_act");
    d.flags(&["attention_bias", "mlp_bias", "use_head_wise_attn_gate", "norm_expert_weight"]);
    d.one("sliding_window", &[1, 3, 7, 16, 30]);
    let layers = d.layers();
    let types: Vec<_> = (0..layers).map(|_| d.random.pick(&[FULL, SLIDING])).collect();
    d.set("layer_types", types.clone());
    if d.random.one_in(2) {
        let groups = d.random.pick(&[1, 2, 3]);
        let heads = groups * d.random.pick(&[1, 2, 3]);
        let others = json!({"num_attention_heads": heads, "num_attention_groups": groups});
        d.set("attention_other_setting", others);
    }
    step_ropes(d, &types, dim);
    let count = d.random.pick(&[2, 3, 4, 6, 8]);
    let chosen = 1 + d.random.below(count.min(4));
    for (key, renamed, value) in
        [("moe_num_experts", "n_routed_experts", count), ("moe_top_k", "num_experts_per_tok", chosen)]
    {
        let key = d.random.pick(&[key, renamed]);
        d.set(key, value);
    }
    for key in ["moe_intermediate_size", "share_expert_dim"] {
        let width = d.width();
        d.set(key, width);
    }
    d.one("moe_router_scaling_factor", &[1.0, 3.0, 0.7]);
    sparse_types(d);
    if !d.config.contains_key("mlp_layer_types") {
        d.one("moe_layers_enum", &["", "0", "1,2", "0, 2,3,4"]);
    }
    for key in ["swiglu_limits", "swiglu_limits_shared"] {
        let limits = [json!(0.3), json!(1.5), json!(0), Value::Null];
        let limits: Vec<_> = (0..layers).map(|_| d.random.pick(&limits)).collect();
        if d.random.one_in(2) {
            d.set(key, limits);
        }
    }
    let converted = d.random.one_in(3);
    let markers: &[&str] = if converted {
        &["mlp.switch_mlp.gate_proj.weight", "mlp.switch_mlp.up_proj.weight", "mlp.gate.router_bias"]
    } else {
        &["moe.router_bias"]
    };
    d.markers.extend(markers.iter().map(|marker| format!("model.layers.#.{marker}")));
}

/// Rotary settings of layers of `types`, by lists or by the type of a layer.
fn step_ropes(d: &mut Draft, types: &[&str], dim: usize) {
    let thetas = [100.0, 10_000.0, 500_000.0];
    if d.random.one_in(3) {
        let mut rope = || {
            let mut settings = d.scaling(Ropes::All, dim / 2);
            settings.insert("rope_theta".to_owned(), d.random.pick(&thetas).into());
            settings
        };
        let ropes = json!({FULL: rope(), SLIDING: rope()});
        d.set("rope_parameters", ropes);
        return;
    }
    match d.random.below(3) {
        0 => d.one("rope_theta", &thetas),
        1 => {
            let by_type = [d.random.pick(&thetas), d.random.pick(&thetas)];
            d.set("rope_theta", by_layer(types, by_type));
        }
        _ => {}
    }
    if d.random.one_in(2) {
        let factors: &[f64] = if dim.is_multiple_of(4) { &[0.5, 1.0] } else { &[1.0] };
        let by_type = [d.random.pick(factors), d.random.pick(factors)];
        d.set("partial_rotary_factors", by_layer(types, by_type));
    } else {
        let scaling = d.scaling(Ropes::All, dim / 2);
        if !scaling.is_empty() {
            d.set("rope_scaling", scaling);
        }
        d.set("yarn_only_types", json!([FULL]));
    }
}

/// Of each layer the number of its type.
fn by_layer(types: &[&str], [full, sliding]: [f64; 2]) -> Vec<f64> {
    types.iter().map(|layer_type| if *layer_type == FULL { full } else { sliding }).collect()
}

pub(crate) fn llama4_text(d: &mut Draft) {
    rotated(d);
    d.flags(&["attention_bias", "use_qk_norm"]);
    let width = d.width();
    d.set("intermediate_size_mlp", width);
    d.experts(&["num_local_experts"]);
    if d.random.one_in(2) {
        let sparse: Vec<_> = (0..d.layers()).filter(|_| d.random.one_in(2)).collect();
        d.set("moe_layers", sparse);
    } else {
        d.any("interleave_moe_layer_step", &[1, 2, 3]);
    }
    if d.random.one_in(2) {
        let rotated: Vec<_> = (0..d.layers()).map(|_| d.random.below(2)).collect();
        d.set("no_rope_layers", rotated);
    }
    d.any("no_rope_layer_interval", &[1, 2, 3]);
    d.one("attention_chunk_size", &[1, 3, 7, 16, 30]);
    d.layer_types(&[FULL, "chunked_attention"]);
    d.flag("attn_temperature_tuning");
    d.one("floor_scale", &[1, 4, 15]);
    d.any("attn_scale", &[0.1, 0.5]);
    if d.random.one_in(2) {
        let name = d.random.pick(&["gate_up_proj", "gate_proj.weight"]);
        d.markers.push(format!("model.layers.#.feed_forward.experts.{name}"));
    }
}

pub(crate) fn phimoe(d: &mut Draft) {
    d.sizes(HeadDim::Free);
    d.rope(Ropes::LongRope, None);
    d.usual();
    for key in ["rope_parameters", "rope_scaling"] {
        if let Some(settings) = d.config.get_mut(key)
            && settings["rope_type"] == "longrope"
        {
            settings["short_mscale"] = d.random.pick(&[1.0, 0.8]).into();
            settings["long_mscale"] = d.random.pick(&[1.0, 1.3]).into();
            if d.random.one_in(2) {
                settings["original_max_position_embeddings"] = d.random.pick(&[16, 64]).into();
            }
        }
    }
    d.window("sliding_window");
    d.flags(&["attention_bias", "lm_head_bias"]);
    d.experts(&["num_local_experts"]);
    d.set("num_experts_per_tok", 2);
    d.any("router_jitter_noise", &[0.01, 0.4, 3.0]);
    let module = d.random.pick(&["block_sparse_moe.gate", "mlp.router", "mlp.gate"]);
    d.markers.push(format!("model.layers.#.{module}.weight"));
    let (module, _) = module.split_once('.').unwrap();
    d.expert_layout(&format!("model.layers.#.{module}"));
}

/// Granite's experts, under their published names or those of other families.
pub(crate) fn granite_experts(d: &mut Draft) {
    d.markers.push("model.layers.#.block_sparse_moe.router.layer.weight".to_owned());
    if d.random.one_in(2) {
        d.markers.push("model.layers.#.block_sparse_moe.input_linear.weight".to_owned());
    } else {
        d.expert_layout("model.layers.#.block_sparse_moe");
    }
}

/// Which layers have experts, by a list, in half of all cases.
pub(crate) fn sparse_types(d: &mut Draft) {
    if d.random.one_in(2) {
        let types: Vec<_> = (0..d.layers()).map(|_| d.random.pick(&["sparse", "dense"])).collect();
        d.set("mlp_layer_types", types);
    }
}

/// A router by sigmoids, with groups of experts, and shared experts.
pub(crate) fn grouped_experts(d: &mut Draft, count_key: &str, shared_key: &str) {
    let (count, groups) = d.random.pick(&[(2, 1), (4, 2), (6, 3), (8, 2), (8, 4), (5, 1)]);
    let kept = 1 + d.random.below(groups);
    let chosen = 1 + d.random.below((kept * (count / groups)).min(4));
    d.set(count_key, count);
    d.set("n_group", groups);
    d.set("topk_group", kept);
    d.set("num_experts_per_tok", chosen);
    d.one(shared_key, &[json!(1), json!(2)]);
    let width = d.width();
    d.set("moe_intermediate_size", width);
    d.flag("norm_topk_prob");
    d.any("routed_scaling_factor", &[1.0, 2.5, 0.7]);
    let module = d.random.pick(&["mlp.gate", "mlp"]);
    d.markers.push(format!("model.layers.#.{module}.e_score_correction_bias"));
    d.expert_layout("model.layers.#.mlp");
}
