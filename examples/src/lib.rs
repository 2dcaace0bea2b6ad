//! What the example programs share: the bundled model, progress on a terminal, one-line errors.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod bundled;
mod engine;
pub mod input;
pub mod inspection;
mod interrupt;
mod model;
mod progress;
mod report;
mod sampling;
#[cfg(unix)]
mod signals;

#[cfg(feature = "iree")]
pub use engine::iree;
pub use engine::{Engine, EngineOptions, open_model_on, place};
pub use interrupt::Interrupt;
pub use model::ModelArguments;
pub use progress::Progress;
pub use report::{Failure, exit, json_line, launch, launch_until, one_line};
pub use sampling::SamplingArguments;

/// The programs in the README and in the book compile.
#[cfg(doctest)]
mod documentation {
    #[doc = include_str!("../../README.md")]
    struct Readme;
    #[doc = include_str!("../../docs/getting-started.md")]
    struct GettingStarted;
    #[doc = include_str!("../../docs/server.md")]
    struct Server;
    #[doc = include_str!("../../docs/engines.md")]
    struct Engines;
    #[doc = include_str!("../../docs/quantization.md")]
    struct Quantization;
    #[doc = include_str!("../../docs/shipping.md")]
    struct Shipping;
    #[doc = include_str!("../../docs/structured-output.md")]
    struct StructuredOutput;
    #[doc = include_str!("../../docs/webassembly.md")]
    struct WebAssembly;
    #[doc = include_str!("../../docs/profiling.md")]
    struct Profiling;
    #[doc = include_str!("../../docs/writing-a-backend.md")]
    struct WritingABackend;
}
