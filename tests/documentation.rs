//! The programs in the README and in the book, compiled by `cargo test --doc -p mlxcel-tests`.
#![forbid(unsafe_code)]

#[cfg(doctest)]
mod documentation {
    #[doc = include_str!("../README.md")]
    struct Readme;
    #[doc = include_str!("../docs/start/getting-started.md")]
    struct GettingStarted;
    #[doc = include_str!("../docs/deploy/server.md")]
    struct Server;
    #[doc = include_str!("../docs/start/choosing-an-engine.md")]
    struct Engines;
    #[doc = include_str!("../docs/guides/quantization.md")]
    struct Quantization;
    #[doc = include_str!("../docs/deploy/bundles.md")]
    struct Shipping;
    #[doc = include_str!("../docs/guides/structured-output.md")]
    struct StructuredOutput;
    #[doc = include_str!("../docs/deploy/webassembly.md")]
    struct WebAssembly;
    #[doc = include_str!("../docs/internals/profiling.md")]
    struct Profiling;
    #[doc = include_str!("../docs/extending/writing-a-backend.md")]
    struct WritingABackend;
}
