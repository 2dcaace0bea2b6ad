//! Step.

use serde_json::{Value, json};

use super::shared::*;

/// Under mlx-lm's names, whose factors of norms are as files have them.
pub(super) const STEP35: Architecture = Architecture {
    name: "step35",
    model_type: "step3p5",
    settings: &[&[
        RMS_EPSILON,
        ("attention.key_length", "head_dim"),
        ("expert_count", "moe_num_experts"),
        ("expert_used_count", "moe_top_k"),
        ("expert_shared_feed_forward_length", "share_expert_dim"),
        ("expert_weights_norm", "norm_expert_weight"),
    ]],
    present: &[("attn_gate.weight", "use_head_wise_attn_gate")],
    heads_by_layer: true,
    tensors: &[&[
        ("attn_gate", "self_attn.g_proj", Keep),
        ("ffn_gate_inp", "mlp.gate.gate", Keep),
        ("exp_probs_b.bias", "mlp.gate.router_bias", Keep),
        ("ffn_gate_shexp", "mlp.share_expert.gate_proj", Keep),
        ("ffn_up_shexp", "mlp.share_expert.up_proj", Keep),
        ("ffn_down_shexp", "mlp.share_expert.down_proj", Keep),
    ]],
    adapt: step35,
    ..PLAIN
};

fn step35(draft: &mut Draft<'_>) -> Result<()> {
    const SIGMOID: usize = 2;
    experts(draft);
    let scale = draft.number("expert_weights_scale")?.filter(|scale| *scale != 0.0).unwrap_or(1.0);
    draft.set("moe_router_scaling_factor", scale);
    if draft.size("expert_gating_func")?.is_some_and(|function| function != SIGMOID) {
        draft.set("moe_router_activation", "softmax");
    }
    for (key, setting) in
        [("swiglu_clamp_exp", "swiglu_limits"), ("swiglu_clamp_shexp", "swiglu_limits_shared")]
    {
        let limits = draft.numbers(key)?.map(Iterator::collect::<Vec<_>>);
        draft.set(setting, limits);
    }
    sparse_layers(draft)?;
    draft.windows(4)?;
    heads(draft)?;
    // Layers without windows rotate half of a head, with factors that files fill up to whole ones.
    let pairs = draft.head_dim()? / 4;
    if let Some(Value::Array(factors)) =
        draft.fields.get_mut("rope_scaling").and_then(|scaling| scaling.get_mut("freq_factors"))
    {
        factors.truncate(pairs);
    }
    layer_ropes(draft, [0.5, 1.0])
}

/// Layers with windows have other numbers of heads.
fn heads(draft: &mut Draft<'_>) -> Result<()> {
    let query_heads = draft.required_sizes("attention.head_count")?;
    let kv_heads = draft.required_sizes("attention.head_count_kv")?;
    let types = draft.fields.get("layer_types").cloned().unwrap_or_default();
    let is_sliding = |layer: &usize| types[*layer] == "sliding_attention";
    let layers = draft.layers()?;
    let full = (0..layers).find(|layer| !is_sliding(layer)).unwrap_or_default();
    let sliding = (0..layers).find(is_sliding).unwrap_or_default();
    draft.set("num_attention_heads", query_heads.of(full));
    draft.set("num_attention_groups", kv_heads.of(full));
    let other = json!({
        "attention_type": "sliding_attention",
        "num_attention_heads": query_heads.of(sliding),
        "num_attention_groups": kv_heads.of(sliding),
    });
    draft.set("attention_other_setting", other);
    Ok(())
}
