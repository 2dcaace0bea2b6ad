//! DeepSeek, and what has its latent attention or its experts.

use serde_json::Value;

use super::shared::*;

/// Ling 3.
pub(super) const BAILINGMOE3: Architecture = Architecture {
    name: "bailingmoe3",
    model_type: "bailing_hybrid",
    settings: &[
        SETTINGS,
        &[
            ("expert_count", "num_experts"),
            ("expert_shared_count", "num_shared_experts"),
            ("expert_used_count", "num_experts_per_token"),
            ("expert_weights_scale", "routed_scaling_factor"),
            ("expert_weights_norm", "moe_renormalize"),
            ("expert_group_count", "num_expert_group"),
            ("expert_group_used_count", "topk_group"),
            ("ssm.conv_kernel", "linear_conv_kernel_dim"),
            ("kda.head_dim", "linear_head_dim"),
            ("kda.safe_gate", "kda_safe_gate"),
            ("kda.gate_lower_bound", "kda_lower_bound"),
            ("context_length", "model_max_length"),
        ],
    ],
    tensors: &[
        &[
            ("attn_gate", "self_attn.g_proj", Keep),
            ("ssm_a", "self_attn.A_log", Exponential),
            ("ssm_f_a", "self_attn.f_proj", Keep),
            ("ssm_g_a", "self_attn.g_proj", Keep),
        ],
        CORRECTION,
        SHARED_EXPERTS,
        TENSORS,
        DELTA_ATTENTION,
    ],
    adapt: bailingmoe3,
    ..DEEPSEEK2
};

pub(super) const DEEPSEEK: Architecture = Architecture {
    name: "deepseek",
    model_type: "deepseek",
    rows: Paired,
    settings: &[&[RMS_EPSILON], EXPERTS, ROUTER],
    tensors: &[SHARED_EXPERTS],
    adapt: |draft| experts_after(draft, "first_k_dense_replace"),
    ..PLAIN
};

pub(super) const DEEPSEEK2: Architecture = Architecture {
    name: "deepseek2",
    model_type: "deepseek_v3",
    rows: Pairs,
    settings: &[SETTINGS, EXPERTS, ROUTER],
    present: &[],
    tensors: &[CORRECTION, SHARED_EXPERTS, TENSORS],
    draft_head: Some(HEAD_BEHIND_LAYERS),
    adapt: deepseek2,
    ..PLAIN
};

pub(super) const DEEPSEEK32: Architecture = Architecture {
    name: "deepseek32",
    model_type: "deepseek_v32",
    settings: &[
        SETTINGS,
        EXPERTS,
        ROUTER,
        &[
            ("attention.indexer.head_count", "index_n_heads"),
            ("attention.indexer.key_length", "index_head_dim"),
            ("attention.indexer.top_k", "index_topk"),
        ],
    ],
    tensors: &[
        CORRECTION,
        SHARED_EXPERTS,
        TENSORS,
        &[
            ("indexer.k_norm", "self_attn.indexer.k_norm", Keep),
            ("indexer.proj", "self_attn.indexer.weights_proj", Keep),
            ("indexer.attn_k", "self_attn.indexer.wk", Keep),
            ("indexer.attn_q_b", "self_attn.indexer.wq_b", Keep),
        ],
    ],
    adapt: indexed,
    ..DEEPSEEK2
};

pub(super) const GLM_DSA: Architecture =
    Architecture { name: "glm-dsa", model_type: "glm_moe_dsa", ..DEEPSEEK32 };

pub(super) const SETTINGS: &[Setting] =
    &[RMS_EPSILON, ("attention.q_lora_rank", "q_lora_rank"), ("attention.kv_lora_rank", "kv_lora_rank")];
pub(super) const TENSORS: &[Name] = &[
    ("attn_q_a", "self_attn.q_a_proj", Keep),
    ("attn_q_a_norm", "self_attn.q_a_layernorm", Keep),
    ("attn_q_b", "self_attn.q_b_proj", Keep),
    ("attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa", Keep),
    ("attn_kv_a_norm", "self_attn.kv_a_layernorm", Keep),
    ("attn_kv_b", "self_attn.kv_b_proj", Keep),
    ("attn_k_b", "self_attn.embed_q", Keep),
    ("attn_v_b", "self_attn.unembed_out", Keep),
];

pub(super) const DOTS1: Architecture = Architecture {
    name: "dots1",
    model_type: "dots1",
    settings: &[&[RMS_EPSILON], EXPERTS, ROUTER],
    fixed: &[("sliding_window", Null)],
    tensors: &[CORRECTION, SHARED_EXPERTS],
    adapt: |draft| experts_after(draft, "first_k_dense_replace"),
    ..PLAIN
};

pub(super) const MISTRAL4: Architecture =
    Architecture { name: "mistral4", model_type: "mistral4", adapt: mistral4, ..DEEPSEEK2 };

pub(super) const KIMI_LINEAR: Architecture = Architecture {
    name: "kimi-linear",
    model_type: "kimi_linear",
    settings: &[
        SETTINGS,
        ROUTER,
        &[
            ("expert_count", "num_experts"),
            ("expert_shared_count", "num_shared_experts"),
            ("expert_used_count", "num_experts_per_token"),
            ("ssm.conv_kernel", "linear_conv_kernel_dim"),
            ("kda.head_dim", "linear_head_dim"),
            ("context_length", "model_max_length"),
        ],
    ],
    fixed: &[("moe_renormalize", Flag(true))],
    tensors: &[
        CORRECTION,
        SHARED_EXPERTS,
        TENSORS,
        DELTA_ATTENTION,
        &[
            ("ssm_a", "self_attn.A_log", NegatedExponential),
            ("ssm_f_a", "self_attn.f_a_proj", Keep),
            ("ssm_f_b", "self_attn.f_b_proj", Keep),
            ("ssm_g_a", "self_attn.g_a_proj", Keep),
            ("ssm_g_b", "self_attn.g_b_proj", Keep),
        ],
    ],
    adapt: delta_attention,
    ..DEEPSEEK2
};

/// Names of the parts of Kimi delta attention.
const DELTA_ATTENTION: &[Name] = &[
    ("ssm_beta", "self_attn.b_proj", Keep),
    ("ssm_dt.bias", "self_attn.dt_bias", Keep),
    ("ssm_norm", "self_attn.o_norm", Keep),
    ("ssm_conv1d_q.weight", "self_attn.q_conv1d.weight", Taps),
    ("ssm_conv1d_k.weight", "self_attn.k_conv1d.weight", Taps),
    ("ssm_conv1d_v.weight", "self_attn.v_conv1d.weight", Taps),
];

/// Limits of gates and ups are refused.
fn bailingmoe3(draft: &mut Draft<'_>) -> Result<()> {
    for key in ["swiglu_clamp_exp", "swiglu_clamp_shexp"] {
        if draft.numbers(key)?.is_some_and(|mut limits| limits.any(|limit| limit != 0.0)) {
            let message = "limits of experts are not supported for this architecture".to_owned();
            return Err(draft.metadata.unsupported(&draft.key(key), message));
        }
    }
    delta_attention(draft)
}

fn delta_attention(draft: &mut Draft<'_>) -> Result<()> {
    latents(draft)?;
    draft.copy("attention.head_count", "num_key_value_heads")?;
    draft.set_size_of("linear_num_heads", "ssm_beta.weight", 0);
    mixers(draft, "attn_kv_a_mqa", "linear_attention")
}

/// DeepSeek-V3, or DeepSeek-V2 where there is no bias and experts are chosen by a softmax.
fn deepseek2(draft: &mut Draft<'_>) -> Result<()> {
    latents(draft)?;
    let bias = draft.size_of("exp_probs_b.bias", 0).is_some();
    let is_softmax = match draft.size("expert_gating_func")? {
        Some(function) => function != 2,
        None => !bias,
    };
    let groups = draft.size("expert_group_count")?;
    if is_softmax {
        draft.set("model_type", "deepseek_v2");
        if groups.is_some_and(|groups| groups > 1) {
            draft.set("topk_method", "group_limited_greedy");
        }
    } else if groups.is_none() && draft.size("expert_count")? != Some(256) {
        draft.set("n_group", 1);
        draft.set("topk_group", 1);
    }
    Ok(())
}

fn mistral4(draft: &mut Draft<'_>) -> Result<()> {
    latents(draft)?;
    draft.copy("attention.head_count", "num_key_value_heads")?;
    // The converter leaves out how queries grow with positions.
    let beta = draft.number("attention.temperature_scale")?.unwrap_or(0.1);
    draft.set_scaling("llama_4_scaling_beta", beta);
    Ok(())
}

/// Layers without an indexer of their own use the positions of one before.
fn indexed(draft: &mut Draft<'_>) -> Result<()> {
    latents(draft)?;
    draft.set_by_layer("indexer_types", |draft, layer| {
        if draft.layer_has(layer, "indexer.attn_k") { "full" } else { "shared" }
    })
}

/// The sizes of latents, and what all have in common.
fn latents(draft: &mut Draft<'_>) -> Result<()> {
    experts_after(draft, "first_k_dense_replace")?;
    // Files from before latent attention was computed as such have sizes of whole heads.
    let size = |draft: &Draft<'_>, latent: &str, older: &str| match draft.size(latent)? {
        Some(size) => Ok(size),
        None => draft.required_size(older),
    };
    let rotated = draft.required_size("rope.dimension_count")?;
    let keys = size(draft, "attention.key_length_mla", "attention.key_length")?;
    let values = size(draft, "attention.value_length_mla", "attention.value_length")?;
    draft.set("qk_rope_head_dim", rotated);
    draft.set("qk_nope_head_dim", keys.saturating_sub(rotated));
    draft.set("v_head_dim", values);
    for setting in ["head_dim", "num_key_value_heads"] {
        draft.fields.remove(setting);
    }
    if draft.size("attention.q_lora_rank")?.is_none() {
        draft.set("q_lora_rank", Value::Null);
    }
    if let Some(multiplier) = draft.number("rope.scaling.yarn_log_multiplier")? {
        // It is stored times a tenth; single precision is not to be seen.
        let all = (multiplier * 1e7).round() / 1e6;
        draft.set_scaling("mscale", all);
        draft.set_scaling("mscale_all_dim", all);
    }
    Ok(())
}
