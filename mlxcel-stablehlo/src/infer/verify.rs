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
    let site = Site { op: kind.name(), names: &["operand"], types: operands };
    let same = inferred.iter().eq(results.iter().copied());
    ensure!(same, site.shape, "the results are {inferred:?}, not {results:?}");
    Ok(())
}

/// The results of an operation; those that the operation does not imply are taken from `declared` and
/// checked.
fn infer(kind: &OpKind, operands: &[&TensorType], declared: &[&TensorType]) -> Result<Vec<TensorType>> {
    let result = || {
        let missing = || Error::new(ErrorKind::Structure, kind.name(), "a result is needed");
        declared.first().copied().ok_or_else(missing)
    };
    let single = match (kind, operands) {
        (OpKind::Constant(literal), []) => sized("constant", literal.ty().clone())?,
        (OpKind::Iota { dimension }, []) => super::iota(result()?.clone(), *dimension)?,
        (OpKind::Reshape, [x]) => super::reshape(x, &result()?.shape)?,
        (OpKind::BroadcastInDim { dimensions }, [x]) => {
            super::broadcast_in_dim(x, &result()?.shape, dimensions)?
        }
        (OpKind::Transpose { permutation }, [x]) => super::transpose(x, permutation)?,
        (OpKind::Convert, [x]) => super::convert(x, result()?.element)?,
        (OpKind::BitcastConvert, [x]) => super::bitcast_convert(x, result()?.element)?,
        (OpKind::Slice { start, limit, stride }, [x]) => super::slice(x, start, limit, stride)?,
        (OpKind::DynamicSlice { sizes }, [x, starts @ ..]) => super::dynamic_slice(x, starts, sizes)?,
        (OpKind::DynamicUpdateSlice, [x, update, starts @ ..]) => {
            super::dynamic_update_slice(x, update, starts)?
        }
        (OpKind::Concatenate { dimension }, parts) => super::concatenate(parts, *dimension)?,
        (OpKind::Pad { low, high, interior }, [x, value]) => super::pad(x, value, low, high, interior)?,
        (OpKind::Gather { dimensions }, [x, indices]) => super::gather(x, indices, dimensions)?,
        (OpKind::Scatter { dimensions, update, .. }, [x, indices, updates]) => {
            super::scatter(x, indices, updates, dimensions, *update)?
        }
        (OpKind::Unary(op), [x]) => super::unary(*op, x)?,
        (OpKind::Binary(op), [lhs, rhs]) => super::binary(*op, lhs, rhs)?,
        (OpKind::Compare(_), [lhs, rhs]) => super::compare(lhs, rhs)?,
        (OpKind::Select, [condition, on_true, on_false]) => super::select(condition, on_true, on_false)?,
        (OpKind::Clamp, [minimum, x, maximum]) => super::clamp(minimum, x, maximum)?,
        (OpKind::Reduce { reduction, dimensions }, [x]) => super::reduce(x, *reduction, dimensions)?,
        (OpKind::ReduceArgMax { dimension }, [values, indices]) => {
            let (values, indices) = super::reduce_argmax(values, indices, *dimension)?;
            return Ok(vec![values, indices]);
        }
        (OpKind::DotGeneral { dimensions }, [lhs, rhs]) => {
            super::dot_general(lhs, rhs, dimensions, result()?.element)?
        }
        (OpKind::While, carried) => return Ok(carried.iter().map(|&ty| ty.clone()).collect()),
        (OpKind::Composite { .. } | OpKind::Call { .. } | OpKind::CustomCall { .. }, _) => {
            return declared.iter().map(|&ty| sized(kind.name(), ty.clone())).collect();
        }
        (_, operands) => {
            let site = Site { op: kind.name(), names: &["operand"], types: operands };
            return Err(site.structure(format!("it does not take {} operands", operands.len())));
        }
    };
    Ok(vec![single])
}
