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

/// A sort of `operands` of one shape, by a comparator that returns one boolean.
pub fn sort(
    operands: &[&TensorType],
    dimension: usize,
    comparator: &[&TensorType],
) -> Result<Vec<TensorType>> {
    let site = Site::new("sort", &["operand"], operands);
    sortable(&site, dimension)?;
    truth(&site, "comparator", comparator)?;
    Ok(owned(operands))
}

/// What [`sort`] asks of its operands, known before the comparator is.
pub(crate) fn sort_operands(operands: &[&TensorType], dimension: usize) -> Result<()> {
    sortable(&Site::new("sort", &["operand"], operands), dimension)
}

fn sortable(site: &Site<'_>, dimension: usize) -> Result<()> {
    let Some((first, rest)) = site.types.split_first() else {
        return Err(site.error(ErrorKind::Structure, "at least one operand is needed"));
    };
    if let Some(i) = rest.iter().position(|operand| operand.shape != first.shape) {
        return Err(site.shape(format!("{} must have the shape of {}", site.name(i + 1), site.name(0))));
    }
    site.dimension(0, dimension)
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
