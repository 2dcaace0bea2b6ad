//! Which element types a precision means for a decoder.

use mlxcel_core::{Error, ErrorKind, Precision, Result};
use mlxcel_models::Decoder;
use mlxcel_stablehlo::ElementType;

use crate::weights::check_packing;

/// What a precision means for a decoder: the element types that it runs with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Numerics {
    /// The precision that was asked for, which engines' own kernels keep to.
    pub precision: Precision,
    /// The type of what goes into products with dense weights; their sums, norms, the residual stream, and what goes into
    /// products with packed weights are always float32.
    pub operand: ElementType,
    /// The type of keys and values in the cache.
    pub kv: ElementType,
}

impl Numerics {
    /// `Exact` is float32 throughout. `Native` rounds the activations that go into matrix products with dense weights, and the
    /// KV cache, to the type that the checkpoint names; what goes into products with packed weights stays float32 in the graph,
    /// and an engine's kernels may multiply it in a fixed-point form whose error is below that type's rounding. `Fast` is the
    /// same graph as `Native`: kernels for packed weights may take 8 bits of each activation.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] for weights that graphs have no operations for, and for an unknown precision.
    pub fn new(precision: Precision, decoder: &Decoder) -> Result<Self> {
        check_packing(decoder)?;
        let element = match precision {
            Precision::Exact => ElementType::F32,
            Precision::Native | Precision::Fast => element_type(decoder.element_type, "config.json")?,
            other => {
                return Err(Error::unsupported(
                    "choose precision",
                    "this engine runs with exact, native or fast precision",
                )
                .with_context("precision", other));
            }
        };
        Ok(Self { precision, operand: element, kv: element })
    }
}

/// The element type in graphs of a floating-point `element` of a checkpoint; `location` is named where there is none.
///
/// # Errors
///
/// [`ErrorKind::Unsupported`] for types that decoders do not compute with.
pub fn element_type(element: mlxcel_models::ElementType, location: &str) -> Result<ElementType> {
    match element {
        mlxcel_models::ElementType::F32 => Ok(ElementType::F32),
        mlxcel_models::ElementType::F16 => Ok(ElementType::F16),
        mlxcel_models::ElementType::BF16 => Ok(ElementType::BF16),
        other => Err(Error::new(
            ErrorKind::Unsupported,
            "build decoder",
            "weights and activations must be F32, F16 or BF16",
        )
        .with_context("tensor", location)
        .with_context("element_type", other)),
    }
}
