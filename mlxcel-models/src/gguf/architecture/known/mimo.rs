//! MiMo.

use super::shared::*;

pub(super) const MIMO2: Architecture = Architecture {
    name: "mimo2",
    model_type: "mimo_v2_flash",
    settings: &[&[
        RMS_EPSILON,
        ("expert_count", "n_routed_experts"),
        CHOSEN,
        ("rope.freq_base_swa", "swa_rope_theta"),
        (VALUES, "v_head_dim"),
        // Older files lack it, and then that of the published models holds.
        ("attention.value_scale", "attention_value_scale"),
        // Windows of published configs leave out the token itself.
        ("attention.sliding_window", "sliding_window_size"),
    ]],
    tensors: &[CORRECTION, &[("attn_sinks.weight", "self_attn.attention_sink_bias", Keep)]],
    adapt: mimo2,
    ..PLAIN
};

fn mimo2(draft: &mut Draft<'_>) -> Result<()> {
    experts(draft);
    partial_rotary(draft)?;
    sparse_layers(draft)?;
    let pattern = draft.required_sizes("attention.sliding_window_pattern")?;
    draft.set_by_layer("layer_types", |_, layer| {
        if pattern.of(layer) == 0 { "full_attention" } else { "sliding_attention" }
    })?;
    let kv_heads = draft.required_sizes("attention.head_count_kv")?;
    for layer in 0..draft.layers()? {
        let is_full = pattern.of(layer) == 0;
        let [heads, sinks] = if is_full {
            ["num_key_value_heads", "add_full_attention_sink_bias"]
        } else {
            ["swa_num_key_value_heads", "add_swa_attention_sink_bias"]
        };
        draft.set(heads, kv_heads.of(layer));
        let has_sinks = draft.layer_has(layer, "attn_sinks");
        draft.set(sinks, has_sinks);
    }
    Ok(())
}
