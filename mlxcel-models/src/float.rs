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

    /// Whether all of `values` are finite, also when they are [rounded](Self::round).
    pub fn holds(self, values: &[f32]) -> bool {
        // Half of the last place above the largest number rounds to infinity.
        let bound = match self {
            Self::F32 => f32::INFINITY,
            Self::F16 => 65_520.0,
            Self::BF16 => f32::from_bits(0x7f7f_8000),
        };
        // Without a branch for each value.
        values.chunks(256).all(|values| values.iter().fold(true, |all, value| all & (value.abs() < bound)))
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

    /// All little-endian elements of `source`.
    pub(crate) fn values(self, source: &[u8]) -> Vec<f32> {
        let mut values = vec![0.0; source.len() / self.bytes()];
        self.read(source, &mut values);
        values
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_holds_what_it_rounds_to_a_finite_number() {
        for float in [Float::F32, Float::F16, Float::BF16] {
            let bounds = [65_504.0, 65_520.0, f32::from_bits(0x7f7f_8000), f32::MAX, f32::INFINITY];
            for bound in bounds {
                for value in [bound.next_down(), bound, bound.next_up(), -bound, -bound.next_down(), f32::NAN]
                {
                    let mut values = vec![1.0; 300];
                    values[280] = value;
                    assert_eq!(
                        float.holds(&values),
                        float.round(value).is_finite(),
                        "{value:e} as {float:?}"
                    );
                }
            }
        }
    }
}
