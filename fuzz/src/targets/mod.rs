//! The targets, one a file.

mod adapter;
mod broken;
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

/// In the order in which they are listed and run.
const ALL: &[Target] = &[
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
    tokenizer::WORLD,
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

impl Target {
    /// All targets.
    pub fn all() -> &'static [Self] {
        ALL
    }

    /// The target called `name`: one of [`all`](Self::all), or `broken`, which tests have.
    pub fn find(name: &str) -> Option<&'static Self> {
        let broken = &broken::TARGET;
        Self::all().iter().chain([broken]).find(|target| target.name == name)
    }
}
