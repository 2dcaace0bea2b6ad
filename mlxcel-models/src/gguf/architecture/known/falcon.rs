//! Falcon.

use super::shared::*;

/// Both architectures, told as the newer one.
pub(super) const FALCON: Architecture = Architecture {
    name: "falcon",
    model_type: "falcon",
    rows: Ungrouped,
    settings: &[&[(LAYER_EPSILON, "layer_norm_epsilon"), ("attention.head_count_kv", "num_kv_heads")]],
    fixed: &[("fused_by_group", Flag(false)), ("new_decoder_architecture", Flag(true))],
    present: &[("attn_qkv.bias", "bias")],
    base: ["transformer.", "h."],
    tensors: &[&[
        ("token_embd", "word_embeddings", Keep),
        ("output_norm", "ln_f", Keep),
        ("attn_norm_2", "ln_attn", Keep),
        ("attn_qkv", "self_attention.query_key_value", Keep),
        ("attn_output", "self_attention.dense", Keep),
        ("ffn_up", "mlp.dense_h_to_4h", Keep),
        ("ffn_down", "mlp.dense_4h_to_h", Keep),
    ]],
    adapt: falcon,
    ..PLAIN
};

/// The converter writes four times the hidden size for the width of MLPs, whatever that is.
fn falcon(draft: &mut Draft<'_>) -> Result<()> {
    draft.set_size_of("ffn_hidden_size", "ffn_up.weight", 0);
    let norms = if draft.size_of("attn_norm_2.weight", 0).is_some() { 2 } else { 1 };
    draft.set("num_ln_in_parallel_attn", norms);
    Ok(())
}
