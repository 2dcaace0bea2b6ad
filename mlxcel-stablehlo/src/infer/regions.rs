//! Operations with regions, and calls: the types of nested blocks compared with those of the operands.

use super::Site;
use crate::error::{ErrorKind, Result};
use crate::types::{ElementType, TensorType};

/// A loop over `carried` values: the condition returns one boolean, the body the types of its arguments.
pub fn while_loop(
    carried: &[&TensorType],
    condition: &[&TensorType],
    body: &[&TensorType],
) -> Result<Vec<TensorType>> {
    let site = Site::new("while", &["operand"], carried);
    if carried.is_empty() {
        return Err(site.error(ErrorKind::Structure, "at least one carried value is needed"));
    }
    truth(&site, "condition", condition)?;
    equal(&site, "body", carried, body)?;
    Ok(owned(carried))
}

/// A call of a function with `parameters` and `results`.
pub fn call(op: &str, function: &str, operands: &[&TensorType], parameters: &[&TensorType]) -> Result<()> {
    let site = Site::new(op, &["operand"], operands);
    if operands == parameters {
        return Ok(());
    }
    Err(site.shape(format!("the function `{function}` takes {}", list(parameters))))
}

fn truth(site: &Site<'_>, region: &str, results: &[&TensorType]) -> Result<()> {
    if results == [&TensorType::scalar(ElementType::I1)] {
        return Ok(());
    }
    Err(site.shape(format!("the {region} must return a tensor<i1>, not {}", list(results))))
}

fn equal(site: &Site<'_>, region: &str, wanted: &[&TensorType], results: &[&TensorType]) -> Result<()> {
    if results == wanted {
        return Ok(());
    }
    Err(site.shape(format!("the {region} must return {}, not {}", list(wanted), list(results))))
}

fn owned(types: &[&TensorType]) -> Vec<TensorType> {
    types.iter().map(|&ty| ty.clone()).collect()
}

/// Types in words.
fn list(types: &[&TensorType]) -> String {
    let names: Vec<String> = types.iter().map(|ty| ty.to_string()).collect();
    format!("({})", names.join(", "))
}
