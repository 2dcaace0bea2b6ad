//! gpt-oss's experts: 4-bit floats in blocks of 32 with a power of two each.
//!
//! In addition to dense modules there are `{name}_blocks` U8 `[experts, rows, columns / 32, 16]`, two codes
//! per byte with the first in the lower bits, and `{name}_scales` U8 `[experts, rows, columns / 32]`, biased
//! exponents: [`Packing::MXFP4`] with another word type.

use mlxcel_core::Result;

use super::module::Stored;
use crate::checkpoint::Checkpoint;
use crate::decoder::{Packed, WeightRef};
use crate::element::ElementType;
use crate::packing::{Arrangement, Derived, Packing, Part};

/// The matrices of `shape`, `[experts, rows, columns]`, that `{name}_blocks` and `{name}_scales` hold.
pub(crate) fn stack(checkpoint: &Checkpoint, name: &str, shape: [usize; 3]) -> Result<WeightRef> {
    let packing = Packing::MXFP4;
    let [experts, rows, columns] = shape;
    packing.check(columns).map_err(|error| error.with_context("tensor", format!("{name}_blocks")))?;
    let groups = columns / packing.group_size;
    let tensor = |suffix: &str, shape: &[usize]| {
        let stored = Stored::of(checkpoint, format!("{name}_{suffix}"))?;
        stored.expect(&[ElementType::U8], shape, &format!("{columns} columns in groups of 32"))?;
        Ok::<_, mlxcel_core::Error>(stored.name)
    };
    let blocks = tensor("blocks", &[experts, rows, groups, packing.group_size / 2])?;
    let scales = tensor("scales", &[experts, rows, groups])?;
    let words = vec![experts, rows, packing.width(Part::Codes, columns)];
    let derived = Derived { arrangement: Arrangement::Bytes, part: Part::Codes, shape: words };
    let scales = WeightRef::new(scales, ElementType::U8, [experts, rows, groups]);
    let codes = WeightRef::new(blocks, ElementType::U32, shape).with_derivation(derived);
    Ok(codes.with_packing(Packed::new(packing, [scales])))
}
