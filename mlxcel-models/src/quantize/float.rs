//! Conversion between the float types of weights and float32.

use half::{bf16, f16};

use crate::element::ElementType;

/// A type of dense weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Float {
    F32,
    F16,
    BF16,
}

impl Float {
    /// The type, if it is one of dense weights.
    pub(crate) fn of(element: ElementType) -> Option<Self> {
        match element {
            ElementType::F32 => Some(Self::F32),
            ElementType::F16 => Some(Self::F16),
            ElementType::BF16 => Some(Self::BF16),
            _ => None,
        }
    }

    pub(crate) fn element(self) -> ElementType {
        match self {
            Self::F32 => ElementType::F32,
            Self::F16 => ElementType::F16,
            Self::BF16 => ElementType::BF16,
        }
    }

    pub(crate) fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
        }
    }

    /// The number of this type that is nearest to `value`.
    pub(crate) fn round(self, value: f32) -> f32 {
        match self {
            Self::F32 => value,
            Self::F16 => f16::from_f32(value).to_f32(),
            Self::BF16 => bf16::from_f32(value).to_f32(),
        }
    }

    pub(crate) fn read(self, source: &[u8], values: &mut [f32]) {
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

    pub(crate) fn write(self, values: &[f32], target: &mut [u8]) {
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
