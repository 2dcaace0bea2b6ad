//! Checkpoints and families: what they read, what they refuse, and how they are described.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, missing_docs)]

mod architectures;
mod checkpoints;
mod classics;
mod common;
mod compressed;
mod draft_heads;
mod eagle3;
mod encoders;
mod experts;
mod families;
mod forms;
mod indexers;
mod layouts;
mod llama;
mod mistral;
mod naive;
mod quantized;
mod recurrent;
mod refusals;
mod rotary;
