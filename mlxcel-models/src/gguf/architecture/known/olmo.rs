//! OLMo.

use serde_json::Value;

use super::shared::*;

pub(super) const OLMO: Architecture = Architecture {
    name: "olmo",
    model_type: "olmo",
    rows: Paired,
    settings: &[&[(LAYER_EPSILON, "layer_norm_eps"), ("attention.clamp_kqv", "clip_qkv")]],
    ..PLAIN
};

pub(super) const OLMO2: Architecture =
    Architecture { name: "olmo2", model_type: "olmo2", tensors: &[POST_NORMS], adapt: olmo2, ..PLAIN };

pub(super) const OLMOE: Architecture = Architecture {
    name: "olmoe",
    model_type: "olmoe",
    settings: &[&[RMS_EPSILON, ("expert_count", "num_experts"), CHOSEN, ("attention.clamp_kqv", "clip_qkv")]],
    adapt: expert_width,
    ..PLAIN
};

/// OLMo 2, or OLMo 3 where layers see windows; those are rotated as they were before the context was
/// extended.
fn olmo2(draft: &mut Draft<'_>) -> Result<()> {
    draft.windows(4)?;
    if draft.fields.get("sliding_window").is_none_or(Value::is_null) {
        return Ok(());
    }
    draft.set("model_type", "olmo3");
    layer_ropes(draft, [1.0, 1.0])
}
