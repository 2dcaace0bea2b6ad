//! LFM2.

use super::shared::*;

pub(super) const LFM2: Architecture = Architecture {
    name: "lfm2",
    model_type: "lfm2",
    settings: &[&[("attention.layer_norm_rms_epsilon", "norm_eps"), ("shortconv.l_cache", "conv_L_cache")]],
    fixed: &[("block_auto_adjust_ff_dim", Flag(false))],
    present: &[],
    tensors: &[TENSORS],
    adapt: |draft| mixers(draft, "attn_q", "conv"),
    ..PLAIN
};

pub(super) const LFM2MOE: Architecture = Architecture {
    name: "lfm2moe",
    model_type: "lfm2_moe",
    settings: &[&[
        ("attention.layer_norm_rms_epsilon", "norm_eps"),
        ("shortconv.l_cache", "conv_L_cache"),
        ("expert_count", "num_experts"),
        CHOSEN,
        ("expert_weights_scale", "routed_scaling_factor"),
    ]],
    present: &[],
    tensors: &[
        TENSORS,
        &[
            ("exp_probs_b.bias", "feed_forward.expert_bias", Keep),
            ("ffn_gate_inp", "feed_forward.gate", Keep),
            ("ffn_gate_exps", "feed_forward.switch_mlp.gate_proj", Keep),
            ("ffn_up_exps", "feed_forward.switch_mlp.up_proj", Keep),
            ("ffn_down_exps", "feed_forward.switch_mlp.down_proj", Keep),
        ],
    ],
    adapt: lfm2moe,
    ..PLAIN
};

const TENSORS: &[Name] = &[
    ("token_embd_norm", "embedding_norm", Keep),
    ("output_norm", "embedding_norm", Keep),
    ("attn_norm", "operator_norm", Keep),
    ("attn_output", "self_attn.out_proj", Keep),
    ("attn_q_norm", "self_attn.q_layernorm", Keep),
    ("attn_k_norm", "self_attn.k_layernorm", Keep),
    ("ffn_norm", "ffn_norm", Keep),
    ("ffn_gate", "feed_forward.w1", Keep),
    ("ffn_up", "feed_forward.w3", Keep),
    ("ffn_down", "feed_forward.w2", Keep),
    ("shortconv.in_proj", "conv.in_proj", Keep),
    ("shortconv.conv.weight", "conv.conv.weight", Taps),
    ("shortconv.out_proj", "conv.out_proj", Keep),
];

fn lfm2moe(draft: &mut Draft<'_>) -> Result<()> {
    experts_after(draft, "num_dense_layers")?;
    let biased = draft.size_of("exp_probs_b.bias", 0).is_some();
    draft.set("use_expert_bias", biased);
    mixers(draft, "attn_q", "conv")
}
