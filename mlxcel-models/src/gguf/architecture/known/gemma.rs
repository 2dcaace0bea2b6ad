//! Gemma.

use serde_json::{Value, json};

use super::super::super::metadata::Sizes;
use super::shared::*;

pub(super) const GEMMA: Architecture =
    Architecture { name: "gemma", model_type: "gemma", whole_norms: true, ..PLAIN };

pub(super) const GEMMA2: Architecture = Architecture {
    name: "gemma2",
    model_type: "gemma2",
    whole_norms: true,
    settings: &[&[
        RMS_EPSILON,
        ("attn_logit_softcapping", "attn_logit_softcapping"),
        ("final_logit_softcapping", "final_logit_softcapping"),
    ]],
    tensors: &[FOUR_NORMS],
    adapt: gemma2,
    ..PLAIN
};

pub(super) const GEMMA3: Architecture = Architecture {
    name: "gemma3",
    model_type: "gemma3_text",
    whole_norms: true,
    settings: &[&[
        RMS_EPSILON,
        ("rope.freq_base_swa", "rope_local_base_freq"),
        ("final_logit_softcapping", "final_logit_softcapping"),
    ]],
    tensors: &[FOUR_NORMS, DENSE],
    adapt: gemma3,
    ..PLAIN
};

/// EmbeddingGemma.
pub(super) const GEMMA_EMBEDDING: Architecture =
    Architecture { name: "gemma-embedding", fixed: &[("use_bidirectional_attention", Flag(true))], ..GEMMA3 };

pub(super) const GEMMA3N: Architecture = Architecture {
    name: "gemma3n",
    model_type: "gemma3n_text",
    settings: &[&[
        RMS_EPSILON,
        ("rope.freq_base_swa", "rope_local_base_freq"),
        ("final_logit_softcapping", "final_logit_softcapping"),
        LAYER_INPUT_WIDTH,
        SHARED_LAYERS,
        ("altup.active_idx", "altup_active_idx"),
        ("altup.num_inputs", "altup_num_inputs"),
    ]],
    tensors: &[
        FOUR_NORMS,
        LAYER_INPUTS,
        &[
            ("altup_proj.weight", "altup_projections.#.weight", Each),
            ("altup_unembd_proj.weight", "altup_unembed_projections.#.weight", Each),
            ("altup_correct_scale.weight", "altup.correct_output_scale", Keep),
            ("altup_correct_coef", "altup.correction_coefs", Keep),
            ("altup_predict_coef", "altup.prediction_coefs", Keep),
            ("altup_router", "altup.modality_router", Keep),
            ("altup_router_norm", "altup.router_norm", Keep),
            ("laurel_l", "laurel.linear_left", Keep),
            ("laurel_r", "laurel.linear_right", Keep),
            ("laurel_post_norm", "laurel.post_laurel_norm", Keep),
        ],
    ],
    adapt: gemma3n,
    ..PLAIN
};

pub(super) const GEMMA4: Architecture = Architecture {
    name: "gemma4",
    model_type: "gemma4_text",
    settings: &[&[
        RMS_EPSILON,
        ("final_logit_softcapping", "final_logit_softcapping"),
        LAYER_INPUT_WIDTH,
        SHARED_LAYERS,
        ("expert_count", "num_experts"),
        ("expert_used_count", "top_k_experts"),
        ("expert_feed_forward_length", "moe_intermediate_size"),
    ]],
    tensors: &[
        FOUR_NORMS,
        LAYER_INPUTS,
        &[
            ("post_ffw_norm_1", "post_feedforward_layernorm_1", Keep),
            ("post_ffw_norm_2", "post_feedforward_layernorm_2", Keep),
            ("pre_ffw_norm_2", "pre_feedforward_layernorm_2", Keep),
            ("layer_output_scale.weight", "layer_scalar", Keep),
            ("ffn_gate_inp.weight", "router.proj.weight", Keep),
            ("ffn_gate_inp.scale", "router.scale", Keep),
            ("ffn_down_exps.scale", "router.per_expert_scale", Keep),
            ("ffn_gate_up_exps", "experts.switch_glu.gate_up_proj", Keep),
            ("ffn_gate_exps", "experts.switch_glu.gate_proj", Keep),
            ("ffn_up_exps", "experts.switch_glu.up_proj", Keep),
            ("ffn_down_exps", "experts.switch_glu.down_proj", Keep),
        ],
    ],
    adapt: gemma4,
    ..PLAIN
};

/// Names of the layers behind the pooling, in the folders of sentence-transformers.
const DENSE: &[Name] = &[("dense_2", "2_Dense.linear", Keep), ("dense_3", "3_Dense.linear", Keep)];
const LAYER_INPUT_WIDTH: Setting = ("embedding_length_per_layer_input", "hidden_size_per_layer_input");
const SHARED_LAYERS: Setting = ("attention.shared_kv_layers", "num_kv_shared_layers");
/// Names of the embeddings that layers read beside the stream.
const LAYER_INPUTS: &[Name] = &[
    ("per_layer_token_embd", "embed_tokens_per_layer", Keep),
    ("per_layer_model_proj", "per_layer_model_projection", Keep),
    ("per_layer_proj_norm", "per_layer_projection_norm", Keep),
    ("inp_gate", "per_layer_input_gate", Keep),
    ("proj", "per_layer_projection", Keep),
    ("post_norm", "post_per_layer_input_norm", Keep),
];

fn gemma2(draft: &mut Draft<'_>) -> Result<()> {
    query_scalar(draft, 46)?;
    draft.windows(2)?;
    // The first files do not name the window, which has one size in all models.
    if draft.size("attention.sliding_window")?.is_none() {
        draft.fields.remove("sliding_window");
    }
    Ok(())
}

fn gemma3(draft: &mut Draft<'_>) -> Result<()> {
    query_scalar(draft, 62)?;
    draft.windows(6)?;
    full_without_window(draft)
}

/// The rows of the table of embeddings for layers.
fn layer_inputs(draft: &mut Draft<'_>) {
    draft.set_rows_of("vocab_size_per_layer_input", "per_layer_token_embd.weight");
}

fn gemma3n(draft: &mut Draft<'_>) -> Result<()> {
    const DEVIATIONS: &str = "activation_sparsity_scale";
    layer_inputs(draft);
    draft.windows(5)?;
    draft.set_size_of("laurel_rank", "laurel_l.weight", 0);
    // Layers that keep everything have minus infinity.
    let of = |number: f64| match number {
        f64::NEG_INFINITY => Ok(Value::Null),
        number if number.is_finite() => Ok(number.into()),
        _ => Err(draft.metadata.wrong(&draft.key(DEVIATIONS), "numbers, or minus infinity")),
    };
    let deviations = draft.numbers(DEVIATIONS)?.map(|numbers| numbers.map(of).collect::<Result<Vec<_>>>());
    if let Some(deviations) = deviations.transpose()? {
        draft.set("activation_sparsity_deviations", deviations);
    }
    Ok(())
}

/// Layers of full attention have heads of their own, and a rotary embedding in which a part of the
/// frequencies is divided by a factor that stops them.
fn gemma4(draft: &mut Draft<'_>) -> Result<()> {
    const ROTATED: &str = "rope.dimension_count_swa";
    layer_inputs(draft);
    draft.windows(6)?;
    let full = draft.head_dim()?;
    let sliding = draft.size("attention.key_length_swa")?.unwrap_or(full);
    draft.set("global_head_dim", full);
    draft.set("head_dim", sliding);
    if let Some(rotated) = draft.size(ROTATED)?.filter(|rotated| *rotated != sliding) {
        let message = format!("rotating {rotated} of the {sliding} elements of a head is not supported here");
        return Err(draft.metadata.unsupported(&draft.key(ROTATED), message));
    }
    draft.set("enable_moe_block", draft.size("expert_count")?.is_some_and(|count| count > 0));
    let types = draft.fields.get("layer_types").and_then(Value::as_array).cloned().unwrap_or_default();
    let is_full = |layer: usize| types.get(layer).is_some_and(|kind| *kind == "full_attention");
    let layers = draft.layers()?;
    if let Some(Sizes::Each(heads)) = draft.sizes("attention.head_count_kv")? {
        let of = |wanted: bool| heads.iter().enumerate().find(|(layer, _)| is_full(*layer) == wanted);
        for (setting, heads) in [("num_key_value_heads", of(false)), ("num_global_key_value_heads", of(true))]
        {
            if let Some((_, heads)) = heads {
                draft.set(setting, *heads);
            }
        }
    }
    let has = |layer, part| draft.layer_has(layer, part);
    let keys_as_values =
        (0..layers).any(|layer| is_full(layer) && has(layer, "attn_k") && !has(layer, "attn_v"));
    draft.set("attention_k_eq_v", keys_as_values);
    if let Some(Sizes::Each(widths)) = draft.sizes(WIDTH)? {
        let (first, last) = (widths.first().copied().unwrap_or(1), widths.last().copied().unwrap_or(1));
        draft.set("intermediate_size", first);
        draft.set("use_double_wide_mlp", last > first);
    }
    let part = turned_part(draft)?;
    let theta = draft.number("rope.freq_base")?.unwrap_or(1e6);
    let local = draft.number("rope.freq_base_swa")?.unwrap_or(10_000.0);
    draft.set(
        "rope_parameters",
        json!({
            "full_attention":
                {"rope_type": "proportional", "rope_theta": theta, "partial_rotary_factor": part},
            "sliding_attention": {"rope_type": "default", "rope_theta": local},
        }),
    );
    Ok(())
}

/// The part of the frequencies that turns; the others are divided by a factor that stops them.
fn turned_part(draft: &mut Draft<'_>) -> Result<f64> {
    const STOPPED: f64 = 1e20;
    let Some(Value::Object(scaling)) = draft.fields.remove("rope_scaling") else { return Ok(1.0) };
    let factors = scaling.get("freq_factors").and_then(Value::as_array);
    let factors = factors.into_iter().flatten().map(|factor| factor.as_f64().unwrap_or_default());
    let factors = factors.collect::<Vec<_>>();
    let turned = factors.iter().take_while(|factor| **factor == 1.0).count();
    if factors.is_empty() || factors.iter().skip(turned).any(|factor| *factor < STOPPED) {
        let message = "a scaling of the rotary embedding is not supported for this architecture".to_owned();
        return Err(draft.metadata.unsupported("rope_freqs.weight", message));
    }
    Ok(turned as f64 / factors.len() as f64)
}

/// What queries are scaled by: in the largest model of a generation the hidden size by heads, in others the
/// width of heads.
fn query_scalar(draft: &mut Draft<'_>, largest: usize) -> Result<()> {
    let scalar = if draft.layers()? == largest {
        draft.required_size("embedding_length")? / draft.required_size("attention.head_count")?.max(1)
    } else {
        draft.head_dim()?
    };
    draft.set("query_pre_attn_scalar", scalar);
    Ok(())
}

/// Where there is no window, no layer is to see one.
fn full_without_window(draft: &mut Draft<'_>) -> Result<()> {
    if draft.fields.get("sliding_window").is_none_or(Value::is_null) {
        draft.set_by_layer("layer_types", |_, _| "full_attention")?;
    }
    Ok(())
}
