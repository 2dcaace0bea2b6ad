//! FP8: 8-bit floats with scales per block, row or matrix.
//!
//! A module has `weight` `[rows, columns]` in F8_E4M3 or F8_E5M2, and `weight_scale_inv` (DeepSeek's name) or
//! `weight_scale`: one number, one per row, or one per block of `weight_block_size`, with smaller blocks at
//! the edges. A value is `scale · code`. Activations stay floats, even if the config asks to quantize them
//! (`activation_scheme`).

use mlxcel_core::Result;

use super::module::{Module, Stored};
use super::{dense, grid};
use crate::checkpoint::Checkpoint;
use crate::config::Fields;
use crate::decoder::{Packed, WeightRef};
use crate::element::ElementType;
use crate::packing::{Arrangement, Code, Offset, Packing, Part, Scale};

const BLOCK: &str = "weight_block_size";
/// The rows and columns of a block if the settings do not mention them.
const DEFAULT_BLOCK: [usize; 2] = [128, 128];

/// The matrix of a module: packed where its elements are 8-bit floats, else dense.
pub(super) fn matrix(
    checkpoint: &Checkpoint,
    settings: Fields<'_>,
    name: &str,
    shape: &[usize],
) -> Result<WeightRef> {
    let weight = format!("{name}.weight");
    let (view, _) = checkpoint.located(&weight)?;
    if code(view.element_type).is_none() {
        return dense(checkpoint, &weight, shape);
    }
    let module = Module::new(checkpoint, name, shape)?;
    let suffix = if module.has("weight_scale_inv") { "weight_scale_inv" } else { "weight_scale" };
    let scales = module.tensor(suffix)?;
    let mut blocks = match settings.sizes(BLOCK)?.as_deref() {
        None if settings.mentions(BLOCK) => Vec::new(),
        None => vec![DEFAULT_BLOCK],
        Some(&[rows, columns]) if rows > 0 && columns > 0 => vec![[rows, columns]],
        Some(_) => {
            return Err(settings
                .wrong(BLOCK, "there should be two sizes above zero, of rows and of columns".to_owned()));
        }
    };
    // MXFP8's, which its settings need not mention.
    blocks.push([1, 32]);
    floats(&module, &scales, &blocks)
}

/// The value of an element of this type, if it is an 8-bit float.
fn code(element: ElementType) -> Option<Code> {
    match element {
        ElementType::F8E4M3 => Some(Code::E4M3),
        ElementType::F8E5M2 => Some(Code::E5M2),
        _ => None,
    }
}

/// The 8-bit floats `{module}.weight`, with scales for whole matrices, rows, or the first of `blocks` that
/// fits their number.
pub(super) fn floats(module: &Module<'_>, scales: &Stored<'_>, blocks: &[[usize; 2]]) -> Result<WeightRef> {
    let codes = module.tensor("weight")?;
    let shape = [module.rows, module.columns];
    codes.expect(&[ElementType::F8E4M3, ElementType::F8E5M2], &shape, "an 8-bit float for each value")?;
    let block = block(module, scales, blocks)?;
    let scale = match scales.view.element_type {
        // Powers of two, which some tools store as plain bytes.
        ElementType::F8E8M0 | ElementType::U8 => Scale::E8M0,
        element if element.is_dense_float() => Scale::Float(element),
        element => {
            return Err(scales.unsupported(format!(
                "scales of {element} are not supported; F32, F16, BF16 and F8_E8M0 are"
            )));
        }
    };
    let packing = Packing {
        bits: 8,
        code: code(codes.view.element_type).unwrap_or(Code::E4M3),
        group_size: module.group_size(block[1]),
        scale,
        offset: Offset::None,
        ordered: false,
    };
    module.check(&packing)?;
    let scales = grid::scales(module, scales, &packing, block)?;
    let codes = module.part(&packing, Part::Codes, &codes.name, Arrangement::Bytes);
    Ok(codes.with_packing(Packed::new(packing, [scales])))
}

/// The rows and columns that share one of `scales`.
pub(super) fn block(module: &Module<'_>, scales: &Stored<'_>, blocks: &[[usize; 2]]) -> Result<[usize; 2]> {
    let whole = [module.rows, module.columns];
    let fits = |&[rows, columns]: &[usize; 2]| {
        scales.view.shape == [module.rows.div_ceil(rows), module.columns.div_ceil(columns)]
    };
    match scales.view.shape[..] {
        [] | [1] | [1, 1] => Ok(whole),
        [height] if height == module.rows => Ok([1, module.columns]),
        [height, 1] if height == module.rows => Ok([1, module.columns]),
        _ => blocks.iter().copied().find(fits).ok_or_else(|| {
            scales.refuse(format!(
                "the tensor is {:?}, which is no scale for all of {whole:?}, for each row, or for each of the blocks {blocks:?} \
                 of config.json; download the checkpoint again",
                scales.view.shape
            ))
        }),
    }
}
