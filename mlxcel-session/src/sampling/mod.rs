//! Sampling on the host, from logits; identical for every engine.

mod candidates;
pub(crate) mod defaults;
mod host;
mod random;
mod select;
mod step;
mod steps;
#[cfg(test)]
mod tests;

pub use candidates::{Candidate, Candidates};
pub use host::HostSampler;
pub use step::{SamplingStep, StepContext};
