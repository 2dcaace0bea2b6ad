//! StableLM.

use super::shared::*;

pub(super) const STABLELM: Architecture = Architecture {
    name: "stablelm",
    model_type: "stablelm",
    settings: &[&[(LAYER_EPSILON, "layer_norm_eps"), ("use_parallel_residual", "use_parallel_residual")]],
    present: &[("attn_q.bias", "use_qkv_bias"), ("attn_q_norm.weight", "qk_layernorm")],
    tensors: &[&[
        ("attn_q_norm.weight", "self_attn.q_layernorm.norms.#.weight", Each),
        ("attn_k_norm.weight", "self_attn.k_layernorm.norms.#.weight", Each),
    ]],
    adapt: partial_rotary,
    ..PLAIN
};
