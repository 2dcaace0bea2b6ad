//! Cohere.

use super::shared::*;

pub(super) const COMMAND_R: Architecture = Architecture {
    name: "command-r",
    model_type: "cohere",
    rows: Pairs,
    settings: &[&[(LAYER_EPSILON, "layer_norm_eps"), ("logit_scale", "logit_scale")]],
    present: &[("attn_q.bias", "attention_bias"), ("attn_q_norm.weight", "use_qk_norm")],
    ..PLAIN
};

pub(super) const COHERE2: Architecture = Architecture {
    name: "cohere2",
    model_type: "cohere2",
    rows: Pairs,
    settings: &[&[(LAYER_EPSILON, "layer_norm_eps"), ("logit_scale", "logit_scale")]],
    adapt: |draft| draft.windows(4),
    ..PLAIN
};

pub(super) const COHERE2MOE: Architecture = Architecture {
    name: "cohere2moe",
    model_type: "cohere2_moe",
    rows: Pairs,
    settings: &[&[
        RMS_EPSILON,
        (LAYER_EPSILON, "layer_norm_eps"),
        ("logit_scale", "logit_scale"),
        ("expert_count", "num_experts"),
        CHOSEN,
        ("expert_shared_count", "num_shared_experts"),
        ("expert_weights_norm", "norm_topk_prob"),
    ]],
    tensors: &[SHARED_EXPERTS],
    adapt: cohere2moe,
    ..PLAIN
};

fn cohere2moe(draft: &mut Draft<'_>) -> Result<()> {
    const SOFTMAX: usize = 1;
    let by_softmax = draft.size("expert_gating_func")? == Some(SOFTMAX);
    draft.set("expert_selection_fn", if by_softmax { "softmax" } else { "sigmoid" });
    sparse_layers(draft)?;
    draft.copy(WIDTH, "prefix_dense_intermediate_size")?;
    expert_width(draft)?;
    draft.windows(4)
}
