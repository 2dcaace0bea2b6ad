//! Depthwise convolutions.

use mlxcel_core::{Error, ErrorKind, Result};

use super::roles::{OPERATION, Roles};
use crate::config::Fields;
use crate::decoder::{Activation, Convolution, WeightRef};

/// Far above any published model.
const MOST_TAPS: usize = 64;

/// The number of taps in the field `key`: at least two, since with one there is nothing to keep.
pub(super) fn taps(config: Fields<'_>, key: &str, default: usize) -> Result<usize> {
    Ok(config.size(key, 2..=MOST_TAPS)?.unwrap_or(default))
}

impl Roles<'_> {
    /// The convolution that `{name}.weight` and, if `bias`, `{name}.bias` hold: `[channels, 1, taps]` as
    /// PyTorch has it, or `[channels, taps, 1]` as mlx-lm does.
    pub(super) fn convolution(
        &self,
        name: &str,
        [channels, taps]: [usize; 2],
        bias: bool,
        activation: Option<Activation>,
    ) -> Result<Convolution> {
        let weight = self.add(self.taps_of(name, [channels, taps])?);
        let bias = self.bias(name, channels, bias)?.map(|bias| self.add(bias));
        Ok(Convolution { weight, bias, channels, taps, activation })
    }

    /// The convolution without biases whose channels the modules `names` have, in order: of each so many, or
    /// as many as its tensor has if all have as many together.
    pub(super) fn joined_convolution<const N: usize>(
        &self,
        names: [String; N],
        channels: [usize; N],
        taps: usize,
        activation: Option<Activation>,
    ) -> Result<Convolution> {
        let all: usize = channels.iter().sum();
        let stored = |name: &String| self.shape(&format!("{name}.weight"))?.first().copied();
        let stored: Option<Vec<usize>> = names.iter().map(stored).collect();
        let channels =
            stored.filter(|stored| stored.iter().sum::<usize>() == all).unwrap_or(channels.to_vec());
        let parts = names.iter().zip(channels).map(|(name, channels)| self.taps_of(name, [channels, taps]));
        let mut parts = parts.collect::<Result<Vec<_>>>()?.into_iter();
        let weight = parts.next().map(|first| first.followed_by(parts));
        let weight = weight
            .ok_or_else(|| Error::new(ErrorKind::Internal, OPERATION, "a convolution needs channels"))?;
        Ok(Convolution { weight: self.add(weight), bias: None, channels: all, taps, activation })
    }

    /// The taps that `{name}.weight` holds, `[channels, taps]`.
    fn taps_of(&self, name: &str, [channels, taps]: [usize; 2]) -> Result<WeightRef> {
        let weight = format!("{name}.weight");
        let converted = [channels, taps, 1];
        let is_converted = self.shape(&weight).is_some_and(|shape| shape == converted);
        let shape = if is_converted { converted } else { [channels, 1, taps] };
        Ok(self.dense(&weight, &shape)?.reshaped([channels, taps]))
    }
}
