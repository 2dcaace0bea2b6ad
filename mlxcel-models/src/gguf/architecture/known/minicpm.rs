//! MiniCPM.

use mlxcel_core::Result;
use serde_json::Value;

use super::super::Architecture;
use super::super::draft::Draft;
use super::{PLAIN, deepseek};

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
