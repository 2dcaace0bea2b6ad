//! Tables of whole numbers, which are read as floats.

use std::ops::Range;

use mlxcel_core::{Error, ErrorKind, Result};

use super::OPERATION;
use crate::checkpoint::{Checkpoint, TensorView};
use crate::decoder::WeightRef;
use crate::element::ElementType;
use crate::packing::{Arrangement, Derived, Part};
use crate::read::gather::misfit;

/// The tensor `name` of `shape`, whose elements are whole numbers below `bound`, as float32.
pub(crate) fn table(checkpoint: &Checkpoint, name: &str, shape: &[usize], bound: usize) -> Result<WeightRef> {
    let (view, location) = checkpoint.located(name)?;
    let locate = |error: Error| error.with_context("tensor", name).with_context("path", location);
    let numbers = numbers(&view).ok_or_else(|| {
        let message = format!("its elements are {}; I64 and I32 are supported here", view.element_type);
        locate(Error::unsupported(OPERATION, message))
    })?;
    if view.shape != shape {
        let message = format!("the tensor is {:?} and config.json makes it {shape:?}", view.shape);
        return Err(locate(Error::new(ErrorKind::Corrupt, OPERATION, message)));
    }
    let is_within = |number: &i64| usize::try_from(*number).is_ok_and(|number| number < bound);
    if let Some(number) = numbers.into_iter().find(|number| !is_within(number)) {
        let message = format!("it contains {number}, and should contain numbers from 0 to {}", bound - 1);
        return Err(locate(Error::new(ErrorKind::Corrupt, OPERATION, message)));
    }
    let derived = Derived { arrangement: Arrangement::Integers, part: Part::Codes, shape: shape.to_vec() };
    Ok(WeightRef::new(name, ElementType::F32, shape).with_derivation(derived))
}

/// Writes rows, all leading dimensions counted, as float32.
pub(in crate::read) fn read(
    checkpoint: &Checkpoint,
    tensor: &str,
    rows: Range<usize>,
    out: &mut [u8],
) -> Result<()> {
    let (view, location) = checkpoint.located(tensor)?;
    let width = view.shape.last().copied().unwrap_or(1);
    let numbers = numbers(&view).filter(|_| out.len() == rows.len() * width * size_of::<f32>());
    let numbers = numbers.ok_or_else(|| misfit(tensor, location))?;
    let wanted = numbers.into_iter().skip(rows.start * width);
    for (bytes, number) in out.as_chunks_mut().0.iter_mut().zip(wanted) {
        *bytes = (number as f32).to_le_bytes();
    }
    Ok(())
}

/// The elements of a tensor of whole numbers.
pub(crate) fn numbers(view: &TensorView<'_>) -> Option<Vec<i64>> {
    match view.element_type {
        ElementType::I64 => {
            Some(view.bytes.as_chunks().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect())
        }
        ElementType::I32 => {
            Some(view.bytes.as_chunks().0.iter().map(|bytes| i32::from_le_bytes(*bytes).into()).collect())
        }
        _ => None,
    }
}
