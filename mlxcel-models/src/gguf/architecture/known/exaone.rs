//! EXAONE.

use super::shared::*;

pub(super) const EXAONE4: Architecture =
    Architecture { name: "exaone4", model_type: "exaone4", tensors: &[POST_NORMS], adapt: exaone4, ..PLAIN };

/// EXAONE 4: the large model alone has windows, whatever its file says.
fn exaone4(draft: &mut Draft<'_>) -> Result<()> {
    draft.windows(4)?;
    if draft.layers()? == 64 && draft.size("attention.sliding_window")?.is_none() {
        draft.fields.remove("sliding_window");
    }
    Ok(())
}

pub(super) const EXAONE_MOE: Architecture = Architecture {
    name: "exaone-moe",
    model_type: "exaone_moe",
    settings: &[
        &[
            RMS_EPSILON,
            CHOSEN,
            ("expert_count", "num_experts"),
            ("expert_shared_count", "num_shared_experts"),
        ],
        ROUTER,
    ],
    tensors: &[CORRECTION, SHARED_EXPERTS],
    adapt: |draft| {
        experts_after(draft, "first_k_dense_replace")?;
        draft.windows(4)
    },
    ..PLAIN
};
