//! Misuse of the builder, and the errors that it gets.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

use mlxcel_stablehlo::ElementType::{F32, I1, I32};
use mlxcel_stablehlo::{Builder, Error, ModuleBuilder, Result, TensorType, Value};

/// The values that misuse is made of.
pub struct Values<'f> {
    /// f32, `[2, 3]`.
    pub x: Value<'f>,
    /// f32, `[3]`.
    pub row: Value<'f>,
    /// i32, `[2, 3]`.
    pub i: Value<'f>,
    /// i1, `[2, 3]`.
    pub truth: Value<'f>,
    /// f32, scalar.
    pub scalar: Value<'f>,
    /// i32, scalar.
    pub index: Value<'f>,
}

pub fn refused<F>(body: F) -> Error
where
    F: for<'f> FnOnce(&mut Builder<'f>, &Values<'f>) -> Result<()>,
{
    let outcome = ModuleBuilder::new("misuse").function("main", |b| {
        let values = Values {
            x: b.argument("x", TensorType::new(F32, [2, 3]))?,
            row: b.argument("row", TensorType::new(F32, [3]))?,
            i: b.argument("i", TensorType::new(I32, [2, 3]))?,
            truth: b.argument("truth", TensorType::new(I1, [2, 3]))?,
            scalar: b.argument("scalar", TensorType::scalar(F32))?,
            index: b.argument("index", TensorType::scalar(I32))?,
        };
        body(b, &values).map(|()| Vec::new())
    });
    outcome.unwrap_err()
}

/// The error of a misuse of values.
#[macro_export]
macro_rules! refusal {
    (|$b:pat_param, $v:pat_param| $misuse:expr) => {
        $crate::support::refusal::refused(|$b, $v| ($misuse).map(drop))
    };
}
