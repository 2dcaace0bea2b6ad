//! Builder methods of the sampling parameters.

use std::sync::Arc;

// Every type that a sampling parameter has.
use mlxcel_core::*;

use super::Options;
use crate::sampling::SamplingStep;

mlxcel_core::__sampling_builders!(Options.sampling);

impl Options {
    /// Sets [`SamplingParams::seed`].
    #[must_use]
    pub fn with_seed(mut self, seed: u64) -> Self {
        self.sampling = self.sampling.with_seed(seed);
        self
    }

    /// Sets a random seed, so that sampled text differs from run to run; see
    /// [`SamplingParams::with_random_seed`].
    #[must_use]
    pub fn with_random_seed(mut self) -> Self {
        self.sampling = self.sampling.with_random_seed();
        self
    }

    /// Adds a custom sampling step. Tokens are then sampled on the host.
    #[must_use]
    pub fn with_step(mut self, step: Arc<dyn SamplingStep>) -> Self {
        self.steps.push(step);
        self
    }
}
