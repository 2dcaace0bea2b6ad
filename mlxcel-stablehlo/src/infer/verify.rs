//! A single check for all operations without regions: declared results against inferred ones.

use super::{Site, sized};
use crate::error::{Error, ErrorKind, Result};
use crate::module::OpKind;
use crate::types::TensorType;

/// Checks that an operation of `kind` over `operands` has `results`.
///
/// Regions and callees are not checked here: for `while` only the operands and results, for a
/// composite or a call only that the results can exist. [`Module::verify`](crate::Module::verify) checks the
/// rest.
pub fn results(kind: &OpKind, operands: &[&TensorType], results: &[&TensorType]) -> Result<()> {
    let inferred = infer(kind, operands, results)?;
    if inferred.iter().eq(results.iter().copied()) {
        return Ok(());
    }
    let site = Site::new(kind.name(), &["operand"], operands);
    Err(site.shape(format!("the results are {inferred:?}, not {results:?}")))
}

/// The results of an operation; those that the operation does not imply are taken from `declared` and
/// checked.
fn infer(kind: &OpKind, operands: &[&TensorType], declared: &[&TensorType]) -> Result<Vec<TensorType>> {
    let count = |wanted: usize| {
        if operands.len() == wanted {
            return Ok(());
        }
        let site = Site::new(kind.name(), &["operand"], operands);
        Err(site.error(ErrorKind::Structure, format!("{wanted} operands are needed, not {}", operands.len())))
    };
    let result = || {
        declared
            .first()
            .copied()
            .ok_or_else(|| Error::new(ErrorKind::Structure, kind.name(), "a result is needed"))
    };
    let at_least = |wanted: usize| if operands.len() < wanted { count(wanted) } else { Ok(()) };
    let fixed = match kind {
        OpKind::DynamicUpdateSlice
        | OpKind::ReduceArgMax { .. }
        | OpKind::Gather { .. }
        | OpKind::Pad { .. } => Some(2),
        OpKind::Binary(_) | OpKind::Compare(_) | OpKind::DotGeneral { .. } => Some(2),
        OpKind::Select | OpKind::Clamp | OpKind::Scatter { .. } => Some(3),
        OpKind::Constant(_) | OpKind::Iota { .. } => Some(0),
        OpKind::DynamicSlice { .. } => Some(1),
        OpKind::Concatenate { .. } | OpKind::While => None,
        OpKind::Composite { .. } | OpKind::Call { .. } | OpKind::CustomCall { .. } => None,
        OpKind::Reshape | OpKind::BroadcastInDim { .. } | OpKind::Transpose { .. } | OpKind::Convert => {
            Some(1)
        }
        OpKind::BitcastConvert | OpKind::Slice { .. } | OpKind::Unary(_) | OpKind::Reduce { .. } => Some(1),
    };
    match (kind, fixed) {
        (OpKind::DynamicSlice { .. } | OpKind::DynamicUpdateSlice, Some(fixed)) => at_least(fixed)?,
        (_, Some(fixed)) => count(fixed)?,
        (_, None) => {}
    }
    let single = match kind {
        OpKind::Constant(literal) => sized("constant", literal.ty().clone())?,
        OpKind::Iota { dimension } => super::iota(result()?.clone(), *dimension)?,
        OpKind::Reshape => super::reshape(operands[0], &result()?.shape)?,
        OpKind::BroadcastInDim { dimensions } => {
            super::broadcast_in_dim(operands[0], &result()?.shape, dimensions)?
        }
        OpKind::Transpose { permutation } => super::transpose(operands[0], permutation)?,
        OpKind::Convert => super::convert(operands[0], result()?.element)?,
        OpKind::BitcastConvert => super::bitcast_convert(operands[0], result()?.element)?,
        OpKind::Slice { start, limit, stride } => super::slice(operands[0], start, limit, stride)?,
        OpKind::DynamicSlice { sizes } => super::dynamic_slice(operands[0], &operands[1..], sizes)?,
        OpKind::DynamicUpdateSlice => super::dynamic_update_slice(operands[0], operands[1], &operands[2..])?,
        OpKind::Concatenate { dimension } => super::concatenate(operands, *dimension)?,
        OpKind::Pad { low, high, interior } => super::pad(operands[0], operands[1], low, high, interior)?,
        OpKind::Gather { dimensions } => super::gather(operands[0], operands[1], dimensions)?,
        OpKind::Scatter { dimensions, update, .. } => {
            super::scatter(operands[0], operands[1], operands[2], dimensions, *update)?
        }
        OpKind::Unary(op) => super::unary(*op, operands[0])?,
        OpKind::Binary(op) => super::binary(*op, operands[0], operands[1])?,
        OpKind::Compare(_) => super::compare(operands[0], operands[1])?,
        OpKind::Select => super::select(operands[0], operands[1], operands[2])?,
        OpKind::Clamp => super::clamp(operands[0], operands[1], operands[2])?,
        OpKind::Reduce { reduction, dimensions } => super::reduce(operands[0], *reduction, dimensions)?,
        OpKind::ReduceArgMax { dimension } => {
            let (values, indices) = super::reduce_argmax(operands[0], operands[1], *dimension)?;
            return Ok(vec![values, indices]);
        }
        OpKind::DotGeneral { dimensions } => {
            super::dot_general(operands[0], operands[1], dimensions, result()?.element)?
        }
        OpKind::While => return Ok(operands.iter().map(|&ty| ty.clone()).collect()),
        OpKind::Composite { .. } | OpKind::Call { .. } | OpKind::CustomCall { .. } => {
            return declared.iter().map(|&ty| sized(kind.name(), ty.clone())).collect();
        }
    };
    Ok(vec![single])
}
