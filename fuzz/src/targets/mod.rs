//! The targets, one a file.

mod adapter;
pub(crate) mod broken;
#[cfg(feature = "iree")]
mod bundle;
mod chat;
mod config;
mod detokenizer;
mod gguf;
mod place;
mod program;
mod safetensors;
mod sequences;
mod settings;
mod snapshot;
mod stop;
mod template;
mod tokenizer;

use crate::target::Target;

/// All targets.
pub(crate) const ALL: &[Target] = &[
    config::CONFIG,
    config::INDEX,
    safetensors::TARGET,
    gguf::TARGET,
    adapter::CONFIG,
    adapter::WEIGHTS,
    adapter::MLX_CONFIG,
    adapter::MLX_WEIGHTS,
    adapter::GGUF,
    tokenizer::TARGET,
    template::TARGET,
    chat::TARGET,
    settings::TARGET,
    snapshot::TARGET,
    sequences::REFERENCE,
    sequences::PORTABLE,
    detokenizer::TARGET,
    stop::TARGET,
    program::TARGET,
    #[cfg(feature = "iree")]
    bundle::TARGET,
];

/// No inputs of the repository's own.
fn none() -> Vec<Vec<u8>> {
    Vec::new()
}
