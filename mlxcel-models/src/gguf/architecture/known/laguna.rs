//! Laguna, and Mellum, which is like it: layers with windows have a rotary embedding of their own.

use super::shared::*;

pub(super) const LAGUNA: Architecture = Architecture {
    name: "laguna",
    model_type: "laguna",
    settings: &[&[
        RMS_EPSILON,
        CHOSEN,
        ("attention.key_length", "head_dim"),
        ("expert_count", "num_experts"),
        ("expert_shared_feed_forward_length", "shared_expert_intermediate_size"),
        ("expert_weights_scale", "moe_routed_scaling_factor"),
    ]],
    heads_by_layer: true,
    tensors: &[CORRECTION, SHARED_EXPERTS, &[("attn_gate", "self_attn.g_proj", Keep)]],
    adapt: laguna,
    ..PLAIN
};

pub(super) const MELLUM: Architecture = Architecture {
    name: "mellum",
    model_type: "mellum",
    settings: &[&[RMS_EPSILON, CHOSEN, ("expert_count", "num_local_experts")]],
    adapt: |draft| {
        experts(draft);
        sparse_layers(draft)?;
        draft.windows(4)?;
        layer_ropes(draft, [1.0, 1.0])
    },
    ..PLAIN
};

fn laguna(draft: &mut Draft<'_>) -> Result<()> {
    const PATTERN: &str = "attention.sliding_window_pattern";
    experts(draft);
    sparse_layers(draft)?;
    draft.windows(4)?;
    // Files list no layers: of every four the first sees everything.
    if draft.fields.contains_key("layer_types") && !draft.metadata.has(&draft.key(PATTERN)) {
        draft.set_by_layer("layer_types", |_, layer| {
            if layer.is_multiple_of(4) { "full_attention" } else { "sliding_attention" }
        })?;
    }
    let heads = draft.required_sizes("attention.head_count")?;
    let kv_heads = draft.required_sizes("attention.head_count_kv")?.of(0);
    let heads = (0..draft.layers()?).map(|layer| heads.of(layer)).collect::<Vec<_>>();
    // The width of gates tells the kind.
    let is_by_head = draft.size_of("attn_gate.weight", 0) == heads.first().copied();
    draft.set("gating", if is_by_head { "per-head" } else { "per-element" });
    draft.set("num_attention_heads", heads.first().copied());
    draft.set("num_key_value_heads", kv_heads);
    draft.set("num_attention_heads_per_layer", heads);
    let width = draft.required_size("attention.key_length")?.max(1) as f64;
    let part = |key: &str| Ok(draft.size(key)?.map_or(1.0, |rotated| rotated as f64 / width));
    let parts = [part("rope.dimension_count")?, part("rope.dimension_count_swa")?];
    draft.set("partial_rotary_factor", parts[0]);
    layer_ropes(draft, parts)
}
