//! Hunyuan.

use super::shared::*;

pub(super) const HUNYUAN_DENSE: Architecture =
    Architecture { name: "hunyuan-dense", model_type: "hunyuan_v1_dense", tensors: &[HEAD_NORMS], ..PLAIN };

pub(super) const HUNYUAN_MOE: Architecture = Architecture {
    name: "hunyuan-moe",
    model_type: "hunyuan_v1_moe",
    settings: &[&[RMS_EPSILON, ("expert_count", "num_experts"), ("expert_used_count", "moe_topk")]],
    tensors: &[
        HEAD_NORMS,
        &[
            ("ffn_gate_inp", "mlp.gate.wg", Keep),
            ("ffn_gate_shexp", "mlp.shared_mlp.gate_proj", Keep),
            ("ffn_up_shexp", "mlp.shared_mlp.up_proj", Keep),
            ("ffn_down_shexp", "mlp.shared_mlp.down_proj", Keep),
        ],
    ],
    adapt: expert_width,
    ..PLAIN
};

pub(super) const HY_V3: Architecture = Architecture {
    name: "hy_v3",
    model_type: "hy_v3",
    settings: &[&[
        RMS_EPSILON,
        CHOSEN,
        ("expert_count", "num_experts"),
        ("expert_weights_scale", "router_scaling_factor"),
        ("expert_weights_norm", "route_norm"),
    ]],
    tensors: &[
        SHARED_EXPERTS,
        &[("exp_probs_b.bias", "mlp.expert_bias", Keep), ("exp_probs_b", "mlp.expert_bias", Keep)],
    ],
    adapt: hy_v3,
    ..PLAIN
};

fn hy_v3(draft: &mut Draft<'_>) -> Result<()> {
    experts(draft);
    let widths = [draft.size_of("ffn_gate_shexp.weight", 0), draft.size_of("ffn_up_exps.weight", 1)];
    if let [Some(shared), Some(width)] = widths {
        draft.set("num_shared_experts", shared / width.max(1));
    }
    sparse_layers(draft)
}

const HEAD_NORMS: &[Name] =
    &[("attn_q_norm", "self_attn.query_layernorm", Keep), ("attn_k_norm", "self_attn.key_layernorm", Keep)];
