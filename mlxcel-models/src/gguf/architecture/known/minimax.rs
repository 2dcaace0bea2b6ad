//! MiniMax.

use super::shared::*;

pub(super) const MINIMAX_M2: Architecture = Architecture {
    name: "minimax-m2",
    model_type: "minimax_m2",
    settings: &[&[
        RMS_EPSILON,
        ("expert_count", "num_local_experts"),
        CHOSEN,
        ("rope.dimension_count", "rotary_dim"),
    ]],
    tensors: &[&[("exp_probs_b.bias", "mlp.e_score_correction_bias", Keep)]],
    adapt: expert_width,
    ..PLAIN
};
