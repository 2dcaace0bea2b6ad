//! The programs in the README and in the book, compiled by `cargo test --doc -p mlxcel-tests`.
#![forbid(unsafe_code)]

#[cfg(doctest)]
mod documentation {
    #[doc = include_str!("../README.md")]
    struct Readme;
    #[doc = include_str!("../docs/deploy/bundles.md")]
    struct Bundles;
    #[doc = include_str!("../docs/deploy/observability.md")]
    struct Observability;
    #[doc = include_str!("../docs/deploy/server.md")]
    struct Server;
    #[doc = include_str!("../docs/deploy/webassembly.md")]
    struct WebAssembly;
    #[doc = include_str!("../docs/extending/writing-a-backend.md")]
    struct WritingABackend;
    #[doc = include_str!("../docs/guides/adapters.md")]
    struct Adapters;
    #[doc = include_str!("../docs/guides/chat.md")]
    struct Chat;
    #[doc = include_str!("../docs/guides/conversations.md")]
    struct Conversations;
    #[doc = include_str!("../docs/guides/embeddings.md")]
    struct Embeddings;
    #[doc = include_str!("../docs/guides/errors.md")]
    struct Errors;
    #[doc = include_str!("../docs/guides/many-requests.md")]
    struct ManyRequests;
    #[doc = include_str!("../docs/guides/quantization.md")]
    struct Quantization;
    #[doc = include_str!("../docs/guides/sampling.md")]
    struct Sampling;
    #[doc = include_str!("../docs/guides/scores.md")]
    struct Scores;
    #[doc = include_str!("../docs/guides/sessions.md")]
    struct Sessions;
    #[doc = include_str!("../docs/guides/speculation.md")]
    struct SpeculativeDecoding;
    #[doc = include_str!("../docs/guides/structured-output.md")]
    struct StructuredOutput;
    #[doc = include_str!("../docs/guides/testing.md")]
    struct Testing;
    #[doc = include_str!("../docs/guides/tools.md")]
    struct Tools;
    #[doc = include_str!("../docs/internals/profiling.md")]
    struct Profiling;
    #[doc = include_str!("../docs/start/choosing-a-model.md")]
    struct ChoosingAModel;
    #[doc = include_str!("../docs/start/choosing-an-engine.md")]
    struct ChoosingAnEngine;
    #[doc = include_str!("../docs/start/getting-started.md")]
    struct GettingStarted;
}
