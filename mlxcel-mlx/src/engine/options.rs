//! Types of the engine's options.

use std::fmt;

use mlxcel_core::{Error, ErrorKind, Result};

use crate::array::Mode;

/// A quantization format of weights: mode, bits and group size.
///
/// ```
/// use mlxcel_mlx::WeightQuantization;
///
/// assert_eq!(WeightQuantization::affine(4, 64)?.to_string(), "affine 4-bit/64");
/// assert!(WeightQuantization::affine(7, 64).is_err());
/// # Ok::<(), mlxcel_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WeightQuantization {
    mode: Mode,
    bits: usize,
    group_size: usize,
}

impl WeightQuantization {
    /// Affine quantization, `scale · q + bias`: unsigned integers of 2, 3, 4, 5, 6 or 8 bits in groups of 32,
    /// 64 or 128.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] for other bits or group sizes.
    pub fn affine(bits: usize, group_size: usize) -> Result<Self> {
        let check = |valid: bool, field: &'static str, value: usize, range: &'static str| {
            if valid {
                return Ok(());
            }
            Err(Error::new(ErrorKind::InvalidInput, "choose quantization", range)
                .with_context("field", field)
                .with_context("value", value))
        };
        check([2, 3, 4, 5, 6, 8].contains(&bits), "bits", bits, "it must be 2, 3, 4, 5, 6 or 8")?;
        check([32, 64, 128].contains(&group_size), "group_size", group_size, "it must be 32, 64 or 128")?;
        Ok(Self { mode: Mode::Affine, bits, group_size })
    }

    /// OCP microscaling: 4-bit floats in groups of 32 with a power of two as scale.
    pub fn mxfp4() -> Self {
        Self { mode: Mode::Mxfp4, bits: 4, group_size: 32 }
    }

    /// OCP microscaling: 8-bit floats in groups of 32 with a power of two as scale.
    pub fn mxfp8() -> Self {
        Self { mode: Mode::Mxfp8, bits: 8, group_size: 32 }
    }

    /// NVFP4: 4-bit floats in groups of 16 with an 8-bit float as scale.
    pub fn nvfp4() -> Self {
        Self { mode: Mode::Nvfp4, bits: 4, group_size: 16 }
    }

    /// The meaning of packed values.
    pub(crate) fn mode(&self) -> Mode {
        self.mode
    }

    /// Bits per value.
    pub fn bits(&self) -> usize {
        self.bits
    }

    /// Values per scale.
    pub fn group_size(&self) -> usize {
        self.group_size
    }
}

impl fmt::Display for WeightQuantization {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}-bit/{}", self.mode.name(), self.bits, self.group_size)
    }
}
