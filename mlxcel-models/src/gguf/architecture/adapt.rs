//! Conversions of architectures that tables cannot express.

use mlxcel_core::Result;
use serde_json::{Value, json};

use super::super::metadata::Sizes;
use super::draft::Draft;

pub(super) fn nothing(_: &mut Draft<'_>) -> Result<()> {
    Ok(())
}

/// Llama, or Mixtral where there are experts.
pub(super) fn llama(draft: &mut Draft<'_>) -> Result<()> {
    if draft.size("expert_count")?.is_some_and(|count| count > 0) {
        draft.set("model_type", "mixtral");
    }
    Ok(())
}

/// Sizes of experts, from their tensors.
fn experts(draft: &mut Draft<'_>) {
    if let Some(width) = draft.size_of("ffn_gate_exps.weight", 1) {
        draft.set("moe_intermediate_size", width);
    }
}

pub(super) fn qwen2moe(draft: &mut Draft<'_>) -> Result<()> {
    experts(draft);
    if let Some(width) = draft.size_of("ffn_gate_shexp.weight", 0) {
        draft.set("shared_expert_intermediate_size", width);
    }
    Ok(())
}

pub(super) fn qwen3moe(draft: &mut Draft<'_>) -> Result<()> {
    experts(draft);
    Ok(())
}

/// Experts whose width is the only one.
pub(super) fn expert_width(draft: &mut Draft<'_>) -> Result<()> {
    if let Some(width) = draft.size_of("ffn_gate_exps.weight", 1) {
        draft.set("intermediate_size", width);
    }
    Ok(())
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

pub(super) fn gemma2(draft: &mut Draft<'_>) -> Result<()> {
    query_scalar(draft, 46)?;
    draft.windows(2)
}

pub(super) fn gemma3(draft: &mut Draft<'_>) -> Result<()> {
    query_scalar(draft, 62)?;
    draft.windows(6)?;
    full_without_window(draft)
}

/// Where there is no window, no layer is to see one.
fn full_without_window(draft: &mut Draft<'_>) -> Result<()> {
    if draft.fields.get("sliding_window").is_none_or(Value::is_null) {
        let layers = draft.layers()?;
        draft.set("layer_types", vec!["full_attention"; layers]);
    }
    Ok(())
}

/// The part of heads that is rotated, under the name of the setting.
fn partial(draft: &mut Draft<'_>, setting: &str) -> Result<()> {
    if let Some(rotated) = draft.size("rope.dimension_count")? {
        let width = draft.head_dim()?.max(1);
        draft.set(setting, rotated as f64 / width as f64);
    }
    Ok(())
}

pub(super) fn partial_rotary(draft: &mut Draft<'_>) -> Result<()> {
    partial(draft, "partial_rotary_factor")
}

pub(super) fn gptneox(draft: &mut Draft<'_>) -> Result<()> {
    draft.copy("rope.freq_base", "rotary_emb_base")?;
    partial(draft, "rotary_pct")
}

pub(super) fn phi3(draft: &mut Draft<'_>) -> Result<()> {
    partial_rotary(draft)?;
    draft.copy("rope.scaling.original_context_length", "original_max_position_embeddings")?;
    let window = draft.size("attention.sliding_window")?.filter(|window| *window > 0);
    draft.set("sliding_window", window);
    Ok(())
}

/// OLMo 2, or OLMo 3 where layers see windows; those are rotated as they were before the context was
/// extended.
pub(super) fn olmo2(draft: &mut Draft<'_>) -> Result<()> {
    draft.windows(4)?;
    if draft.fields.get("sliding_window").is_none_or(Value::is_null) {
        return Ok(());
    }
    draft.set("model_type", "olmo3");
    let theta = draft.number("rope.freq_base")?.unwrap_or(10_000.0);
    let mut full = match draft.fields.remove("rope_scaling") {
        Some(Value::Object(scaling)) => scaling,
        _ => serde_json::Map::new(),
    };
    full.insert("rope_theta".to_owned(), theta.into());
    let local = draft.number("rope.freq_base_swa")?.unwrap_or(theta);
    let sliding = json!({"rope_type": "default", "rope_theta": local});
    draft.set("rope_parameters", json!({"full_attention": full, "sliding_attention": sliding}));
    Ok(())
}

pub(super) fn gpt_oss(draft: &mut Draft<'_>) -> Result<()> {
    expert_width(draft)?;
    draft.windows(2)?;
    // The pattern begins with a window.
    draft.fields.remove("layer_types");
    if let Some(Value::Object(scaling)) = draft.fields.get_mut("rope_scaling") {
        // What its authors say, and files do not.
        scaling.insert("truncate".to_owned(), Value::Bool(false));
    }
    Ok(())
}

pub(super) fn glm4moe(draft: &mut Draft<'_>) -> Result<()> {
    experts(draft);
    partial_rotary(draft)
}

/// DeepSeek-V3: the sizes of latents, and what choosing experts goes by.
pub(super) fn deepseek2(draft: &mut Draft<'_>) -> Result<()> {
    experts(draft);
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
    // The older generation, which has no bias either, chooses by a softmax.
    let bias = draft.size_of("exp_probs_b.bias", 0).is_some();
    match draft.size("expert_gating_func")? {
        Some(2) => {}
        None if bias => {}
        _ => draft.set("scoring_func", "softmax"),
    }
    let count = draft.size("expert_count")?.unwrap_or_default();
    if draft.size("expert_group_count")?.is_none() && count != 256 {
        draft.set("n_group", 1);
        draft.set("topk_group", 1);
    }
    if let Some(multiplier) = draft.number("rope.scaling.yarn_log_multiplier")?
        && let Some(Value::Object(scaling)) = draft.fields.get_mut("rope_scaling")
    {
        // It is stored times a tenth; single precision is not to be seen.
        let all = (multiplier * 1e7).round() / 1e6;
        scaling.insert("mscale".to_owned(), all.into());
        scaling.insert("mscale_all_dim".to_owned(), all.into());
    }
    Ok(())
}

pub(super) fn ministral3(draft: &mut Draft<'_>) -> Result<()> {
    let (log, beta) =
        (draft.number("rope.scaling.yarn_log_multiplier")?, draft.number("attention.temperature_scale")?);
    if let Some(Value::Object(scaling)) = draft.fields.get_mut("rope_scaling") {
        for (setting, number) in [("mscale", log), ("mscale_all_dim", log), ("llama_4_scaling_beta", beta)] {
            scaling.insert(setting.to_owned(), number.into());
        }
    }
    Ok(())
}

/// EXAONE 4: the large model alone has windows, whatever its file says.
pub(super) fn exaone4(draft: &mut Draft<'_>) -> Result<()> {
    draft.windows(4)?;
    if draft.layers()? == 64 && draft.size("attention.sliding_window")?.is_none() {
        draft.fields.remove("sliding_window");
    }
    Ok(())
}

pub(super) fn cohere2(draft: &mut Draft<'_>) -> Result<()> {
    draft.windows(4)
}

/// LFM2: layers without key/value heads are convolutions.
pub(super) fn lfm2(draft: &mut Draft<'_>) -> Result<()> {
    let layers = draft.layers()?;
    let heads = draft.sizes("attention.head_count_kv")?.unwrap_or(Sizes::All(1));
    let types = (0..layers).map(|layer| if heads.of(layer) == 0 { "conv" } else { "full_attention" });
    let types = types.collect::<Vec<_>>();
    draft.set("layer_types", types);
    Ok(())
}

pub(super) fn mamba2(draft: &mut Draft<'_>) -> Result<()> {
    let hidden = draft.required_size("embedding_length")?.max(1);
    let inner = draft.required_size("ssm.inner_size")?;
    let heads = draft.required_size("ssm.time_step_rank")?.max(1);
    draft.set("num_heads", heads);
    draft.set("head_dim", inner / heads);
    draft.set("expand", inner / hidden);
    Ok(())
}
