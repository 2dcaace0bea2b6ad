//! The small files beside a model, all in one input: an object of names and contents.

use std::fs;

use mlxcel_core::{LoadOptions, Result};
use mlxcel_portable::PortableBackend;
use mlxcel_session::{ChatOptions, Message, Model, Options};
use serde_json::{Map, Value, json};

use super::place::{Place, fixture, storyteller};
use crate::outcome::Outcome;
use crate::target::Target;

pub(super) const TARGET: Target = Target {
    name: "settings",
    about: "generation_config.json, tokenizer_config.json and the other small files: a model opened with them, and a chat begun",
    run,
    seeds,
    ..Target::USUAL
};

const NAMES: [&str; 6] = [
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.json",
    "chat_template.jinja",
];

thread_local! {
    static PLACE: Place = const { Place::new() };
}

fn run(input: &[u8]) -> Outcome {
    let Ok(files) = serde_json::from_slice::<Map<String, Value>>(input) else {
        return Outcome::new("no object");
    };
    PLACE.with(|place| {
        if !place.path().join("config.json").exists() {
            let copied = [
                (fixture("llama").join("config.json"), "config.json"),
                (storyteller().join("tokenizer.json"), "tokenizer.json"),
            ];
            copied.iter().for_each(|(from, name)| place.put(name, &fs::read(from).unwrap_or_default()));
            place.link("model.safetensors", &fixture("llama").join("model.safetensors"));
        }
        for name in NAMES {
            match files.get(name) {
                None => place.remove(name),
                // A text is the content itself, which then need not be JSON.
                Some(Value::String(text)) => place.put(name, text.as_bytes()),
                Some(value) => place.put(name, value.to_string().as_bytes()),
            }
        }
        Outcome::of(open(place))
    })
}

fn open(place: &Place) -> Result<Outcome> {
    let options = LoadOptions::default().with_capacity(24).with_sequences(1).with_threads(1);
    let model = Model::load(&PortableBackend::new(), place.path(), &options)?;
    let mut options = Options::default();
    options.max_tokens = 2;
    let vocabulary = model.info().vocabulary_size as u32;
    let mut outcome = Outcome::new(format!("{} ends", model.stop_tokens().len().min(3)));
    for prompt in [[1, 2], [vocabulary - 1, 0]] {
        let generated = model.generate_tokens(&prompt, &options).and_then(|mut stream| {
            while let Some(token) = stream.next_token() {
                token?;
            }
            Ok(Outcome::new("generated"))
        });
        outcome = outcome.then(Outcome::of(generated));
    }
    let messages = [Message::system("a"), Message::user("b")];
    let chat = model.tokenizer()?.render_chat(&messages, &ChatOptions::default());
    Ok(outcome.then(Outcome::of(chat.map(|_| Outcome::new("rendered")))))
}

fn seeds() -> Vec<Vec<u8>> {
    let json = |name: &str| -> Value {
        let text = fs::read(storyteller().join(name)).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default()
    };
    let template = fs::read_to_string(storyteller().join("chat_template.jinja")).unwrap_or_default();
    let files = json!({
        "generation_config.json": json("generation_config.json"),
        "tokenizer_config.json": json("tokenizer_config.json"),
        "chat_template.jinja": template,
    });
    let sampled = json!({
        "generation_config.json": {"do_sample": true, "temperature": 0.7, "top_k": 20, "top_p": 0.8, "min_p": 0.05, "typical_p": 0.9,
            "repetition_penalty": 1.05, "eos_token_id": [2, 7], "bos_token_id": 1, "pad_token_id": 0, "max_new_tokens": 9,
            "no_repeat_ngram_size": 2, "epsilon_cutoff": 0.001, "eta_cutoff": 0.001, "suppress_tokens": [3], "forced_eos_token_id": 1,
            "begin_suppress_tokens": [5], "bad_words_ids": [[4]], "sequence_bias": [[[6], 1.0]], "min_length": 1, "top_h": 0.5},
        "tokenizer_config.json": {"bos_token": {"content": "<s>"}, "eos_token": "</s>", "add_bos_token": true,
            "chat_template": [{"name": "default", "template": "{{ messages[0].content }}"}, {"name": "tool_use", "template": "t"}]},
        "special_tokens_map.json": {"pad_token": "<pad>", "unk_token": {"content": "<unk>"}},
        "chat_template.json": {"chat_template": "{{ bos_token }}{{ messages|length }}"},
        "added_tokens.json": {"<x>": 5},
    });
    vec![files.to_string().into_bytes(), sampled.to_string().into_bytes()]
}
