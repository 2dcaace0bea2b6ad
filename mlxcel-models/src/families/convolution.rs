//! Depthwise convolutions.

use mlxcel_core::Result;

use super::roles::Roles;
use crate::config::Fields;
use crate::decoder::{Activation, Convolution};

/// Far above any published model.
const MOST_TAPS: usize = 64;

/// The number of taps in the field `key`: at least two, since with one there is nothing to keep.
pub(super) fn taps(config: Fields<'_>, key: &str, default: usize) -> Result<usize> {
    Ok(config.size(key, 2..=MOST_TAPS)?.unwrap_or(default))
}

impl Roles<'_> {
    /// The convolution that `{name}.weight` and, if `bias`, `{name}.bias` hold: `[channels, 1, taps]` as PyTorch has it, or `[channels,
    /// taps, 1]` as mlx-lm does.
    pub(super) fn convolution(
        &self,
        name: &str,
        [channels, taps]: [usize; 2],
        bias: bool,
        activation: Option<Activation>,
    ) -> Result<Convolution> {
        let weight = format!("{name}.weight");
        let converted = [channels, taps, 1];
        let is_converted = self.shape(&weight).is_some_and(|shape| shape == converted);
        let shape = if is_converted { converted } else { [channels, 1, taps] };
        let weight = self.add(self.dense(&weight, &shape)?.reshaped([channels, taps]));
        let bias = if bias { Some(self.tensor(&format!("{name}.bias"), &[channels])?) } else { None };
        Ok(Convolution { weight, bias, channels, taps, activation })
    }
}
