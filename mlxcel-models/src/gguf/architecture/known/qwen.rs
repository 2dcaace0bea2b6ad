//! Qwen.

use serde_json::json;

use super::shared::*;

pub(super) const QWEN2: Architecture = Architecture { name: "qwen2", model_type: "qwen2", ..PLAIN };

pub(super) const QWEN2MOE: Architecture = Architecture {
    name: "qwen2moe",
    model_type: "qwen2_moe",
    settings: &[&[RMS_EPSILON, ("expert_count", "num_experts"), CHOSEN]],
    present: &[("attn_q.bias", "qkv_bias")],
    tensors: &[SHARED_EXPERT],
    adapt: qwen2moe,
    ..PLAIN
};

pub(super) const QWEN3: Architecture = Architecture {
    name: "qwen3",
    model_type: "qwen3",
    tensors: &[&[("cls.output", "score", Keep)]],
    adapt: reranker,
    ..PLAIN
};

pub(super) const QWEN3MOE: Architecture = Architecture {
    name: "qwen3moe",
    model_type: "qwen3_moe",
    settings: &[&[RMS_EPSILON, ("expert_count", "num_experts"), CHOSEN]],
    fixed: &[("norm_topk_prob", Flag(true))],
    adapt: |draft| {
        experts(draft);
        Ok(())
    },
    ..PLAIN
};

pub(super) const QWEN3NEXT: Architecture = Architecture {
    name: "qwen3next",
    model_type: "qwen3_next",
    settings: &[DELTA_SETTINGS, &[("expert_count", "num_experts"), CHOSEN]],
    tensors: &[
        DELTA_RULE,
        SHARED_EXPERT,
        &[("ssm_ba", "linear_attn.in_proj_ba", Keep), ("ssm_in", "linear_attn.in_proj_qkvz", Keep)],
    ],
    draft_head: Some(MTP),
    adapt: qwen3next,
    ..PLAIN
};

pub(super) const QWEN35: Architecture = Architecture {
    name: "qwen35",
    model_type: "qwen3_5_text",
    rows: Changed,
    settings: &[DELTA_SETTINGS],
    fixed: &[("values_by_turns", Flag(true))],
    tensors: &[DELTA_RULE, DELTA_GATES],
    draft_head: Some(MTP),
    adapt: delta_rule,
    ..PLAIN
};

pub(super) const QWEN35MOE: Architecture = Architecture {
    name: "qwen35moe",
    model_type: "qwen3_5_moe_text",
    rows: Changed,
    settings: QWEN3NEXT.settings,
    fixed: QWEN35.fixed,
    tensors: &[DELTA_RULE, DELTA_GATES, SHARED_EXPERT],
    draft_head: Some(MTP),
    adapt: qwen3next,
    ..PLAIN
};

const SHARED_EXPERT: &[Name] = &[
    ("ffn_gate_inp_shexp.weight", "mlp.shared_expert_gate.weight", Row),
    ("ffn_gate_shexp", "mlp.shared_expert.gate_proj", Keep),
    ("ffn_up_shexp", "mlp.shared_expert.up_proj", Keep),
    ("ffn_down_shexp", "mlp.shared_expert.down_proj", Keep),
];
const DELTA_GATES: &[Name] =
    &[("ssm_alpha", "linear_attn.in_proj_a", Keep), ("ssm_beta", "linear_attn.in_proj_b", Keep)];
/// The draft head, which in published files is beside the layers.
const MTP: &DraftHead = &DraftHead {
    layer: "mtp.layers.0.",
    modules: &[
        ("nextn.enorm", "mtp.pre_fc_norm_embedding"),
        ("nextn.hnorm", "mtp.pre_fc_norm_hidden"),
        ("nextn.eh_proj", "mtp.fc"),
        ("nextn.shared_head_norm", "mtp.norm"),
    ],
};
const DELTA_SETTINGS: &[Setting] = &[
    RMS_EPSILON,
    ("ssm.conv_kernel", "linear_conv_kernel_dim"),
    ("ssm.state_size", "linear_key_head_dim"),
    ("ssm.group_count", "linear_num_key_heads"),
    ("ssm.time_step_rank", "linear_num_value_heads"),
];

/// Qwen3-Reranker, of whose head the converter keeps the rows of "yes" and "no" as those of two classes.
fn reranker(draft: &mut Draft<'_>) -> Result<()> {
    if !draft.has("cls.output.weight") {
        return Ok(());
    }
    draft.set("architectures", vec!["Qwen3ForSequenceClassification"]);
    let key = draft.key("classifier.output_labels");
    let Some(labels) = draft.metadata.texts(&key)? else { return Ok(()) };
    // One more than there may be.
    let labels = labels.iter().take(3).collect::<Result<Vec<_>>>()?;
    if labels != ["yes", "no"] {
        let message = "rerankers whose classes are not called yes and no are not supported".to_owned();
        return Err(draft.metadata.unsupported(&key, message));
    }
    draft.set("id2label", json!({"0": "yes", "1": "no"}));
    Ok(())
}

fn qwen2moe(draft: &mut Draft<'_>) -> Result<()> {
    experts(draft);
    draft.set_size_of("shared_expert_intermediate_size", "ffn_gate_shexp.weight", 0);
    Ok(())
}

fn qwen3next(draft: &mut Draft<'_>) -> Result<()> {
    qwen2moe(draft)?;
    delta_rule(draft)
}

fn delta_rule(draft: &mut Draft<'_>) -> Result<()> {
    partial_rotary(draft)?;
    let inner = draft.required_size("ssm.inner_size")?;
    let heads = draft.required_size("ssm.time_step_rank")?.max(1);
    draft.set("linear_value_head_dim", inner / heads);
    mixers(draft, "attn_q", "linear_attention")
}
