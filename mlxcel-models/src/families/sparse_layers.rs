//! Which layers have experts: config fields that many families share.

use mlxcel_core::Result;

use super::experts::MOST_EXPERTS;
use super::settings::layer_kinds;
use crate::config::Fields;

/// Of `count` experts: by `mlp_only_layers`, which defaults to
/// `dense`, and `decoder_sparse_step`.
pub(super) fn sparse_layers(
    config: Fields<'_>,
    count: usize,
    dense: &[usize],
) -> Result<impl Fn(usize) -> bool> {
    let dense = config.sizes("mlp_only_layers")?.unwrap_or(dense.to_vec());
    let step = config.size("decoder_sparse_step", 1..=MOST_EXPERTS)?.unwrap_or(1);
    Ok(move |index: usize| count > 0 && !dense.contains(&index) && (index + 1).is_multiple_of(step))
}

/// Those that `mlp_layer_types` calls `sparse`, or all from layer `first` on.
pub(super) fn sparse_layer_types(config: Fields<'_>, layers: usize, first: usize) -> Result<Vec<bool>> {
    sparse_layer_types_by(config, layers, |index| index >= first)
}

/// Those that `mlp_layer_types` calls `sparse`, or those that `is_sparse` says.
pub(super) fn sparse_layer_types_by(
    config: Fields<'_>,
    layers: usize,
    is_sparse: impl Fn(usize) -> bool,
) -> Result<Vec<bool>> {
    const SPARSE: &str = "sparse";
    const DENSE: &str = "dense";
    let default = |index| if is_sparse(index) { SPARSE } else { DENSE };
    let kinds = layer_kinds(config, "mlp_layer_types", layers, &[SPARSE, DENSE], default)?;
    Ok(kinds.into_iter().map(|kind| kind == SPARSE).collect())
}
