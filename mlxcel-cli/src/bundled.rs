//! The model that is part of the program: `examples/models/storyteller`, which tells stories about animals.

use mlxcel_session::ModelSource;

/// What to ask it if the user asks nothing.
pub(crate) const PROMPT: &str = "Tell me a story about a fox named Pip.";

/// Bytes as aligned as those of a mapped file, so that engines can use them where they are.
#[repr(align(64))]
struct Aligned<T: ?Sized>(T);

static WEIGHTS: &Aligned<[u8]> = &Aligned(*include_bytes!("../storyteller/model.safetensors"));

static FILES: &[(&str, &[u8])] = &[
    ("config.json", include_bytes!("../storyteller/config.json")),
    ("generation_config.json", include_bytes!("../storyteller/generation_config.json")),
    ("model.safetensors", &WEIGHTS.0),
    ("tokenizer.json", include_bytes!("../storyteller/tokenizer.json")),
    ("tokenizer_config.json", include_bytes!("../storyteller/tokenizer_config.json")),
    ("chat_template.jinja", include_bytes!("../storyteller/chat_template.jinja")),
];

/// The bundled model: 1.7 million parameters, 1024 tokens of context, a chat template.
pub(crate) fn storyteller() -> ModelSource {
    ModelSource::Embedded(FILES)
}
