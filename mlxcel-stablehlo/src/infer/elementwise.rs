//! Elementwise operations.

use super::{Site, is_number};
use crate::error::Result;
use crate::module::{BinaryOp, UnaryOp};
use crate::types::{ElementType, TensorType};

/// The type of a unary operation: the operand's.
pub fn unary(op: UnaryOp, operand: &TensorType) -> Result<TensorType> {
    let site = Site { op: op.name(), names: &["operand"], types: &[operand] };
    let element = operand.element;
    let (fits, wanted) = match op {
        UnaryOp::Abs | UnaryOp::Sign => {
            (element.is_float() || element.is_signed(), "of floats or signed integers")
        }
        UnaryOp::Negate => (is_number(element), "of numbers"),
        UnaryOp::Not => (!element.is_float(), "of integers or truth values"),
        UnaryOp::CountLeadingZeros | UnaryOp::Popcnt => (element.is_integer(), "of integers"),
        UnaryOp::Exponential
        | UnaryOp::ExponentialMinusOne
        | UnaryOp::Log
        | UnaryOp::LogPlusOne
        | UnaryOp::Logistic
        | UnaryOp::Tanh
        | UnaryOp::Sine
        | UnaryOp::Cosine
        | UnaryOp::Sqrt
        | UnaryOp::Rsqrt
        | UnaryOp::Cbrt
        | UnaryOp::Floor
        | UnaryOp::Ceil
        | UnaryOp::RoundNearestEven
        | UnaryOp::RoundNearestAfz => (element.is_float(), "of floats"),
    };
    ensure!(fits, site.element, "operand must be {wanted}");
    Ok(operand.clone())
}

/// The type of a binary operation: that of both operands. Nothing is broadcast.
pub fn binary(op: BinaryOp, lhs: &TensorType, rhs: &TensorType) -> Result<TensorType> {
    let site = Site { op: op.name(), names: &["lhs", "rhs"], types: &[lhs, rhs] };
    same(&site)?;
    let element = lhs.element;
    let (fits, wanted) = match op {
        BinaryOp::Add
        | BinaryOp::Subtract
        | BinaryOp::Multiply
        | BinaryOp::Divide
        | BinaryOp::Maximum
        | BinaryOp::Minimum
        | BinaryOp::Power
        | BinaryOp::Remainder => (is_number(element), "of numbers"),
        BinaryOp::Atan2 => (element.is_float(), "of floats"),
        BinaryOp::And | BinaryOp::Or | BinaryOp::Xor => (!element.is_float(), "of integers or truth values"),
        BinaryOp::ShiftLeft | BinaryOp::ShiftRightArithmetic | BinaryOp::ShiftRightLogical => {
            (element.is_integer(), "of integers")
        }
    };
    ensure!(fits, site.element, "lhs and rhs must be {wanted}");
    Ok(lhs.clone())
}

fn same(site: &Site<'_>) -> Result<()> {
    let [lhs, rhs] = [site.types[0], site.types[1]];
    if lhs == rhs {
        return Ok(());
    }
    let detail = "lhs and rhs must have the same type";
    Err(if lhs.shape == rhs.shape { site.element(detail) } else { site.shape(detail) })
}

/// The type of a comparison: booleans in the operands' shape.
pub fn compare(lhs: &TensorType, rhs: &TensorType) -> Result<TensorType> {
    same(&Site { op: "compare", names: &["lhs", "rhs"], types: &[lhs, rhs] })?;
    Ok(lhs.with_element(ElementType::I1))
}

/// The type of a selection between two operands of one type, by booleans of the same shape or one boolean.
pub fn select(condition: &TensorType, on_true: &TensorType, on_false: &TensorType) -> Result<TensorType> {
    let types: &[_] = &[condition, on_true, on_false];
    let site = Site { op: "select", names: &["condition", "on_true", "on_false"], types };
    ensure!(condition.element == ElementType::I1, site.element, "condition must be of truth values (i1)");
    ensure!(on_true == on_false, site.shape, "on_true and on_false must have the same type");
    let fits = condition.rank() == 0 || condition.shape == on_true.shape;
    ensure!(fits, site.shape, "condition must be a scalar or have the shape of on_true");
    Ok(on_true.clone())
}

/// The type of a clamp: the operand's. Bounds have its type, or are scalars of its element type.
pub fn clamp(minimum: &TensorType, operand: &TensorType, maximum: &TensorType) -> Result<TensorType> {
    let types: &[_] = &[minimum, operand, maximum];
    let site = Site { op: "clamp", names: &["minimum", "operand", "maximum"], types };
    ensure!(is_number(operand.element), site.element, "operand must be of numbers");
    for bound in [0, 2] {
        site.same_element(bound, 1)?;
        let (name, ty) = (site.names[bound], types[bound]);
        let fits = ty.rank() == 0 || ty.shape == operand.shape;
        ensure!(fits, site.shape, "{name} must be a scalar or have the shape of operand");
    }
    Ok(operand.clone())
}

/// The type of a conversion: the operand's shape with another element type.
pub fn convert(operand: &TensorType, element: ElementType) -> Result<TensorType> {
    Site { op: "convert", names: &["operand"], types: &[operand] }.sized(operand.with_element(element))
}

/// The type of a bitcast. The same width keeps the shape. A narrower element type adds a last dimension over
/// the parts, lowest bits first; a wider one removes the last dimension, which must hold exactly one
/// element's parts.
pub fn bitcast_convert(operand: &TensorType, element: ElementType) -> Result<TensorType> {
    let site = Site { op: "bitcast_convert", names: &["operand"], types: &[operand] };
    if operand.element == element {
        return Ok(operand.clone());
    }
    let have_bits = is_number(operand.element) && is_number(element);
    ensure!(have_bits, site.element, "truth values have no bits to read as {element}");
    let (from, to) = (operand.element.bits(), element.bits());
    let mut shape = operand.shape.clone();
    if from > to {
        shape.push(from / to);
    } else if from < to && shape.pop() != Some(to / from) {
        return Err(
            site.shape(format!("the last dimension of operand must be {} to become {element}", to / from))
        );
    }
    site.sized(TensorType::new(element, shape))
}
