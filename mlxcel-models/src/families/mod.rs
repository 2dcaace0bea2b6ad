//! Model families: each maps the settings and tensor names of one architecture to a [`Decoder`].
//!
//! A new one is a file here, with a [`Family`] that is listed in [`FAMILIES`].

mod blocks;
mod llama;
mod mistral;
mod outline;
mod roles;
mod settings;
mod text;

use mlxcel_core::{Result, TokenId};

use roles::Roles;
pub(crate) use text::TextModel;

use crate::checkpoint::Checkpoint;
use crate::decoder::Decoder;
use crate::quantization::refuse_quantized_activations;

/// An architecture, or several that differ in nothing but their name.
pub(crate) struct Family {
    /// The values of `model_type` in `config.json`.
    model_types: &'static [&'static str],
    /// The tokens that end a text where no file mentions one, from the default of the settings class in transformers.
    pub(crate) stop_tokens: &'static [TokenId],
    /// Reads settings and weights into a description.
    describe: fn(&Roles<'_>) -> Result<Decoder>,
}

/// Every supported family.
const FAMILIES: &[Family] = &[llama::FAMILY, mistral::FAMILY];

/// The values of `model_type` that [`Checkpoint::decoder`] knows.
pub fn supported_model_types() -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().flat_map(|family| family.model_types.iter().copied())
}

/// The family of a `model_type`.
pub(crate) fn find(model_type: &str) -> Option<&'static Family> {
    FAMILIES.iter().find(|family| family.model_types.contains(&model_type))
}

/// The decoder of a checkpoint of any family.
pub(crate) fn describe(checkpoint: &Checkpoint) -> Result<Decoder> {
    let text = TextModel::of(checkpoint.model_type(), checkpoint.config())?;
    let Some(family) = find(text.model_type) else {
        let supported = supported_model_types().collect::<Vec<_>>().join(", ");
        let message = format!(
            "the model type '{}' is not known; supported: {supported}",
            text.model_type.escape_debug()
        );
        return Err(text.config.unsupported("model_type", message));
    };
    if let Some(error) = refuse_quantized_activations(checkpoint.config()) {
        return Err(error);
    }
    (family.describe)(&Roles::new(checkpoint, text))
}
