//! Mamba.

use super::shared::*;

/// Mamba, or Falcon Mamba where the file says that steps, B and C are normalized.
pub(super) const MAMBA: Architecture = Architecture {
    name: "mamba",
    model_type: "mamba",
    settings: &[&[
        ("attention.layer_norm_rms_epsilon", "layer_norm_epsilon"),
        ("ssm.conv_kernel", "conv_kernel"),
        ("ssm.state_size", "state_size"),
        ("ssm.inner_size", "intermediate_size"),
        ("ssm.time_step_rank", "time_step_rank"),
    ]],
    present: &[("ssm_in.bias", "use_bias"), ("ssm_conv1d.bias", "use_conv_bias")],
    base: ["backbone.", "layers."],
    tensors: &[&[
        ("token_embd", "embeddings", Keep),
        ("output_norm", "norm_f", Keep),
        ("attn_norm", "norm", Keep),
        ("ssm_in", "mixer.in_proj", Keep),
        ("ssm_conv1d.weight", "mixer.conv1d.weight", Taps),
        ("ssm_conv1d.bias", "mixer.conv1d.bias", Keep),
        ("ssm_x", "mixer.x_proj", Keep),
        ("ssm_dt", "mixer.dt_proj", Keep),
        ("ssm_a", "mixer.A_log", NegatedExponential),
        ("ssm_d", "mixer.D", Keep),
        ("ssm_out", "mixer.out_proj", Keep),
    ]],
    adapt: mamba,
    ..PLAIN
};

pub(super) const MAMBA2: Architecture = Architecture {
    name: "mamba2",
    model_type: "mamba2",
    settings: &[&[
        ("attention.layer_norm_rms_epsilon", "layer_norm_epsilon"),
        ("ssm.conv_kernel", "conv_kernel"),
        ("ssm.state_size", "state_size"),
        ("ssm.group_count", "n_groups"),
    ]],
    present: &[("ssm_in.bias", "use_bias"), ("ssm_conv1d.bias", "use_conv_bias")],
    base: ["backbone.", "layers."],
    tensors: &[ALONE],
    adapt: mamba2,
    ..PLAIN
};

pub(super) const JAMBA: Architecture = Architecture {
    name: "jamba",
    model_type: "jamba",
    settings: &[
        SETTINGS,
        &[RMS_EPSILON, ("expert_count", "num_experts"), CHOSEN, ("ssm.time_step_rank", "mamba_dt_rank")],
    ],
    present: &[],
    tensors: &[&[
        ("output_norm", "final_layernorm", Keep),
        ("ffn_norm", "pre_ff_layernorm", Keep),
        ("ffn_gate", "feed_forward.gate_proj", Keep),
        ("ffn_up", "feed_forward.up_proj", Keep),
        ("ffn_down", "feed_forward.down_proj", Keep),
        ("ffn_gate_inp", "feed_forward.router", Keep),
        ("ffn_gate_exps", "feed_forward.switch_mlp.gate_proj", Keep),
        ("ffn_up_exps", "feed_forward.switch_mlp.up_proj", Keep),
        ("ffn_down_exps", "feed_forward.switch_mlp.down_proj", Keep),
        ("ssm_in", "mamba.in_proj", Keep),
        ("ssm_conv1d.weight", "mamba.conv1d.weight", Taps),
        ("ssm_conv1d.bias", "mamba.conv1d.bias", Keep),
        ("ssm_x", "mamba.x_proj", Keep),
        ("ssm_dt", "mamba.dt_proj", Keep),
        ("ssm_a", "mamba.A_log", NegatedExponential),
        ("ssm_d", "mamba.D", Keep),
        ("ssm_dt_norm", "mamba.dt_layernorm", Keep),
        ("ssm_b_norm", "mamba.b_layernorm", Keep),
        ("ssm_c_norm", "mamba.c_layernorm", Keep),
        ("ssm_out", "mamba.out_proj", Keep),
    ]],
    adapt: jamba,
    ..PLAIN
};

pub(super) const FALCON_H1: Architecture = Architecture {
    name: "falcon-h1",
    model_type: "falcon_h1",
    rows: Changed,
    settings: &[SETTINGS, &[RMS_EPSILON, ("ssm.inner_size", "mamba_d_ssm")]],
    // Weights have been multiplied by the factors that the settings had.
    fixed: &[("mamba_norm_before_gate", Flag(false))],
    present: &[
        ("attn_q.bias", "attention_bias"),
        ("ffn_up.bias", "mlp_bias"),
        ("ssm_in.bias", "mamba_proj_bias"),
        ("ssm_out.bias", "projectors_bias"),
        ("ssm_conv1d.bias", "mamba_conv_bias"),
        ("ssm_norm.weight", "mamba_rms_norm"),
    ],
    tensors: &[
        TENSORS,
        &[
            ("output_norm", "final_layernorm", Keep),
            // Files have it without an ending.
            ("ffn_norm", "pre_ff_layernorm.weight", Keep),
            ("ffn_norm.weight", "pre_ff_layernorm.weight", Keep),
            ("ffn_gate", "feed_forward.gate_proj", Keep),
            ("ffn_up", "feed_forward.up_proj", Keep),
            ("ffn_down", "feed_forward.down_proj", Keep),
        ],
    ],
    adapt: |draft| heads(draft, ["mamba_n_heads", "mamba_d_head", "mamba_expand"]),
    ..PLAIN
};

/// Layers with attention, and those with experts, come at equal distances.
fn jamba(draft: &mut Draft<'_>) -> Result<()> {
    let hidden = draft.required_size("embedding_length")?.max(1);
    draft.set("mamba_expand", draft.required_size("ssm.inner_size")? / hidden);
    let biased = draft.size_of("ssm_in.bias", 0).is_some();
    draft.set("mamba_proj_bias", biased);
    let layers = draft.layers()?;
    for (part, [period, offset]) in [
        ("attn_q", ["attn_layer_period", "attn_layer_offset"]),
        ("ffn_gate_inp", ["expert_layer_period", "expert_layer_offset"]),
    ] {
        let mut with = (0..layers).filter(|layer| draft.layer_has(*layer, part));
        let first = with.next().unwrap_or(layers);
        let distance = with.next().map_or(layers + 1, |second| second - first);
        draft.set(offset, first);
        draft.set(period, distance);
    }
    Ok(())
}

fn mamba(draft: &mut Draft<'_>) -> Result<()> {
    if draft.flag("ssm.dt_b_c_rms")? == Some(true) {
        draft.set("model_type", "falcon_mamba");
    }
    Ok(())
}

fn mamba2(draft: &mut Draft<'_>) -> Result<()> {
    heads(draft, ["num_heads", "head_dim", "expand"])
}

/// The heads of a state space, under the names of the settings: how many, how wide, and the factor from the
/// hidden size to all of them.
pub(super) fn heads(draft: &mut Draft<'_>, [count, width, factor]: [&str; 3]) -> Result<()> {
    let hidden = draft.required_size("embedding_length")?.max(1);
    let inner = draft.required_size("ssm.inner_size")?;
    let heads = draft.required_size("ssm.time_step_rank")?.max(1);
    draft.set(count, heads);
    draft.set(width, inner / heads);
    draft.set(factor, inner / hidden);
    Ok(())
}

/// Settings of a state space in a hybrid.
pub(super) const SETTINGS: &[Setting] = &[
    ("ssm.conv_kernel", "mamba_d_conv"),
    ("ssm.state_size", "mamba_d_state"),
    ("ssm.group_count", "mamba_n_groups"),
];

/// Names of the parts of a state space in a hybrid.
pub(super) const TENSORS: &[Name] = &[
    ("ssm_in", "mamba.in_proj", Keep),
    ("ssm_conv1d.weight", "mamba.conv1d.weight", Taps),
    ("ssm_conv1d.bias", "mamba.conv1d.bias", Keep),
    ("ssm_dt.bias", "mamba.dt_bias", Flat),
    ("ssm_a", "mamba.A_log", NegatedExponential),
    ("ssm_d", "mamba.D", Flat),
    ("ssm_norm.weight", "mamba.norm.weight", Flat),
    ("ssm_out", "mamba.out_proj", Keep),
];

/// Names of a network whose layers are one mixer, and of the parts of a state space there.
pub(super) const ALONE: &[Name] = &[
    ("token_embd", "embeddings", Keep),
    ("output_norm", "norm_f", Keep),
    ("attn_norm", "norm", Keep),
    ("ssm_in", "mixer.in_proj", Keep),
    ("ssm_conv1d.weight", "mixer.conv1d.weight", Taps),
    ("ssm_conv1d.bias", "mixer.conv1d.bias", Keep),
    ("ssm_dt.bias", "mixer.dt_bias", Flat),
    ("ssm_a", "mixer.A_log", NegatedExponential),
    ("ssm_d", "mixer.D", Flat),
    ("ssm_norm.weight", "mixer.norm.weight", Flat),
    ("ssm_out", "mixer.out_proj", Keep),
];
