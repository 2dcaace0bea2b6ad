//! Writes weights in the layout of a target's programs.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

use mlxcel_core::{Control, Error, Result};
use mlxcel_graph::WeightArgument;
use mlxcel_iree_kernels::layout::matrices;
use mlxcel_iree_kernels::{Layouts, Panels};
use mlxcel_iree_target::laid_out::{LaidOut, Places};
use mlxcel_models::Checkpoint;

use super::staging::{OPERATION, Staging};

/// The approximate number of bytes packed into panels at a time.
const PIECE_BYTES: usize = 4 << 20;

/// Writes the `weights` of `checkpoint` to the file at `path`, in the layouts of `layouts`; calls `wrote`
/// with each block's size.
pub(super) fn write(
    checkpoint: &Checkpoint,
    weights: &[WeightArgument],
    layouts: &Layouts,
    staging: &Staging,
    path: &str,
    control: &Control<'_>,
    wrote: &dyn Fn(u64),
) -> Result<LaidOut> {
    let places = Places::of(weights);
    let mut file = staging.begin_file(path)?;
    for (weight, range) in weights.iter().zip(places.ranges()) {
        file.pad_to(range.start)?;
        each_piece(checkpoint, weight, layouts.get(&weight.name), &mut |piece| {
            file.write(piece, control, wrote)
        })
        .map_err(|error| error.with_context("tensor", &weight.tensor.tensor))?;
    }
    let (entry, at) = file.finish()?;
    let fail = |error| Error::io(OPERATION, &at, error);
    let mut written = File::open(&at).map_err(fail)?;
    let samples = places.sample(|at, buffer| {
        written.seek(SeekFrom::Start(at)).and_then(|_| written.read_exact(buffer)).map_err(fail)
    })?;
    Ok(places.describe(entry, samples))
}

/// Shows the bytes of a weight to `each`, in order, in pieces that begin where panels do.
fn each_piece(
    checkpoint: &Checkpoint,
    weight: &WeightArgument,
    panels: Option<Panels>,
    each: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let stored = checkpoint.weight(&weight.tensor)?.bytes;
    let packer = panels.and_then(|panels| panels.packer(&weight.ty.shape, stored.len()));
    let Some(packer) = packer else { return each(&stored) };
    let matrix = stored.len().checked_div(matrices(&weight.ty.shape)).unwrap_or_default().max(1);
    let panel = packer.panel_bytes().max(1);
    let piece = (PIECE_BYTES / panel).max(1).saturating_mul(panel);
    let mut packed = vec![0; piece.min(matrix)];
    for source in stored.chunks(matrix).flat_map(|matrix| matrix.chunks(piece)) {
        let packed = &mut packed[..source.len()];
        packer.pack(source, packed);
        each(packed)?;
    }
    Ok(())
}
