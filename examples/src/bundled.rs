//! The model that is part of these programs: `examples/models/storyteller`, which tells little stories about animals.

use mlxcel_session::ModelSource;

/// What to ask it where the user asks nothing.
pub const PROMPT: &str = "Tell me a story about a fox named Pip.";

/// Bytes as aligned as those of a mapped file, so that engines can use them where they are.
#[repr(align(64))]
struct Aligned<T: ?Sized>(T);

static WEIGHTS: &Aligned<[u8]> = &Aligned(*include_bytes!("../models/storyteller/model.safetensors"));

static FILES: &[(&str, &[u8])] = &[
    ("config.json", include_bytes!("../models/storyteller/config.json")),
    ("generation_config.json", include_bytes!("../models/storyteller/generation_config.json")),
    ("model.safetensors", &WEIGHTS.0),
    ("tokenizer.json", include_bytes!("../models/storyteller/tokenizer.json")),
    ("tokenizer_config.json", include_bytes!("../models/storyteller/tokenizer_config.json")),
    ("chat_template.jinja", include_bytes!("../models/storyteller/chat_template.jinja")),
];

/// The bundled model: 1.7 million parameters, 1024 tokens of context, a chat template.
pub fn storyteller() -> ModelSource {
    ModelSource::Embedded(FILES)
}
