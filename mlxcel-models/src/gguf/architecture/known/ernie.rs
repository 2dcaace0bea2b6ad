//! ERNIE.

use super::shared::*;

pub(super) const ERNIE4_5: Architecture = Architecture {
    name: "ernie4_5",
    model_type: "ernie4_5",
    rows: Pairs,
    present: &[("attn_q.bias", "use_bias")],
    ..PLAIN
};

pub(super) const ERNIE4_5_MOE: Architecture = Architecture {
    name: "ernie4_5-moe",
    model_type: "ernie4_5_moe",
    rows: Pairs,
    settings: &[&[
        RMS_EPSILON,
        ("expert_count", "moe_num_experts"),
        ("expert_used_count", "moe_k"),
        ("interleave_moe_layer_step", "moe_layer_interval"),
    ]],
    present: &[("attn_q.bias", "use_bias")],
    tensors: &[&[("exp_probs_b.bias", "mlp.moe_statics.e_score_correction_bias", Row)], SHARED_EXPERTS],
    adapt: ernie4_5_moe,
    ..PLAIN
};

/// What all tokens go through is as wide as some experts, whose number is not always in the file.
fn ernie4_5_moe(draft: &mut Draft<'_>) -> Result<()> {
    experts_after(draft, "moe_layer_start_index")?;
    let width = width_of_experts(draft).unwrap_or(1).max(1);
    let shared = draft.size_of("ffn_up_shexp.weight", 0).unwrap_or(0) / width;
    draft.set("moe_num_shared_experts", shared);
    Ok(())
}
