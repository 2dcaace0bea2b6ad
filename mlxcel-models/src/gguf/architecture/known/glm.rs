//! GLM.

use super::shared::*;

/// Files of ChatGLM's own checkpoints have queries, keys and values in one matrix.
pub(super) const CHATGLM: Architecture = Architecture {
    name: "chatglm",
    model_type: "glm",
    rows: Pairs,
    present: &[],
    tensors: &[&[("attn_qkv", "self_attn.qkv_proj", Keep), ("ffn_up", "mlp.gate_up_proj", Keep)]],
    adapt: chatglm,
    ..PLAIN
};

pub(super) const GLM4: Architecture = Architecture {
    name: "glm4",
    model_type: "glm4",
    rows: Pairs,
    tensors: &[&[
        ("post_attention_norm", "post_self_attn_layernorm", Keep),
        ("post_ffw_norm", "post_mlp_layernorm", Keep),
        ("ffn_up", "mlp.gate_up_proj", Keep),
    ]],
    adapt: partial_rotary,
    ..PLAIN
};

pub(super) const GLM4MOE: Architecture = Architecture {
    name: "glm4moe",
    model_type: "glm4_moe",
    settings: &[&[RMS_EPSILON], EXPERTS, ROUTER],
    present: &[("attn_q.bias", "attention_bias"), ("attn_q_norm.weight", "use_qk_norm")],
    tensors: &[CORRECTION, SHARED_EXPERTS, &[("post_attention_norm", "post_attention_layernorm", Keep)]],
    draft_head: Some(HEAD_BEHIND_LAYERS),
    adapt: glm4moe,
    ..PLAIN
};

fn chatglm(draft: &mut Draft<'_>) -> Result<()> {
    let biased = ["attn_q.bias", "attn_qkv.bias"].iter().any(|bias| draft.size_of(bias, 0).is_some());
    draft.set("attention_bias", biased);
    partial_rotary(draft)
}

fn glm4moe(draft: &mut Draft<'_>) -> Result<()> {
    experts_after(draft, "first_k_dense_replace")?;
    partial_rotary(draft)
}
