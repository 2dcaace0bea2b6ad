//! AutoRound: modules stored as GPTQ or AWQ stores them, which `packing_format` says.

use mlxcel_core::Result;

use super::{awq, gptq};
use crate::checkpoint::Checkpoint;
use crate::config::Fields;
use crate::decoder::WeightRef;

/// The matrix of a module: packed where it has `qweight`, else dense.
pub(super) fn matrix(
    checkpoint: &Checkpoint,
    settings: Fields<'_>,
    name: &str,
    shape: &[usize],
) -> Result<WeightRef> {
    let (key, format) = gptq::layout(settings, ["packing_format", "backend"], "auto_round:gptq")?;
    let parts: Vec<_> = format.split(':').collect();
    let has = |names: &[&str]| names.iter().any(|name| parts.contains(name));
    if has(&["auto_awq", "awq"]) {
        awq::matrix(checkpoint, settings, name, shape)
    } else if has(&["auto_gptq", "gptq"]) {
        gptq::matrix_of(checkpoint, settings, true, name, shape)
    } else if format == "auto_round" || has(&["gptqmodel"]) {
        gptq::matrix_of(checkpoint, settings, false, name, shape)
    } else {
        let message = format!(
            "the packing '{}' is not supported; auto_round, auto_round:auto_gptq, auto_round:gptqmodel and \
             auto_round:auto_awq are",
            format.escape_debug()
        );
        Err(settings.unsupported(key, message))
    }
}
