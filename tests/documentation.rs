//! The programs in the README and in the book, compiled by `cargo test --doc -p mlxcel-tests`.
#![forbid(unsafe_code)]

#[cfg(doctest)]
mod documentation {
    #[doc = include_str!("../README.md")]
    struct Readme;
    #[doc = include_str!("../docs/getting-started.md")]
    struct GettingStarted;
    #[doc = include_str!("../docs/server.md")]
    struct Server;
    #[doc = include_str!("../docs/engines.md")]
    struct Engines;
    #[doc = include_str!("../docs/quantization.md")]
    struct Quantization;
    #[doc = include_str!("../docs/shipping.md")]
    struct Shipping;
    #[doc = include_str!("../docs/structured-output.md")]
    struct StructuredOutput;
    #[doc = include_str!("../docs/webassembly.md")]
    struct WebAssembly;
    #[doc = include_str!("../docs/profiling.md")]
    struct Profiling;
    #[doc = include_str!("../docs/writing-a-backend.md")]
    struct WritingABackend;
}
