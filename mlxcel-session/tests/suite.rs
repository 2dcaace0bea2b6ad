//! Models, conversations, samplers, templates and the engine of many requests.
#![allow(
    clippy::expect_used, clippy::panic, clippy::print_stdout, clippy::unwrap_used, missing_docs,
    unreachable_pub
)]

mod adapter_pool;
mod adapters;
mod conversation;
mod draft_head;
mod engine;
mod frozen;
mod gguf;
mod hostile_templates;
mod hostile_tokenizers;
mod literal_text;
mod model;
mod prefix;
mod reasoning;
mod rerank;
mod sampling;
mod scores;
mod speculation;
#[cfg(feature = "schemars")]
mod structured;
mod support;
mod templates;
mod tokenizer;
