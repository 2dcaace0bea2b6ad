//! The element types of each precision.

use std::str::FromStr;

use mlxcel_core::{Error, ErrorKind, Precision, Result, named};
use mlxcel_models::Decoder;
use mlxcel_stablehlo::ElementType;

/// The element types that a decoder runs with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Numerics {
    /// The requested precision, which kernels of engines also follow.
    pub precision: Precision,
    /// The type of activations in products with dense weights. Accumulation, norms, the residual stream, and
    /// activations in products with packed weights are always float32.
    pub operand: ElementType,
    /// The type of keys and values in the cache.
    pub kv: ElementType,
}

impl Numerics {
    /// `Exact` is float32 throughout. `Native` rounds the activations in matrix products with dense weights,
    /// and the KV cache, to the checkpoint's type. Activations in products with packed weights stay
    /// float32 in the graph; kernels may use a fixed-point form whose error is below the rounding of that
    /// type. `Fast` uses the same graph as `Native`, but kernels for packed weights may quantize
    /// activations to 8 bits.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] for an unknown precision, or an activation type that graphs do not support.
    pub fn new(precision: Precision, decoder: &Decoder) -> Result<Self> {
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

    /// Sets the element type of the KV cache.
    #[must_use]
    pub fn with_kv_cache(mut self, kv_cache: KvCacheType) -> Self {
        self.kv = match kv_cache {
            KvCacheType::Precision => self.kv,
            KvCacheType::F32 => ElementType::F32,
            KvCacheType::F16 => ElementType::F16,
            KvCacheType::Bf16 => ElementType::BF16,
            KvCacheType::Int8 => ElementType::I8,
        };
        self
    }
}

named! {
    /// The element type of the KV cache, which determines the memory of a sequence and the bytes that attention
    /// reads.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    #[non_exhaustive]
    pub enum KvCacheType {
        /// The type of the precision: float32 for `Exact`, else the checkpoint's.
        #[default]
        Precision = "precision",
        /// float32.
        F32 = "f32",
        /// float16.
        F16 = "f16",
        /// bfloat16.
        Bf16 = "bf16",
        /// Signed bytes, with a float32 scale per position and head, for keys and values separately.
        Int8 = "int8",
    }
}

impl FromStr for KvCacheType {
    type Err = Error;

    /// Reads what [`Display`](std::fmt::Display) writes.
    fn from_str(text: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == text).ok_or_else(|| {
            let known = Self::ALL.map(Self::as_str).join(", ");
            Error::new(ErrorKind::InvalidInput, "choose the KV cache", "this KV cache type is not supported")
                .with_context("kv_cache", text.escape_debug())
                .with_context("known", known)
        })
    }
}

/// The element type in graphs of a floating-point `element` of a checkpoint; errors name `location`.
///
/// # Errors
///
/// [`ErrorKind::Unsupported`] for types that decoders do not support.
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
