//! What the example programs share: the bundled model, progress on a terminal, one-line errors.
#![forbid(unsafe_code)]

pub mod bundled;
mod engine;
pub mod input;
pub mod inspection;
mod progress;
mod report;
mod sampling;
#[cfg(unix)]
mod signals;

#[cfg(feature = "iree")]
pub use engine::iree;
pub use engine::{Engine, EngineOptions, open_model};
pub use progress::Progress;
pub use report::{Failure, exit, launch, launch_until, one_line};
pub use sampling::SamplingArguments;

/// The README's programs compile.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
pub struct Readme;
