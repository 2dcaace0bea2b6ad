//! What architectures have in common: keys, names of tensors, and readers of settings that follow from these.

pub(super) use mlxcel_core::Result;
use serde_json::{Map, Value, json};

pub(super) use super::super::Change::{
    Each, Exponential, Flat, Keep, NegatedExponential, Ones, Row, Taps, TapsLast,
};
pub(super) use super::super::Fixed::{Flag, Null, Text};
pub(super) use super::super::Rows::{Changed, Halves, Paired, Pairs, Ungrouped};
pub(super) use super::super::draft::Draft;
pub(super) use super::super::{Architecture, DraftHead, Name, Setting};

/// The width of MLPs, of which layers may have different ones.
pub(in super::super) const WIDTH: &str = "feed_forward_length";

/// The width of a head's values.
pub(in super::super) const VALUES: &str = "attention.value_length";

/// Keys that mean the same in all architectures.
pub(in super::super) const COMMON: &[Setting] = &[
    ("attention.causal", "is_causal"),
    ("context_length", "max_position_embeddings"),
    ("embedding_length", "hidden_size"),
    (WIDTH, "intermediate_size"),
];

/// The names that most architectures give their tensors.
pub(in super::super) const TENSORS: &[Name] = &[
    ("token_embd", "embed_tokens", Keep),
    ("output_norm", "norm", Keep),
    ("output", "lm_head", Keep),
    ("attn_norm", "input_layernorm", Keep),
    ("attn_q", "self_attn.q_proj", Keep),
    ("attn_k", "self_attn.k_proj", Keep),
    ("attn_v", "self_attn.v_proj", Keep),
    ("attn_output", "self_attn.o_proj", Keep),
    ("attn_q_norm", "self_attn.q_norm", Keep),
    ("attn_k_norm", "self_attn.k_norm", Keep),
    ("ffn_norm", "post_attention_layernorm", Keep),
    ("ffn_gate", "mlp.gate_proj", Keep),
    ("ffn_up", "mlp.up_proj", Keep),
    ("ffn_down", "mlp.down_proj", Keep),
    ("ffn_gate_inp", "mlp.gate", Keep),
    ("ffn_gate_exps", "mlp.switch_mlp.gate_proj", Keep),
    ("ffn_up_exps", "mlp.switch_mlp.up_proj", Keep),
    ("ffn_gate_up_exps", "mlp.switch_mlp.gate_up_proj", Keep),
    ("ffn_down_exps", "mlp.switch_mlp.down_proj", Keep),
];

/// Names of the norms around blocks where there are four of them.
pub(super) const FOUR_NORMS: &[Name] = &[
    ("post_attention_norm", "post_attention_layernorm", Keep),
    ("ffn_norm", "pre_feedforward_layernorm", Keep),
    ("post_ffw_norm", "post_feedforward_layernorm", Keep),
];
/// Names of the norms behind blocks.
pub(super) const POST_NORMS: &[Name] = &[
    ("post_attention_norm", "post_attention_layernorm", Keep),
    ("post_ffw_norm", "post_feedforward_layernorm", Keep),
];
/// Names of the experts that all tokens go through, in DeepSeek-V3 and after it.
pub(super) const SHARED_EXPERTS: &[Name] = &[
    ("ffn_gate_shexp", "mlp.shared_experts.gate_proj", Keep),
    ("ffn_up_shexp", "mlp.shared_experts.up_proj", Keep),
    ("ffn_down_shexp", "mlp.shared_experts.down_proj", Keep),
];

/// The name of what is added to the scores of their routers.
pub(super) const CORRECTION: &[Name] = &[("exp_probs_b.bias", "mlp.gate.e_score_correction_bias", Keep)];
/// Names of the delta rule's parts in Qwen3-Next and after it.
pub(super) const DELTA_RULE: &[Name] = &[
    ("attn_qkv", "linear_attn.in_proj_qkv", Keep),
    ("attn_gate", "linear_attn.in_proj_z", Keep),
    ("ssm_conv1d.weight", "linear_attn.conv1d.weight", TapsLast),
    ("ssm_dt.bias", "linear_attn.dt_bias", Keep),
    ("ssm_a", "linear_attn.A_log", NegatedExponential),
    ("ssm_norm", "linear_attn.norm", Keep),
    ("ssm_out", "linear_attn.out_proj", Keep),
    ("post_attention_norm", "post_attention_layernorm", Keep),
];

/// DeepSeek-V3's draft head, which is a layer with more modules.
pub(super) const HEAD_BEHIND_LAYERS: &DraftHead = &DraftHead {
    layer: "model.layers.#.",
    modules: &[
        ("nextn.enorm", "model.layers.#.enorm"),
        ("nextn.hnorm", "model.layers.#.hnorm"),
        ("nextn.eh_proj", "model.layers.#.eh_proj"),
        ("nextn.shared_head_norm", "model.layers.#.shared_head.norm"),
    ],
};

pub(super) const RMS_EPSILON: Setting = ("attention.layer_norm_rms_epsilon", "rms_norm_eps");
pub(super) const LAYER_EPSILON: &str = "attention.layer_norm_epsilon";
pub(super) const CHOSEN: Setting = ("expert_used_count", "num_experts_per_tok");
pub(super) const BIASES: &[Setting] = &[("attn_q.bias", "attention_bias")];
/// Biases of attention and of MLPs with gates, each all or none.
pub(super) const GATED_BIASES: &[Setting] =
    &[("attn_q.bias", "attention_bias"), ("ffn_gate.bias", "mlp_bias")];

/// Numbers of experts, in DeepSeek-V3 and after it.
pub(super) const EXPERTS: &[Setting] =
    &[("expert_count", "n_routed_experts"), CHOSEN, ("expert_shared_count", "n_shared_experts")];
/// Settings of their routers.
pub(super) const ROUTER: &[Setting] = &[
    ("expert_weights_scale", "routed_scaling_factor"),
    ("expert_weights_norm", "norm_topk_prob"),
    ("expert_group_count", "n_group"),
    ("expert_group_used_count", "topk_group"),
];

/// Llama's structure and names, queries and keys rotated in halves.
pub(super) const PLAIN: Architecture = Architecture {
    name: "",
    model_type: "",
    rows: Halves,
    whole_norms: false,
    settings: &[&[RMS_EPSILON]],
    fixed: &[],
    present: BIASES,
    heads_by_layer: false,
    base: ["model.", "layers."],
    tensors: &[],
    draft_head: None,
    adapt: |_| Ok(()),
    vectors: |_| Ok(Vec::new()),
};

/// The width of experts, from their tensors.
pub(super) fn experts(draft: &mut Draft<'_>) {
    if let Some(width) = width_of_experts(draft) {
        draft.set("moe_intermediate_size", width);
    }
}

/// The same, and how many layers at the beginning have none, under the name of the setting.
pub(super) fn experts_after(draft: &mut Draft<'_>, setting: &str) -> Result<()> {
    experts(draft);
    let layers = draft.layers()?;
    let dense = (0..layers).find(|layer| draft.layer_has(*layer, "ffn_gate_inp")).unwrap_or(layers);
    draft.set(setting, dense);
    Ok(())
}

/// Which layers have experts, by their routers.
pub(super) fn sparse_layers(draft: &mut Draft<'_>) -> Result<()> {
    draft.set_by_layer("mlp_layer_types", |draft, layer| {
        if draft.layer_has(layer, "ffn_gate_inp") { "sparse" } else { "dense" }
    })
}

/// Experts whose width is the only one.
pub(super) fn expert_width(draft: &mut Draft<'_>) -> Result<()> {
    if let Some(width) = width_of_experts(draft) {
        draft.set("intermediate_size", width);
    }
    Ok(())
}

pub(super) fn width_of_experts(draft: &Draft<'_>) -> Option<usize> {
    let fused = || draft.size_of("ffn_gate_up_exps.weight", 1).map(|both| both / 2);
    draft.size_of("ffn_up_exps.weight", 1).or_else(fused)
}

/// The part of heads that is rotated, under the name of the setting.
pub(super) fn partial(draft: &mut Draft<'_>, setting: &str) -> Result<()> {
    if let Some(rotated) = draft.size("rope.dimension_count")? {
        let width = draft.head_dim()?.max(1);
        draft.set(setting, rotated as f64 / width as f64);
    }
    Ok(())
}

pub(super) fn partial_rotary(draft: &mut Draft<'_>) -> Result<()> {
    partial(draft, "partial_rotary_factor")
}

/// The types of layers, of which those without this weight have another mixer than attention.
pub(super) fn mixers(draft: &mut Draft<'_>, part: &str, other: &'static str) -> Result<()> {
    draft.set_by_layer(
        "layer_types",
        |draft, layer| {
            if draft.layer_has(layer, part) { "full_attention" } else { other }
        },
    )
}

/// Rotary settings of layers without windows and of those with them, which turn these parts of heads. The
/// scaling is of the former.
pub(super) fn layer_ropes(draft: &mut Draft<'_>, [full_part, sliding_part]: [f64; 2]) -> Result<()> {
    let theta = draft.number("rope.freq_base")?.unwrap_or(10_000.0);
    let local = draft.number("rope.freq_base_swa")?.unwrap_or(theta);
    let mut full = match draft.fields.remove("rope_scaling") {
        Some(Value::Object(scaling)) => scaling,
        _ => Map::new(),
    };
    full.insert("rope_theta".to_owned(), theta.into());
    full.insert("partial_rotary_factor".to_owned(), full_part.into());
    let sliding = json!({"rope_theta": local, "partial_rotary_factor": sliding_part});
    draft.set("rope_parameters", json!({"full_attention": full, "sliding_attention": sliding}));
    Ok(())
}
