//! Llama, and what differs from it by little.

use super::super::super::metadata::Sizes;
use super::shared::*;

pub(super) const ARCEE: Architecture = Architecture {
    name: "arcee",
    model_type: "arcee",
    rows: Paired,
    present: &[("attn_q.bias", "attention_bias"), ("ffn_up.bias", "mlp_bias")],
    ..PLAIN
};

/// BitNet b1.58 as its first authors published it; files do not say the activation of its MLPs.
pub(super) const BITNET: Architecture = Architecture {
    name: "bitnet",
    model_type: "bitnet",
    fixed: &[("hidden_act", Text("silu"))],
    tensors: &[&[
        ("attn_sub_norm", "self_attn.attn_sub_norm", Keep),
        ("ffn_sub_norm", "mlp.ffn_sub_norm", Keep),
    ]],
    ..PLAIN
};

/// An EAGLE-3 draft head, whose model is in another file.
pub(super) const EAGLE3: Architecture = Architecture {
    name: "eagle3",
    model_type: "llama",
    rows: Paired,
    settings: &[&[
        RMS_EPSILON,
        ("vocab_size", "vocab_size"),
        ("target_hidden_size", "target_hidden_size"),
        ("norm_before_residual", "norm_before_residual"),
        ("norm_before_fc", "norm_before_fc"),
    ]],
    base: ["", "layers."],
    tensors: &[&[
        ("fc", "fc", Keep),
        ("enc.output_norm", "input_norm", Keep),
        ("attn_norm_2", "hidden_norm", Keep),
        ("d2t", "draft_tokens", Keep),
    ]],
    adapt: eagle3,
    ..PLAIN
};

pub(super) const LLAMA: Architecture = Architecture {
    name: "llama",
    model_type: "llama",
    rows: Paired,
    settings: &[&[RMS_EPSILON, ("expert_count", "num_local_experts"), CHOSEN]],
    present: GATED_BIASES,
    adapt: llama,
    ..PLAIN
};

/// Llama read in both directions, as embeddings are made with it.
pub(super) const LLAMA_EMBED: Architecture =
    Architecture { name: "llama-embed", fixed: &[("is_causal", Flag(false))], ..LLAMA };

pub(super) const LLAMA4: Architecture = Architecture {
    name: "llama4",
    model_type: "llama4_text",
    rows: Pairs,
    settings: &[&[
        RMS_EPSILON,
        ("expert_count", "num_local_experts"),
        CHOSEN,
        ("interleave_moe_layer_step", "interleave_moe_layer_step"),
        (WIDTH, "intermediate_size_mlp"),
        ("expert_feed_forward_length", "intermediate_size"),
    ]],
    tensors: &[&[
        ("ffn_gate", "feed_forward.gate_proj", Keep),
        ("ffn_up", "feed_forward.up_proj", Keep),
        ("ffn_down", "feed_forward.down_proj", Keep),
        ("ffn_gate_inp", "feed_forward.router", Keep),
        ("ffn_gate_exps", "feed_forward.experts.gate_proj", Keep),
        ("ffn_up_exps", "feed_forward.experts.up_proj", Keep),
        ("ffn_down_exps", "feed_forward.experts.down_proj", Keep),
        ("ffn_gate_shexp", "feed_forward.shared_expert.gate_proj", Keep),
        ("ffn_up_shexp", "feed_forward.shared_expert.up_proj", Keep),
        ("ffn_down_shexp", "feed_forward.shared_expert.down_proj", Keep),
    ]],
    adapt: llama4,
    ..PLAIN
};

pub(super) const MISTRAL3: Architecture = Architecture {
    name: "mistral3",
    model_type: "ministral3",
    rows: Paired,
    fixed: &[("sliding_window", Null)],
    adapt: ministral3,
    ..PLAIN
};

pub(super) const SEED_OSS: Architecture = Architecture {
    name: "seed_oss",
    model_type: "seed_oss",
    present: &[("attn_q.bias", "attention_bias"), ("attn_output.bias", "attention_out_bias")],
    tensors: &[&[("post_attention_norm", "post_attention_layernorm", Keep)]],
    ..PLAIN
};

pub(super) const SMOLLM3: Architecture =
    Architecture { name: "smollm3", model_type: "smollm3", rows: Paired, ..PLAIN };

/// The depths that a head reads of its model, in the order of the columns of its projection.
fn eagle3(draft: &mut Draft<'_>) -> Result<()> {
    const DEPTHS: &str = "target_layers";
    let Some(Sizes::Each(depths)) = draft.sizes(DEPTHS)? else {
        return Err(draft.metadata.absent(&draft.key(DEPTHS)));
    };
    if !depths.is_sorted() {
        let message = "depths in another order than that of the model's layers are not supported".to_owned();
        return Err(draft.metadata.unsupported(&draft.key(DEPTHS), message));
    }
    if !draft.fields.contains_key("vocab_size") {
        return Err(draft.metadata.absent(&draft.key("vocab_size")));
    }
    draft.set("eagle_aux_hidden_state_layer_ids", depths);
    draft.set("architectures", vec!["LlamaForCausalLMEagle3"]);
    Ok(())
}

/// Llama, or Mixtral where there are experts.
fn llama(draft: &mut Draft<'_>) -> Result<()> {
    if draft.size("expert_count")?.is_some_and(|count| count > 0) {
        draft.set("model_type", "mixtral");
    }
    Ok(())
}

fn ministral3(draft: &mut Draft<'_>) -> Result<()> {
    let (log, beta) =
        (draft.number("rope.scaling.yarn_log_multiplier")?, draft.number("attention.temperature_scale")?);
    for (setting, number) in [("mscale", log), ("mscale_all_dim", log), ("llama_4_scaling_beta", beta)] {
        draft.set_scaling(setting, number);
    }
    Ok(())
}

/// The model with 128 experts alone has no norms of queries and keys, which have no weights. Without a window,
/// all layers rotate and see everything.
fn llama4(draft: &mut Draft<'_>) -> Result<()> {
    let is_normed = draft.size("expert_count")? != Some(128);
    draft.set("use_qk_norm", is_normed);
    if draft.size("attention.sliding_window")? == Some(0) {
        let layers = draft.layers()?;
        draft.set_by_layer("layer_types", |_, _| "full_attention")?;
        draft.set("no_rope_layers", vec![1; layers]);
        draft.set("attn_temperature_tuning", false);
    }
    Ok(())
}
