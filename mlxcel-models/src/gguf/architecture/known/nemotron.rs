//! Nemotron.

use super::mamba;
use super::shared::*;

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
    tensors: &[
        mamba::ALONE,
        &[
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
        ],
    ],
    adapt: nemotron_h,
    ..PLAIN
};

/// Each layer is what its tensors say.
fn nemotron_h(draft: &mut Draft<'_>) -> Result<()> {
    const KINDS: [(&str, &str); 4] = [
        ("ssm_in", "linear_attention"),
        ("attn_q", "full_attention"),
        ("ffn_gate_inp", "moe"),
        ("ffn_up", "mlp"),
    ];
    experts(draft);
    mamba::heads(draft, ["mamba_num_heads", "mamba_head_dim", "expand"])?;
    draft.set_by_layer("layer_types", |draft, layer| {
        let kind = KINDS.iter().find(|(part, _)| draft.layer_has(layer, part));
        kind.map_or("mlp", |(_, kind)| kind)
    })?;
    if draft.size_of("ffn_up.weight", 0).is_none() {
        draft.fields.remove("intermediate_size");
    }
    draft.set_size_of("intermediate_size", "ffn_up.weight", 0);
    draft.set_size_of("moe_shared_expert_intermediate_size", "ffn_up_shexp.weight", 0);
    draft.set("use_bias", draft.size_of("ssm_in.bias", 0).is_some());
    draft.set("mlp_bias", draft.size_of("ffn_up.bias", 0).is_some());
    draft.set("use_conv_bias", draft.size_of("ssm_conv1d.bias", 0).is_some());
    Ok(())
}
