//! Granite.

use super::mamba;
use super::shared::*;

pub(super) const GRANITE: Architecture = Architecture {
    name: "granite",
    model_type: "granite",
    rows: Paired,
    settings: &[SETTINGS],
    present: GATED_BIASES,
    ..PLAIN
};

pub(super) const GRANITEMOE: Architecture = Architecture {
    name: "granitemoe",
    model_type: "granitemoe",
    rows: Paired,
    settings: &[SETTINGS],
    tensors: &[EXPERTS, SHARED],
    adapt: granitemoe,
    ..PLAIN
};

pub(super) const GRANITEHYBRID: Architecture = Architecture {
    name: "granitehybrid",
    model_type: "granitemoehybrid",
    rows: Paired,
    settings: &[SETTINGS, mamba::SETTINGS],
    present: &[("ssm_in.bias", "mamba_proj_bias")],
    tensors: &[mamba::TENSORS, EXPERTS, SHARED],
    adapt: granitehybrid,
    ..PLAIN
};

pub(super) const GRANITE_SWA: Architecture = Architecture {
    name: "granite_swa",
    model_type: "granite_swa",
    rows: Paired,
    settings: &[SETTINGS],
    present: GATED_BIASES,
    tensors: &[&[("attn_sinks.weight", "self_attn.sinks", Keep)]],
    adapt: granite_swa,
    ..PLAIN
};

/// Granite with windows; files with experts are refused for the tensors that they lack.
fn granite_swa(draft: &mut Draft<'_>) -> Result<()> {
    draft.windows(4)?;
    let Some(rotated) = draft.sizes("attention.rope_pattern")? else { return Ok(()) };
    let theta = draft.number("rope.freq_base")?.unwrap_or(10_000.0);
    let layers = 0..draft.layers()?;
    let thetas = layers.map(|layer| if rotated.of(layer) == 0 { 0.0 } else { theta }).collect::<Vec<_>>();
    draft.set("layer_rope_theta", thetas);
    Ok(())
}

const EXPERTS: &[Name] = &[
    ("ffn_gate_inp", "block_sparse_moe.router", Keep),
    ("ffn_gate_exps", "block_sparse_moe.switch_mlp.gate_proj", Keep),
    ("ffn_up_exps", "block_sparse_moe.switch_mlp.up_proj", Keep),
    ("ffn_down_exps", "block_sparse_moe.switch_mlp.down_proj", Keep),
];
const SHARED: &[Name] = &[
    ("ffn_gate_shexp", "mlp.gate_proj", Keep),
    ("ffn_up_shexp", "mlp.up_proj", Keep),
    ("ffn_down_shexp", "mlp.down_proj", Keep),
];
const SETTINGS: &[Setting] = &[
    RMS_EPSILON,
    ("attention.scale", "attention_multiplier"),
    ("embedding_scale", "embedding_multiplier"),
    ("residual_scale", "residual_multiplier"),
    ("logit_scale", "logits_scaling"),
    ("expert_count", "num_local_experts"),
    CHOSEN,
];

/// Granite-MoE, with a shared expert or without.
fn granitemoe(draft: &mut Draft<'_>) -> Result<()> {
    if let Some(width) = draft.size_of("ffn_gate_shexp.weight", 0) {
        draft.set("model_type", "granitemoeshared");
        draft.set("shared_intermediate_size", width);
    }
    expert_width(draft)
}

/// Granite 4, or Bamba where attention is not scaled by a setting.
fn granitehybrid(draft: &mut Draft<'_>) -> Result<()> {
    mamba::heads(draft, ["mamba_n_heads", "mamba_d_head", "mamba_expand"])?;
    mixers(draft, "attn_q", "linear_attention")?;
    let shared = draft.size_of("ffn_gate_shexp.weight", 0);
    if let Some(width) = shared.or_else(|| draft.size_of("ffn_gate.weight", 0)) {
        draft.set("shared_intermediate_size", width);
    }
    if draft.size("expert_count")?.is_none() {
        draft.set("num_local_experts", 0);
    }
    if draft.number("attention.scale")?.is_none() {
        draft.set("attention_multiplier", (draft.head_dim()?.max(1) as f64).powf(-0.5));
    }
    // Whether keys are rotated stands under a name that says something else; by default they are.
    if draft.flag("rope.scaling.finetuned")? != Some(false) {
        draft.set("position_embedding_type", "rope");
    }
    expert_width(draft)
}
