//! AFMoE (Trinity).

use super::shared::*;

pub(super) const AFMOE: Architecture = Architecture {
    name: "afmoe",
    model_type: "afmoe",
    settings: &[&[
        RMS_EPSILON,
        ("expert_count", "num_experts"),
        CHOSEN,
        ("expert_shared_count", "num_shared_experts"),
        ("expert_weights_scale", "route_scale"),
        ("expert_weights_norm", "route_norm"),
    ]],
    fixed: &[("mup_enabled", Flag(true))],
    tensors: &[
        SHARED_EXPERTS,
        &[
            ("exp_probs_b.bias", "mlp.expert_bias", Keep),
            ("ffn_gate_inp", "mlp.router.gate", Keep),
            ("attn_gate", "self_attn.gate_proj", Keep),
            ("post_attention_norm", "post_attention_layernorm", Keep),
            ("ffn_norm", "pre_mlp_layernorm", Keep),
            ("post_ffw_norm", "post_mlp_layernorm", Keep),
        ],
    ],
    adapt: |draft| {
        experts_after(draft, "num_dense_layers")?;
        // transformers divides shares by their sum whatever the settings say, which may say nothing.
        if draft.flag("expert_weights_norm")?.is_none() {
            draft.fields.remove("route_norm");
        }
        draft.windows(4)
    },
    ..PLAIN
};
