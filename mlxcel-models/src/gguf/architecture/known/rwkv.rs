//! RWKV.

use super::shared::*;

pub(super) const RWKV7: Architecture = Architecture {
    name: "rwkv7",
    model_type: "rwkv7",
    settings: &[&[(LAYER_EPSILON, "norm_eps"), ("wkv.head_size", "head_dim")]],
    present: &[],
    tensors: &[&[
        ("token_embd", "embeddings", Keep),
        ("token_embd_norm", "layers.0.pre_norm", Keep),
        ("attn_norm", "attn_norm", Keep),
        ("attn_norm_2", "ffn_norm", Keep),
        ("time_mix_lerp_fused.weight", "attn.x_x", Ones),
        ("time_mix_receptance", "attn.r_proj", Keep),
        ("time_mix_key", "attn.k_proj", Keep),
        ("time_mix_value", "attn.v_proj", Keep),
        ("time_mix_w0.weight", "attn.w_lora.lora.2.bias", Flat),
        ("time_mix_w1", "attn.w_lora.lora.0", Keep),
        ("time_mix_w2", "attn.w_lora.lora.2", Keep),
        ("time_mix_a0.weight", "attn.a_lora.lora.2.bias", Flat),
        ("time_mix_a1", "attn.a_lora.lora.0", Keep),
        ("time_mix_a2", "attn.a_lora.lora.2", Keep),
        ("time_mix_v0.weight", "attn.v_lora.lora.2.bias", Flat),
        ("time_mix_v1", "attn.v_lora.lora.0", Keep),
        ("time_mix_v2", "attn.v_lora.lora.2", Keep),
        ("time_mix_g1", "attn.g_lora.lora.0", Keep),
        ("time_mix_g2", "attn.g_lora.lora.2", Keep),
        ("time_mix_k_k.weight", "attn.k_k", Flat),
        ("time_mix_k_a.weight", "attn.k_a", Flat),
        ("time_mix_r_k.weight", "attn.r_k", Flat),
        ("time_mix_ln", "attn.g_norm", Keep),
        ("time_mix_output", "attn.o_proj", Keep),
        ("channel_mix_lerp_k.weight", "ffn.x_k", Flat),
        ("channel_mix_key", "ffn.key", Keep),
        ("channel_mix_value", "ffn.value", Keep),
    ]],
    ..PLAIN
};
