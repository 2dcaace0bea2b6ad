//! InternLM.

use super::shared::*;

pub(super) const INTERNLM2: Architecture = Architecture {
    name: "internlm2",
    model_type: "internlm2",
    rows: Paired,
    present: &[("attn_q.bias", "bias")],
    tensors: &[&[
        ("token_embd", "tok_embeddings", Keep),
        ("attn_norm", "attention_norm", Keep),
        ("attn_q", "attention.q_proj", Keep),
        ("attn_k", "attention.k_proj", Keep),
        ("attn_v", "attention.v_proj", Keep),
        ("attn_output", "attention.wo", Keep),
        ("ffn_norm", "ffn_norm", Keep),
        ("ffn_gate", "feed_forward.w1", Keep),
        ("ffn_up", "feed_forward.w3", Keep),
        ("ffn_down", "feed_forward.w2", Keep),
    ]],
    ..PLAIN
};
