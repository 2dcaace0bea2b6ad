//! Settings of a model, and the index of its weights: as far as a step of the engine that runs everywhere.

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use mlxcel_core::{Backend, Control, InferenceSessionExt, LoadOptions, Result, Row, SessionOptions};
use mlxcel_models::Checkpoint;
use mlxcel_portable::PortableBackend;
use serde_json::Value;

use super::place::{Place, QUANTIZED, describe, fixture, fixtures, quantized};
use crate::outcome::Outcome;
use crate::target::Target;

pub(super) const CONFIG: Target = Target {
    name: "config",
    about: "config.json beside the weights of the fixture of its family: described, loaded and run by the portable engine",
    run: config,
    quick: Some(described),
    seeds: configs,
    ..Target::USUAL
};

pub(super) const INDEX: Target = Target {
    name: "index",
    about: "model.safetensors.index.json beside four shards: opened and described",
    run: index,
    memory: 64,
    seconds: 5,
    seeds: indexes,
    ..Target::USUAL
};

thread_local! {
    /// A folder for each fixture, with links to its weights.
    static PLACES: RefCell<BTreeMap<String, Place>> = const { RefCell::new(BTreeMap::new()) };
    static PLACE: Place = const { Place::new() };
    static KNOWN: OnceCell<Vec<String>> = const { OnceCell::new() };
}

/// The files of a fixture that hold weights.
fn weights(name: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(fixture(name)).into_iter().flatten().flatten();
    let files = entries.map(|entry| entry.path());
    files
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("model")))
        .collect()
}

/// The fixture of the method that a configuration names, else of the family that it is of, or seems to be.
fn family(config: &[u8]) -> String {
    let config: Value = serde_json::from_slice(config).unwrap_or_default();
    if let Some(packed) = config["quantization_config"]["quant_method"].as_str().and_then(quantized) {
        return packed.to_owned();
    }
    let families = [&config["model_type"], &config["text_config"]["model_type"]];
    let mut named = families.into_iter().filter_map(Value::as_str).map(|name| name.trim_end_matches("_text"));
    let found = KNOWN.with(|known| {
        let known = known.get_or_init(fixtures);
        named.find_map(|name| known.iter().find(|known| known.trim_end_matches("_text") == name)).cloned()
    });
    found.unwrap_or_else(|| "llama".to_owned())
}

/// Writes `config.json` beside the weights that it is for, and uses the folder.
fn beside_weights(input: &[u8], use_it: impl Fn(&Place) -> Result<Outcome>) -> Outcome {
    PLACES.with_borrow_mut(|places| {
        let family = family(input);
        let place = places.entry(family.clone()).or_insert_with(|| {
            let place = Place::new();
            for path in weights(&family) {
                place.link(&path.file_name().unwrap_or_default().to_string_lossy(), &path);
            }
            place
        });
        place.put("config.json", input);
        Outcome::new(family).then(Outcome::of(use_it(place)))
    })
}

fn described(input: &[u8]) -> Outcome {
    beside_weights(input, read)
}

fn config(input: &[u8]) -> Outcome {
    beside_weights(input, |place| Ok(read(place)?.then(run(place)?)))
}

fn read(place: &Place) -> Result<Outcome> {
    describe(&Checkpoint::open(place.path())?)
}

/// A prompt and a token.
fn run(place: &Place) -> Result<Outcome> {
    let options = LoadOptions::default().with_capacity(24).with_sequences(2).with_threads(1);
    let model = PortableBackend::new().load(&place.path().into(), &options)?;
    let mut session = model.open_session(&SessionOptions::default())?;
    let sequence = session.open()?;
    let tokens: Vec<u32> = (0..20).map(|token| token % model.info().vocabulary_size.max(1) as u32).collect();
    let control = Control::default();
    let first = session.run_row(Row::logits(sequence, &tokens), &control);
    let second = session.run_row(Row::logits(sequence, &tokens[..1]), &control);
    let [first, second] = [first, second].map(|row| Outcome::of(row.map(|_| Outcome::new("logits"))));
    Ok(first.then(second))
}

fn index(input: &[u8]) -> Outcome {
    PLACE.with(|place| {
        place.put("model.safetensors.index.json", input);
        if !place.path().join("config.json").exists() {
            weights("olmo2").iter().filter(|path| !path.ends_with("model.safetensors.index.json")).for_each(
                |path| {
                    place.link(&path.file_name().unwrap_or_default().to_string_lossy(), path);
                },
            );
            place.put("config.json", &fs::read(fixture("olmo2").join("config.json")).unwrap_or_default());
        }
        Outcome::of(read(place))
    })
}

fn configs() -> Vec<Vec<u8>> {
    let packed = QUANTIZED.iter().map(|(_, name)| (*name).to_owned());
    let files = fixtures().into_iter().chain(packed).map(|name| fs::read(fixture(&name).join("config.json")));
    files.flatten().collect()
}

fn indexes() -> Vec<Vec<u8>> {
    fs::read(fixture("olmo2").join("model.safetensors.index.json")).into_iter().collect()
}
