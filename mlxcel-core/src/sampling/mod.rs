//! Sampling: parameters, the sets of them that engines apply, masks.

mod fields;
mod groups;
mod mask;
mod number;
mod params;

pub use fields::SamplingFields;
pub use groups::{Dry, DynamicTemperature, Mirostat, Xtc};
pub use mask::TokenMask;
pub use number::SamplingNumber;
pub use params::{SamplingField, SamplingParams};
