//! A bundle's programs, for the model that is opened from it.

mod open;
mod source;
mod trust;

#[cfg(feature = "compile")]
#[cfg(test)]
mod tests;

pub use open::Bundle;
pub(crate) use trust::{Offer, Trust};
