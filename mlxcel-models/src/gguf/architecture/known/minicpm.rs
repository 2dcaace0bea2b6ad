//! MiniCPM.

use serde_json::Value;

use super::deepseek;
use super::shared::*;

pub(super) const MINICPM: Architecture = Architecture {
    name: "minicpm",
    model_type: "minicpm",
    rows: Paired,
    settings: &[&[RMS_EPSILON, ("embedding_scale", "scale_emb"), ("expert_count", "num_experts")]],
    present: &[("attn_output.bias", "attention_bias")],
    adapt: minicpm,
    ..PLAIN
};

/// Factors of embeddings, residuals and logits are those of the published model, which files do not say.
pub(super) const MINICPM3: Architecture = Architecture {
    name: "minicpm3",
    model_type: "minicpm3",
    settings: &[deepseek::SETTINGS],
    present: &[],
    tensors: &[deepseek::TENSORS],
    adapt: minicpm3,
    ..PLAIN
};

/// Factors are as the network multiplies and divides by them. Older files do not say them; they are those of
/// MiniCPM-2B.
fn minicpm(draft: &mut Draft<'_>) -> Result<()> {
    let layers = draft.layers()? as f64;
    let hidden = draft.required_size("embedding_length")? as f64;
    let depth = draft.number("residual_scale")?.map_or(1.4, |scale| scale * layers.sqrt());
    let width = draft.number("logit_scale")?.map_or(256.0, |scale| hidden / scale);
    draft.set("scale_depth", depth);
    draft.set("dim_model_base", width);
    draft.fields.entry("scale_emb").or_insert(12.into());
    Ok(())
}

fn minicpm3(draft: &mut Draft<'_>) -> Result<()> {
    let rotated = draft.required_size("rope.dimension_count")?;
    let keys = draft.required_size("attention.key_length")?;
    let heads = draft.required_size("attention.head_count")?.max(1);
    draft.set("qk_rope_head_dim", rotated);
    draft.set("qk_nope_head_dim", keys.saturating_sub(rotated));
    if let Some(values) = draft.size_of("attn_output.weight", 1) {
        draft.set("v_head_dim", values / heads);
    }
    draft.fields.remove("head_dim");
    if draft.size("attention.q_lora_rank")?.is_none() {
        draft.set("q_lora_rank", Value::Null);
    }
    Ok(())
}
