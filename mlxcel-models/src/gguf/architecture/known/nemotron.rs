//! Nemotron.

use mlxcel_core::Result;

use super::super::Architecture;
use super::super::Change::{Flat, Keep, NegatedExponential, Taps};
use super::super::draft::Draft;
use super::{EXPERTS, LAYER_EPSILON, PLAIN, ROUTER, experts, mamba, partial_rotary};

pub(super) const NEMOTRON: Architecture = Architecture {
    name: "nemotron",
    model_type: "nemotron",
    whole_norms: true,
    settings: &[&[(LAYER_EPSILON, "norm_eps")]],
    present: &[("attn_q.bias", "attention_bias"), ("ffn_up.bias", "mlp_bias")],
    adapt: partial_rotary,
    ..PLAIN
};

/// Nemotron-H without experts.
pub(super) const NEMOTRON_H: Architecture = Architecture { name: "nemotron_h", ..NEMOTRON_H_MOE };

pub(super) const NEMOTRON_H_MOE: Architecture = Architecture {
    name: "nemotron_h_moe",
    model_type: "nemotron_h",
    settings: &[
        EXPERTS,
        ROUTER,
        mamba::SETTINGS,
        &[(LAYER_EPSILON, "layer_norm_epsilon"), ("ssm.state_size", "ssm_state_size")],
    ],
    present: &[],
    base: ["backbone.", "layers."],
    tensors: &[&[
        ("token_embd", "embeddings", Keep),
        ("output_norm", "norm_f", Keep),
        ("attn_norm", "norm", Keep),
        ("attn_q", "mixer.q_proj", Keep),
        ("attn_k", "mixer.k_proj", Keep),
        ("attn_v", "mixer.v_proj", Keep),
        ("attn_output", "mixer.o_proj", Keep),
        ("ffn_up", "mixer.up_proj", Keep),
        ("ffn_down", "mixer.down_proj", Keep),
        ("ffn_gate_inp", "mixer.gate", Keep),
        ("exp_probs_b.bias", "mixer.gate.e_score_correction_bias", Keep),
        ("ffn_up_exps", "mixer.switch_mlp.fc1", Keep),
        ("ffn_down_exps", "mixer.switch_mlp.fc2", Keep),
        ("ffn_up_shexp", "mixer.shared_experts.up_proj", Keep),
        ("ffn_down_shexp", "mixer.shared_experts.down_proj", Keep),
        ("ssm_in", "mixer.in_proj", Keep),
        ("ssm_conv1d.weight", "mixer.conv1d.weight", Taps),
        ("ssm_conv1d.bias", "mixer.conv1d.bias", Keep),
        ("ssm_dt.bias", "mixer.dt_bias", Flat),
        ("ssm_a", "mixer.A_log", NegatedExponential),
        ("ssm_d", "mixer.D", Flat),
        ("ssm_norm.weight", "mixer.norm.weight", Flat),
        ("ssm_out", "mixer.out_proj", Keep),
    ]],
    adapt: nemotron_h,
    ..PLAIN
};

/// Each layer is what its tensors say.
fn nemotron_h(draft: &mut Draft<'_>) -> Result<()> {
    experts(draft);
    mamba::heads(draft, ["mamba_num_heads", "mamba_head_dim", "expand"])?;
    let layers = draft.layers()?;
    let kinds = [
        ("ssm_in", "linear_attention"),
        ("attn_q", "full_attention"),
        ("ffn_gate_inp", "moe"),
        ("ffn_up", "mlp"),
    ];
    let mut types = Vec::with_capacity(layers);
    for layer in 0..layers {
        let has = |part: &str| draft.has(&format!("blk.{layer}.{part}.weight"));
        let kind = kinds.iter().find(|(part, _)| has(part));
        types.push(kind.map_or("mlp", |(_, kind)| kind));
    }
    draft.set("layer_types", types);
    if let Some(width) = draft.size_of("ffn_up.weight", 0) {
        draft.set("intermediate_size", width);
    } else {
        draft.fields.remove("intermediate_size");
    }
    if let Some(width) = draft.size_of("ffn_up_shexp.weight", 0) {
        draft.set("moe_shared_expert_intermediate_size", width);
    }
    draft.set("use_bias", draft.size_of("ssm_in.bias", 0).is_some());
    draft.set("mlp_bias", draft.size_of("ffn_up.bias", 0).is_some());
    draft.set("use_conv_bias", draft.size_of("ssm_conv1d.bias", 0).is_some());
    Ok(())
}
