//! A story from a module of WebAssembly that imports nothing but random bytes.

use mlxcel_session::{Message, Model, ModelSource, Options};

const FILES: &[(&str, &[u8])] = &[
    ("config.json", include_bytes!("../../../examples/models/storyteller/config.json")),
    ("generation_config.json", include_bytes!("../../../examples/models/storyteller/generation_config.json")),
    ("tokenizer.json", include_bytes!("../../../examples/models/storyteller/tokenizer.json")),
    ("tokenizer_config.json", include_bytes!("../../../examples/models/storyteller/tokenizer_config.json")),
    ("chat_template.jinja", include_bytes!("../../../examples/models/storyteller/chat_template.jinja")),
    ("model.safetensors", include_bytes!("../../../examples/models/storyteller/model.safetensors")),
];

#[link(wasm_import_module = "host")]
unsafe extern "C" {
    /// Fills memory with random bytes.
    fn random(start: *mut u8, length: usize);
}

/// Where the hash tables of dependencies get their seeds from.
#[unsafe(no_mangle)]
unsafe extern "Rust" fn __getrandom_v03_custom(
    start: *mut u8,
    length: usize,
) -> Result<(), getrandom::Error> {
    // SAFETY: the caller gives memory of that length to write to.
    unsafe { random(start, length) };
    Ok(())
}

fn story() -> mlxcel_session::Result<String> {
    let model = Model::open(ModelSource::Embedded(FILES))?;
    let question = Message::user("Tell me a story about a fox named Pip.");
    model.chat(&[question], &Options::new(24))?.collect()
}

/// Generates a story or an error message; a pointer to the text, whose length is `length`.
#[unsafe(no_mangle)]
pub extern "C" fn tell() -> *const u8 {
    let text = story().unwrap_or_else(|error| format!("error: {error}"));
    let text = Box::leak(text.into_boxed_str());
    LENGTH.store(text.len(), std::sync::atomic::Ordering::Relaxed);
    text.as_ptr()
}

static LENGTH: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);

/// The length of the last text in bytes.
#[unsafe(no_mangle)]
pub extern "C" fn length() -> usize {
    LENGTH.load(std::sync::atomic::Ordering::Relaxed)
}
