//! Conversion between the float types of weights and float32.

use half::{bf16, f16};

use crate::element::ElementType;

/// A type of dense weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Float {
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary16.
    F16,
    /// bfloat16.
    BF16,
}

impl Float {
    /// The type, if it is one of dense weights.
    pub fn of(element: ElementType) -> Option<Self> {
        match element {
            ElementType::F32 => Some(Self::F32),
            ElementType::F16 => Some(Self::F16),
            ElementType::BF16 => Some(Self::BF16),
            _ => None,
        }
    }

    /// The element type.
    pub fn element(self) -> ElementType {
        match self {
            Self::F32 => ElementType::F32,
            Self::F16 => ElementType::F16,
            Self::BF16 => ElementType::BF16,
        }
    }

    /// The bytes of an element.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
        }
    }

    /// The number of this type that is nearest to `value`.
    pub fn round(self, value: f32) -> f32 {
        match self {
            Self::F32 => value,
            Self::F16 => f16::from_f32(value).to_f32(),
            Self::BF16 => bf16::from_f32(value).to_f32(),
        }
    }

    /// Reads little-endian elements into `values`, as many as both have.
    pub fn read(self, source: &[u8], values: &mut [f32]) {
        match self {
            Self::F32 => {
                for (value, bytes) in values.iter_mut().zip(source.as_chunks().0) {
                    *value = f32::from_le_bytes(*bytes);
                }
            }
            Self::F16 => {
                for (value, bytes) in values.iter_mut().zip(source.as_chunks().0) {
                    *value = f16::from_le_bytes(*bytes).to_f32();
                }
            }
            Self::BF16 => {
                for (value, bytes) in values.iter_mut().zip(source.as_chunks().0) {
                    *value = bf16::from_le_bytes(*bytes).to_f32();
                }
            }
        }
    }

    /// Writes `values`, rounded to this type, into `target` as little-endian elements, as many as both have.
    pub fn write(self, values: &[f32], target: &mut [u8]) {
        match self {
            Self::F32 => {
                for (bytes, value) in target.as_chunks_mut().0.iter_mut().zip(values) {
                    *bytes = value.to_le_bytes();
                }
            }
            Self::F16 => {
                for (bytes, value) in target.as_chunks_mut().0.iter_mut().zip(values) {
                    *bytes = f16::from_f32(*value).to_le_bytes();
                }
            }
            Self::BF16 => {
                for (bytes, value) in target.as_chunks_mut().0.iter_mut().zip(values) {
                    *bytes = bf16::from_f32(*value).to_le_bytes();
                }
            }
        }
    }
}
