//! Config of rotary embeddings.

use mlxcel_core::Result;
use serde_json::{Map, Value, json};

use super::draft::Draft;
use crate::rope::ROWS_IN_PAIRS;

/// The settings that a number of rotated elements of a head ends in.
const ROTATED_PART: [&str; 4] = ["partial_rotary_factor", "rotary_pct", "rotary_dim", "qk_rope_head_dim"];

/// Sets `rope_theta`, `rope_scaling` and the order of rotated rows.
pub(super) fn read(draft: &mut Draft<'_>) -> Result<()> {
    draft.set(ROWS_IN_PAIRS, draft.architecture.rows.are_rotated_in_pairs());
    draft.copy("rope.freq_base", "rope_theta")?;
    if let Some(scaling) = scaling(draft)? {
        draft.set("rope_scaling", scaling);
    }
    Ok(())
}

/// Models that rotate nothing, whatever their files say: the converter writes the hidden size by heads for
/// Nemotron-H, whose heads have another width.
const UNROTATED: [&str; 2] = ["jamba", "nemotron_h"];

/// Refuses a number of rotated elements that the settings do not have.
pub(super) fn check_dimensions(draft: &Draft<'_>) -> Result<()> {
    const KEY: &str = "rope.dimension_count";
    let is_setting = ROTATED_PART.iter().any(|setting| draft.fields.contains_key(*setting));
    let is_unrotated = UNROTATED.contains(&draft.architecture.model_type);
    if is_setting || is_unrotated || !draft.fields.contains_key("num_attention_heads") {
        return Ok(());
    }
    let width = draft.head_dim()?;
    match draft.size(KEY)?.filter(|rotated| *rotated != width) {
        None => Ok(()),
        Some(rotated) => {
            let message =
                format!("rotating {rotated} of the {width} elements of a head is not supported here");
            Err(draft.metadata.unsupported(&draft.key(KEY), message))
        }
    }
}

fn scaling(draft: &Draft<'_>) -> Result<Option<Map<String, Value>>> {
    const TYPE: &str = "rope.scaling.type";
    let key = draft.key(TYPE);
    let kind = draft.metadata.text(&key)?;
    if let Some(other) = kind.filter(|kind| !["none", "linear", "yarn", "longrope"].contains(kind)) {
        let message =
            format!("scaling of type '{}' is not known; linear, yarn and longrope are", other.escape_debug());
        return Err(draft.metadata.unsupported(&key, message));
    }
    let factor = match draft.number("rope.scaling.factor")? {
        Some(factor) => Some(factor),
        // The older name of a linear one.
        None => draft.number("rope.scale_linear")?,
    };
    let mut fields = Map::new();
    let mut set = |name: &str, value: Value| drop(fields.insert(name.to_owned(), value));
    let beside_factors = || match kind {
        Some(kind @ ("linear" | "yarn")) => {
            let message =
                format!("scaling of type {kind} beside a factor for each frequency is not supported");
            Err(draft.metadata.unsupported(&key, message))
        }
        _ => Ok(()),
    };
    if let Some(long) = factors(draft, "rope_factors_long.weight")? {
        beside_factors()?;
        set("rope_type", json!("longrope"));
        set("long_factor", long.into());
        set("short_factor", factors(draft, "rope_factors_short.weight")?.into());
        set("attention_factor", draft.number("rope.scaling.attn_factor")?.into());
    } else if let Some(factors) = factors(draft, "rope_freqs.weight")? {
        beside_factors()?;
        set("rope_type", json!("freq_factors"));
        set("freq_factors", factors.into());
    } else {
        match (kind, factor) {
            (None | Some("linear"), Some(factor)) if factor != 1.0 && factor != 0.0 => {
                set("rope_type", json!("linear"));
                set("factor", factor.into());
            }
            (Some("yarn"), factor) => {
                set("rope_type", json!("yarn"));
                set("factor", factor.into());
                // Converters write 1 where the scale follows from the factor, as llama.cpp has it always.
                let scale = draft.number("rope.scaling.yarn_attn_factor")?.filter(|scale| *scale != 1.0);
                set("attention_factor", scale.into());
                set("beta_fast", draft.number("rope.scaling.yarn_beta_fast")?.into());
                set("beta_slow", draft.number("rope.scaling.yarn_beta_slow")?.into());
            }
            _ => return Ok(None),
        }
    }
    set("original_max_position_embeddings", draft.size("rope.scaling.original_context_length")?.into());
    Ok(Some(fields))
}

/// The factors that a tensor has.
fn factors(draft: &Draft<'_>, name: &str) -> Result<Option<Vec<f64>>> {
    let Some((tensor, bytes)) = draft.gguf.tensor(name) else { return Ok(None) };
    let factors = tensor.float(draft.metadata.location)?.values(bytes);
    Ok(Some(factors.into_iter().map(f64::from).collect()))
}
