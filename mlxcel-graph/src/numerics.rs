//! Which element types a precision means for a decoder.

use std::fmt;
use std::str::FromStr;

use mlxcel_core::{Error, ErrorKind, Precision, Result};
use mlxcel_models::Decoder;
use mlxcel_stablehlo::ElementType;

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
    /// [`ErrorKind::Unsupported`] for an unknown precision, and for activations of a type that graphs do not compute with.
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
}

impl Numerics {
    /// The same with another type of KV cache.
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

/// What keys and values are kept in, which decides the memory that a sequence takes and the bytes that attention reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum KvCacheType {
    /// The type of the precision: float32 for `Exact`, else the checkpoint's.
    #[default]
    Precision,
    /// float32.
    F32,
    /// float16.
    F16,
    /// bfloat16.
    Bf16,
    /// Signed bytes, with a float32 scale for each position, head and part (keys or values).
    Int8,
}

impl KvCacheType {
    const NAMES: [(Self, &'static str); 5] = [
        (Self::Precision, "precision"),
        (Self::F32, "f32"),
        (Self::F16, "f16"),
        (Self::Bf16, "bf16"),
        (Self::Int8, "int8"),
    ];
}

impl fmt::Display for KvCacheType {
    /// Such as `int8`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::NAMES.iter().find(|(kind, _)| kind == self).map_or("", |(_, name)| name);
        f.write_str(name)
    }
}

impl FromStr for KvCacheType {
    type Err = Error;

    /// Reads what [`Display`](fmt::Display) writes.
    fn from_str(text: &str) -> Result<Self> {
        let found = Self::NAMES.iter().find(|(_, name)| *name == text).map(|(kind, _)| *kind);
        found.ok_or_else(|| {
            let known = Self::NAMES.map(|(_, name)| name).join(", ");
            Error::new(ErrorKind::InvalidInput, "choose the KV cache", "there is no KV cache of this type")
                .with_context("kv_cache", text.escape_debug())
                .with_context("known", known)
        })
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
