//! Sampling: parameters, negotiation between engine and host, masks.

mod builders;
mod fields;
mod groups;
mod mask;
mod params;
mod plan;
mod validate;

pub use fields::{SamplingField, SamplingFields};
pub use groups::{Dry, DynamicTemperature, Mirostat, Xtc};
pub use mask::TokenMask;
pub use params::SamplingParams;
pub use plan::{SamplingNeeds, SamplingPlace, SamplingPlan};
