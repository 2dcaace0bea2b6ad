//! Sampling: parameters, negotiation between engine and host, masks.

mod fields;
mod groups;
mod mask;
mod number;
mod params;
mod plan;

pub use fields::SamplingFields;
pub use groups::{Dry, DynamicTemperature, Mirostat, Xtc};
pub use mask::TokenMask;
pub use number::SamplingNumber;
pub use params::{SamplingField, SamplingParams};
pub use plan::{SamplingNeeds, SamplingPlace, SamplingPlan};
