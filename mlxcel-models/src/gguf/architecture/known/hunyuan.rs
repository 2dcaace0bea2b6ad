//! Hunyuan.

use super::super::Change::Keep;
use super::super::{Architecture, Name};
use super::{PLAIN, RMS_EPSILON, expert_width};

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

const HEAD_NORMS: &[Name] =
    &[("attn_q_norm", "self_attn.query_layernorm", Keep), ("attn_k_norm", "self_attn.key_layernorm", Keep)];
