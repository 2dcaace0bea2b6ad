//! Phi.

use mlxcel_core::Result;

use super::super::Architecture;
use super::super::Change::Keep;
use super::super::draft::Draft;
use super::{PLAIN, partial_rotary};

pub(super) const PHI3: Architecture = Architecture {
    name: "phi3",
    model_type: "phi3",
    tensors: &[&[("attn_qkv", "self_attn.qkv_proj", Keep), ("ffn_up", "mlp.gate_up_proj", Keep)]],
    adapt: phi3,
    ..PLAIN
};

fn phi3(draft: &mut Draft<'_>) -> Result<()> {
    partial_rotary(draft)?;
    draft.copy("rope.scaling.original_context_length", "original_max_position_embeddings")?;
    let window = draft.size("attention.sliding_window")?.filter(|window| *window > 0);
    draft.set("sliding_window", window);
    Ok(())
}
