//! Operations with regions, and calls: the types of nested blocks compared with those of the operands.

use super::Site;
use crate::error::Result;
use crate::types::{ElementType, TensorType};

/// A loop over `carried` values: the condition returns one boolean, the body the types of its arguments.
pub fn while_loop(
    carried: &[&TensorType],
    condition: &[&TensorType],
    body: &[&TensorType],
) -> Result<Vec<TensorType>> {
    let site = Site { op: "while", names: &["operand"], types: carried };
    ensure!(!carried.is_empty(), site.structure, "at least one carried value is needed");
    let truth = condition == [&TensorType::scalar(ElementType::I1)];
    ensure!(truth, site.shape, "the condition must return a tensor<i1>, not {}", list(condition));
    ensure!(body == carried, site.shape, "the body must return {}, not {}", list(carried), list(body));
    Ok(carried.iter().map(|&ty| ty.clone()).collect())
}

/// A call of a function with `parameters` and `results`.
pub fn call(op: &str, function: &str, operands: &[&TensorType], parameters: &[&TensorType]) -> Result<()> {
    let site = Site { op, names: &["operand"], types: operands };
    ensure!(operands == parameters, site.shape, "the function `{function}` takes {}", list(parameters));
    Ok(())
}

/// Types in words.
fn list(types: &[&TensorType]) -> String {
    let names: Vec<String> = types.iter().map(|ty| ty.to_string()).collect();
    format!("({})", names.join(", "))
}
