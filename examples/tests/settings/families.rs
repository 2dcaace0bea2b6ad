//! The settings of each family that its reference implementation reads: an entry for each `model_type`.

use serde_json::{Value, json};

use super::draw::{ACTIVATIONS, Draft, HeadDim, Ropes};

/// Draws the settings of a family.
type Settings = fn(&mut Draft);

const FULL: &str = "full_attention";
const SLIDING: &str = "sliding_attention";

/// Every family, by `model_type`.
pub(crate) const FAMILIES: &[(&str, Settings)] = &[
    ("cohere2", cohere2),
    ("deepseek_v3", deepseek_v3),
    ("ernie4_5", |d| {
        rotated(d);
        d.flag("use_bias");
    }),
    ("exaone4", exaone4),
    ("gemma", |d| {
        rotated(d);
        d.flag("attention_bias");
    }),
    ("gemma2", gemma2),
    ("gemma3_text", gemma3_text),
    ("glm4", |d| {
        d.sizes(HeadDim::Free);
        d.rope(Ropes::All, Some("partial_rotary_factor"));
        d.usual();
        d.flag("attention_bias");
    }),
    ("glm4_moe", glm4_moe),
    ("gpt2", gpt2),
    ("gpt_neox", gpt_neox),
    ("gpt_oss", gpt_oss),
    ("granite", |d| {
        rotated(d);
        d.flags(&["attention_bias", "mlp_bias"]);
        multipliers(d);
    }),
    ("granitemoe", |d| {
        rotated(d);
        d.flag("attention_bias");
        d.experts(&["num_local_experts"]);
        multipliers(d);
        d.markers.push("model.layers.#.block_sparse_moe.router.layer.weight".to_owned());
        if d.random.one_in(2) {
            d.markers.push("model.layers.#.block_sparse_moe.input_linear.weight".to_owned());
        } else {
            d.expert_layout("model.layers.#.block_sparse_moe");
        }
    }),
    ("lfm2", lfm2),
    ("llama", |d| {
        rotated(d);
        d.flags(&["attention_bias", "mlp_bias"]);
    }),
    ("mamba2", mamba2),
    ("ministral3", ministral3),
    ("mistral", |d| {
        rotated(d);
        d.window("sliding_window");
    }),
    ("mixtral", |d| {
        rotated(d);
        d.window("sliding_window");
        d.experts(&["num_local_experts", "num_experts"]);
        let module = d.random.pick(&["block_sparse_moe", "mlp"]);
        d.markers.push(format!("model.layers.#.{module}.gate.weight"));
        d.expert_layout(&format!("model.layers.#.{module}"));
    }),
    ("nemotron", |d| {
        d.sizes(HeadDim::Free);
        d.rope(Ropes::All, Some("partial_rotary_factor"));
        d.usual();
        d.any("norm_eps", &[1e-6, 1e-5, 1e-3]);
        d.flags(&["attention_bias", "mlp_bias"]);
    }),
    ("olmo2", |d| {
        rotated(d);
        d.flag("attention_bias");
    }),
    ("olmo3", |d| {
        d.sizes(HeadDim::Free);
        d.usual();
        d.any("rope_theta", &[json!(10_000.0), json!(500_000)]);
        d.flag("attention_bias");
        d.one("sliding_window", &[1, 3, 7, 16, 30]);
        d.layer_types(&[FULL, SLIDING]);
        layer_ropes(d);
    }),
    ("olmoe", |d| {
        rotated(d);
        d.flags(&["attention_bias", "norm_topk_prob"]);
        d.any("clip_qkv", &[json!(0.4), json!(2.5), Value::Null]);
        d.experts(&["num_experts", "num_local_experts"]);
        d.expert_layout("model.layers.#.mlp");
    }),
    ("phi3", |d| {
        d.sizes(HeadDim::Derived);
        d.rope(Ropes::LongRope, Some("partial_rotary_factor"));
        d.usual();
        d.window("sliding_window");
    }),
    ("qwen2", |d| {
        rotated(d);
        qwen_windows(d);
    }),
    ("qwen2_moe", |d| {
        rotated(d);
        d.flags(&["qkv_bias", "norm_topk_prob"]);
        sparse(d);
        shared_width(d);
        let windowed = d.random.one_in(2);
        d.set("use_sliding_window", windowed);
        if windowed {
            d.window("sliding_window");
            d.any("max_window_layers", &[0, 1, 2]);
            d.layer_types(&[FULL, SLIDING]);
        }
    }),
    ("qwen3", |d| {
        rotated(d);
        qwen_windows(d);
        d.flag("attention_bias");
    }),
    ("qwen3_moe", |d| {
        rotated(d);
        d.flags(&["attention_bias", "norm_topk_prob"]);
        sparse(d);
        d.flag("use_sliding_window");
        d.window("sliding_window");
    }),
    ("qwen3_next", qwen3_next),
    ("seed_oss", |d| {
        rotated(d);
        d.flags(&["attention_bias", "attention_out_bias", "mlp_bias"]);
    }),
    ("smollm3", smollm3),
    ("stablelm", |d| {
        d.sizes(HeadDim::Derived);
        d.rope(Ropes::All, Some("partial_rotary_factor"));
        d.usual();
        d.any("layer_norm_eps", &[1e-6, 1e-5, 1e-3]);
        d.flags(&["use_qkv_bias", "qk_layernorm", "use_parallel_residual"]);
    }),
    ("starcoder2", |d| {
        rotated(d);
        d.any("norm_epsilon", &[1e-6, 1e-5, 1e-3]);
        d.flag("use_bias");
        d.window("sliding_window");
    }),
];

/// Families whose settings are not searched yet: they were tried with three settings each, against transformers. An entry above moves one
/// out of here.
pub(crate) const UNSEARCHED: &[&str] = &[
    "afmoe",
    "arcee",
    "bamba",
    "deepseek_v2",
    "dots1",
    "ernie4_5_moe",
    "exaone_moe",
    "glm4_moe_lite",
    "granitemoehybrid",
    "lfm2_moe",
    "minicpm3",
    "minimax_m2",
    "mistral4",
    "nemotron_h",
    "qwen3_5_moe_text",
    "qwen3_5_text",
    "solar_open",
];

/// What most families have: sizes, one rotary embedding of whole heads, and the usual settings.
fn rotated(d: &mut Draft) {
    d.sizes(HeadDim::Free);
    d.rope(Ropes::All, None);
    d.usual();
}

fn cohere2(d: &mut Draft) {
    rotated(d);
    d.any("layer_norm_eps", &[1e-6, 1e-5, 1e-3]);
    d.flag("attention_bias");
    d.one("sliding_window", &[1, 3, 7, 16, 30]);
    d.any("sliding_window_pattern", &[1, 2, 3]);
    d.layer_types(&[FULL, SLIDING]);
    d.any("logit_scale", &[0.0625, 1.0, 0.3]);
}

fn deepseek_v3(d: &mut Draft) {
    let heads = d.random.pick(&[1, 2, 3, 4]);
    d.sizes_of(heads, heads, HeadDim::Derived);
    let packable = d.packable;
    for (key, values, packed) in [
        ("qk_nope_head_dim", [2, 8, 12, 24], [32, 64, 32, 64]),
        ("qk_rope_head_dim", [2, 4, 8, 16], [32, 8, 16, 64]),
        ("v_head_dim", [4, 8, 10, 24], [32, 64, 32, 64]),
        ("kv_lora_rank", [5, 12, 16, 40], [64, 32, 96, 64]),
    ] {
        d.one(key, if packable { &packed } else { &values });
    }
    d.one("q_lora_rank", &[json!(if packable { 64 } else { 10 }), json!(32), Value::Null]);
    let rope_dim = d.size("qk_rope_head_dim");
    // Rotary settings are of a part of heads, which other families do not know.
    d.set("head_dim", rope_dim);
    d.rope(Ropes::All, None);
    d.flag("rope_interleave");
    d.usual();
    d.flag("attention_bias");
    if d.random.one_in(3) {
        d.markers.push("model.layers.#.self_attn.embed_q.weight".to_owned());
    }
    d.one("first_k_dense_replace", &[0, 0, 1, 2]);
    grouped_experts(d);
}

/// A router by sigmoids, with groups of experts, and shared experts.
fn grouped_experts(d: &mut Draft) {
    let (count, groups) = d.random.pick(&[(2, 1), (4, 2), (6, 3), (8, 2), (8, 4), (5, 1)]);
    let kept = 1 + d.random.below(groups);
    let chosen = 1 + d.random.below((kept * (count / groups)).min(4));
    d.set("n_routed_experts", count);
    d.set("n_group", groups);
    d.set("topk_group", kept);
    d.set("num_experts_per_tok", chosen);
    d.one("n_shared_experts", &[json!(1), json!(2)]);
    let width = d.width();
    d.set("moe_intermediate_size", width);
    d.flag("norm_topk_prob");
    d.any("routed_scaling_factor", &[1.0, 2.5, 0.7]);
    d.markers.push("model.layers.#.mlp.gate.e_score_correction_bias".to_owned());
    d.expert_layout("model.layers.#.mlp");
}

fn exaone4(d: &mut Draft) {
    rotated(d);
    d.window("sliding_window");
    if d.config.get("sliding_window").is_some_and(Value::is_number) {
        d.any("sliding_window_pattern", &[1, 2, 3]);
        d.layer_types(&[FULL, SLIDING]);
    }
}

fn gemma2(d: &mut Draft) {
    rotated(d);
    d.any("hidden_activation", &ACTIVATIONS);
    d.flag("attention_bias");
    d.any("query_pre_attn_scalar", &[json!(4), json!(64), json!(144.5)]);
    d.any("attn_logit_softcapping", &[json!(2.0), json!(50.0), Value::Null]);
    d.any("final_logit_softcapping", &[json!(3.0), json!(30.0), Value::Null]);
    d.one("sliding_window", &[1, 3, 7, 16, 30]);
    d.layer_types(&[FULL, SLIDING]);
}

fn gemma3_text(d: &mut Draft) {
    d.sizes(HeadDim::Free);
    d.usual();
    d.any("hidden_activation", &ACTIVATIONS);
    d.flag("attention_bias");
    d.any("query_pre_attn_scalar", &[json!(4), json!(64), json!(144.5)]);
    d.any("final_logit_softcapping", &[json!(3.0), json!(30.0), Value::Null]);
    d.one("sliding_window", &[1, 3, 7, 16, 30]);
    d.any("sliding_window_pattern", &[1, 2, 3]);
    d.layer_types(&[FULL, SLIDING]);
    if d.random.one_in(2) {
        d.any("rope_theta", &[json!(10_000.0), json!(1e6)]);
        d.any("rope_local_base_freq", &[json!(100.0), json!(10_000.0)]);
        if d.random.one_in(2) {
            d.set("rope_scaling", json!({"rope_type": "linear", "factor": 8.0}));
        }
    } else {
        layer_ropes(d);
    }
}

/// Rotary settings for each type of layer.
fn layer_ropes(d: &mut Draft) {
    if d.random.one_in(2) {
        return;
    }
    let pairs = d.head_dim() / 2;
    let mut of_type = || {
        let mut settings = d.scaling(Ropes::All, pairs);
        // Both sets of frequencies would change with the length; no published model has that.
        if settings.get("rope_type") == Some(&json!("longrope")) {
            settings.clear();
        }
        settings.entry("rope_type").or_insert_with(|| json!("default"));
        settings.insert("rope_theta".to_owned(), d.random.pick(&[json!(100.0), json!(10_000.0), json!(1e6)]));
        settings
    };
    let (full, sliding) = (of_type(), of_type());
    d.set("rope_parameters", json!({FULL: full, SLIDING: sliding}));
}

fn glm4_moe(d: &mut Draft) {
    d.sizes(HeadDim::Free);
    d.rope(Ropes::All, Some("partial_rotary_factor"));
    d.usual();
    d.flags(&["attention_bias", "use_qk_norm"]);
    d.one("first_k_dense_replace", &[0, 0, 1, 2]);
    grouped_experts(d);
}

fn gpt2(d: &mut Draft) {
    let heads = d.random.pick(&[1, 2, 3, 4, 6]);
    let dim = d.random.pick(&[2, 4, 5, 9, 16, 32]);
    d.set("n_embd", heads * dim);
    d.set("n_head", heads);
    d.one("n_layer", &[1, 2, 3, 5]);
    d.one("vocab_size", &[33, 72, 257]);
    d.one("n_positions", &[64, 96, 200]);
    let width = d.width();
    d.one("n_inner", &[json!(width), Value::Null]);
    d.any("activation_function", &ACTIVATIONS);
    d.any("layer_norm_epsilon", &[1e-6, 1e-5, 1e-3]);
    d.flags(&["tie_word_embeddings", "scale_attn_weights", "scale_attn_by_inverse_layer_idx"]);
}

fn gpt_neox(d: &mut Draft) {
    let heads = d.random.pick(&[1, 2, 3, 4, 6]);
    d.sizes_of(heads, heads, HeadDim::Derived);
    d.rope(Ropes::All, Some("rotary_pct"));
    if let Some(theta) = d.config.remove("rope_theta") {
        d.set("rotary_emb_base", theta);
    }
    d.any("hidden_act", &ACTIVATIONS);
    d.any("layer_norm_eps", &[1e-6, 1e-5, 1e-3]);
    d.flags(&["tie_word_embeddings", "attention_bias", "use_parallel_residual"]);
    if d.random.one_in(2) {
        d.markers.push("embed_out.weight".to_owned());
    }
}

fn gpt_oss(d: &mut Draft) {
    rotated(d);
    d.config.remove("hidden_act");
    d.flag("attention_bias");
    d.one("sliding_window", &[1, 3, 7, 16, 30]);
    d.layer_types(&[FULL, SLIDING]);
    d.any("swiglu_limit", &[0.5, 7.0]);
    d.experts(&["num_local_experts", "num_experts"]);
    if d.random.one_in(2) {
        d.markers.push("model.layers.#.mlp.experts.gate_up_proj".to_owned());
    }
}

/// Granite's factors.
fn multipliers(d: &mut Draft) {
    d.any("embedding_multiplier", &[0.5, 12.0]);
    d.any("logits_scaling", &[0.5, 8.0]);
    d.any("residual_multiplier", &[0.22, 1.5]);
    d.any("attention_multiplier", &[0.0625, 0.4]);
}

fn lfm2(d: &mut Draft) {
    d.sizes(HeadDim::Derived);
    d.rope(Ropes::All, None);
    d.any("norm_eps", &[1e-6, 1e-5, 1e-3]);
    d.flags(&["conv_bias", "tie_word_embeddings"]);
    d.any("conv_L_cache", &[2, 3, 5]);
    if d.random.one_in(2) {
        d.set("block_auto_adjust_ff_dim", false);
    } else {
        d.one("block_multiple_of", &[8, 32]);
        d.any("block_ffn_dim_multiplier", &[1.0, 1.3]);
    }
    if d.size("intermediate_size") < 8 {
        d.set("intermediate_size", 24);
    }
    d.layer_types(&[FULL, "conv"]);
    if !d.config.contains_key("layer_types") {
        let attending: Vec<_> = (0..d.layers()).filter(|_| d.random.one_in(2)).collect();
        d.set("full_attn_idxs", attending);
    }
}

fn mamba2(d: &mut Draft) {
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

fn ministral3(d: &mut Draft) {
    rotated(d);
    d.window("sliding_window");
    let scaling = ["rope_scaling", "rope_parameters"].into_iter().find(|key| d.config.contains_key(*key));
    if let Some(key) = scaling
        && d.random.one_in(2)
    {
        let (beta, original) = (d.random.pick(&[0.1, 0.5]), d.random.pick(&[4, 16]));
        d.config[key]["llama_4_scaling_beta"] = beta.into();
        if d.config[key].get("original_max_position_embeddings").is_none() {
            d.config[key]["original_max_position_embeddings"] = original.into();
        }
    }
}

/// Windows by Qwen's settings.
fn qwen_windows(d: &mut Draft) {
    d.flag("use_sliding_window");
    d.one("sliding_window", &[1, 3, 7, 16, 30]);
    d.any("max_window_layers", &[0, 1, 2]);
    if d.config.get("use_sliding_window") == Some(&json!(true)) {
        d.layer_types(&[FULL, SLIDING]);
    }
}

/// Which layers have experts, and these.
fn sparse(d: &mut Draft) {
    d.experts(&["num_experts"]);
    if d.random.one_in(8) {
        d.set("num_experts", 0);
    }
    let width = d.width();
    d.set("moe_intermediate_size", width);
    d.any("decoder_sparse_step", &[1, 1, 2]);
    d.any("mlp_only_layers", &[json!([]), json!([0]), json!([1])]);
    d.expert_layout("model.layers.#.mlp");
}

fn shared_width(d: &mut Draft) {
    let width = d.width();
    d.set("shared_expert_intermediate_size", width);
}

fn qwen3_next(d: &mut Draft) {
    d.sizes(HeadDim::Free);
    d.set("head_dim", d.head_dim());
    d.rope(Ropes::All, Some("partial_rotary_factor"));
    d.usual();
    d.flags(&["attention_bias", "norm_topk_prob"]);
    sparse(d);
    shared_width(d);
    let keys = d.random.pick(&[1, 2, 3]);
    let values = keys * d.random.pick(&[1, 2]);
    d.set("linear_num_key_heads", keys);
    d.set("linear_num_value_heads", values);
    let dims: &[usize] = if d.packable { &[32, 64] } else { &[2, 4, 8, 12] };
    d.one("linear_key_head_dim", dims);
    d.one("linear_value_head_dim", dims);
    d.any("linear_conv_kernel_dim", &[2, 3, 4]);
    d.any("full_attention_interval", &[1, 2, 3]);
    d.layer_types(&[FULL, "linear_attention"]);
}

fn smollm3(d: &mut Draft) {
    rotated(d);
    d.flags(&["attention_bias", "mlp_bias", "use_sliding_window"]);
    d.one("sliding_window", &[json!(3), json!(16), Value::Null]);
    if d.random.one_in(2) {
        let layers: Vec<_> = (0..d.layers()).map(|_| d.random.below(2)).collect();
        d.set("no_rope_layers", layers);
    } else {
        d.any("no_rope_layer_interval", &[1, 2, 3]);
    }
}
