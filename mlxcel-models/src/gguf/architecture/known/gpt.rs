//! What has the shape of GPT-2 or its authors.

use super::shared::*;

pub(super) const GPT_OSS: Architecture = Architecture {
    name: "gpt-oss",
    model_type: "gpt_oss",
    settings: &[&[RMS_EPSILON, ("expert_count", "num_local_experts"), CHOSEN]],
    tensors: &[&[
        ("post_attention_norm", "post_attention_layernorm", Keep),
        ("attn_sinks.weight", "self_attn.sinks", Keep),
        ("ffn_gate_inp", "mlp.router", Keep),
        ("ffn_gate_exps", "mlp.experts.gate_proj", Keep),
        ("ffn_up_exps", "mlp.experts.up_proj", Keep),
        ("ffn_down_exps", "mlp.experts.down_proj", Keep),
    ]],
    adapt: gpt_oss,
    ..PLAIN
};

pub(super) const GPT2: Architecture = Architecture {
    name: "gpt2",
    model_type: "gpt2",
    settings: &[&[(LAYER_EPSILON, "layer_norm_epsilon"), (WIDTH, "n_inner")]],
    fixed: &[("conv1d", Flag(false))],
    present: &[],
    base: ["transformer.", "h."],
    tensors: &[NAMES],
    ..PLAIN
};

pub(super) const STARCODER: Architecture = Architecture {
    name: "starcoder",
    model_type: "gpt_bigcode",
    settings: &[&[(LAYER_EPSILON, "layer_norm_epsilon"), (WIDTH, "n_inner")]],
    present: &[],
    base: ["transformer.", "h."],
    tensors: &[NAMES],
    ..PLAIN
};

/// Names of GPT-2's tensors.
const NAMES: &[Name] = &[
    ("token_embd", "wte", Keep),
    ("position_embd", "wpe", Keep),
    ("output_norm", "ln_f", Keep),
    ("attn_norm", "ln_1", Keep),
    ("attn_qkv", "attn.c_attn", Keep),
    ("attn_output", "attn.c_proj", Keep),
    ("ffn_norm", "ln_2", Keep),
    ("ffn_up", "mlp.c_fc", Keep),
    ("ffn_down", "mlp.c_proj", Keep),
];

pub(super) const GPTNEOX: Architecture = Architecture {
    name: "gptneox",
    model_type: "gpt_neox",
    settings: &[&[(LAYER_EPSILON, "layer_norm_eps"), ("use_parallel_residual", "use_parallel_residual")]],
    rows: Ungrouped,
    fixed: &[("fused_by_head", Flag(false))],
    present: &[("attn_qkv.bias", "attention_bias")],
    base: ["gpt_neox.", "layers."],
    tensors: &[&[
        ("token_embd", "embed_in", Keep),
        ("output_norm", "final_layer_norm", Keep),
        ("attn_qkv", "attention.query_key_value", Keep),
        ("attn_output", "attention.dense", Keep),
        ("ffn_up", "mlp.dense_h_to_4h", Keep),
        ("ffn_down", "mlp.dense_4h_to_h", Keep),
    ]],
    adapt: gptneox,
    ..PLAIN
};

pub(super) const STARCODER2: Architecture = Architecture {
    name: "starcoder2",
    model_type: "starcoder2",
    settings: &[&[(LAYER_EPSILON, "norm_epsilon")]],
    present: &[("attn_q.bias", "use_bias")],
    tensors: &[&[("ffn_up", "mlp.c_fc", Keep), ("ffn_down", "mlp.c_proj", Keep)]],
    ..PLAIN
};

fn gpt_oss(draft: &mut Draft<'_>) -> Result<()> {
    expert_width(draft)?;
    draft.windows(2)?;
    // The pattern begins with a window.
    draft.fields.remove("layer_types");
    // What its authors say, and files do not.
    draft.set_scaling("truncate", false);
    Ok(())
}

fn gptneox(draft: &mut Draft<'_>) -> Result<()> {
    draft.copy("rope.freq_base", "rotary_emb_base")?;
    partial(draft, "rotary_pct")
}
