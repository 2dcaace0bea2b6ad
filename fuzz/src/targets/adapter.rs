//! The files of an adapter, read for a checkpoint of the fixtures.

use std::cell::OnceCell;
use std::fs;

use mlxcel_core::{AdapterLimits, ModelSource};
use mlxcel_models::{AdapterWeights, Checkpoint, Decoder, ElementType};

use super::place::{Place, fixture};
use crate::corpus::repository;
use crate::{Format, Outcome, Target};

pub(super) const CONFIG: Target = Target {
    name: "adapter-config",
    about: "adapter_config.json, beside the weights of an adapter",
    format: Format::Json,
    run: |input| read(input, &own("adapter_model.safetensors")),
    quick: None,
    memory: 64,
    seconds: 5,
    stack: 2048,
    longest: 16 << 10,
    seeds: || files("adapter_config.json"),
};

pub(super) const WEIGHTS: Target = Target {
    name: "adapter-weights",
    about: "adapter_model.safetensors: what is read of it is finite and fits the model",
    format: Format::Safetensors,
    run: |input| read(&own("adapter_config.json"), input),
    seeds: || files("adapter_model.safetensors"),
    longest: 64 << 10,
    ..CONFIG
};

thread_local! {
    static PLACE: Place = const { Place::new() };
    static DECODER: OnceCell<Option<Decoder>> = const { OnceCell::new() };
}

/// The rank that there is room for.
const RANK: usize = 8;

/// A file of each adapter of the fixtures.
fn files(name: &str) -> Vec<Vec<u8>> {
    let folder = repository().join("fixtures/adapters");
    let read = |adapter: &str| fs::read(folder.join(adapter).join(name)).ok();
    ["llama-attention", "llama-all", "llama-zero"].into_iter().filter_map(read).collect()
}

/// That of the first.
fn own(name: &str) -> Vec<u8> {
    files(name).into_iter().next().unwrap_or_default()
}

fn read(config: &[u8], weights: &[u8]) -> Outcome {
    let open = || Checkpoint::open(fixture("llama")).and_then(|checkpoint| checkpoint.decoder()).ok();
    DECODER.with(|decoder| match decoder.get_or_init(open) {
        Some(decoder) => PLACE.with(|place| {
            place.put("adapter_config.json", config);
            place.put("adapter_model.safetensors", weights);
            read_for(decoder, place)
        }),
        None => Outcome::new("no fixture"),
    })
}

fn read_for(decoder: &Decoder, place: &Place) -> Outcome {
    let source = ModelSource::Folder(place.path().to_owned());
    let read = AdapterWeights::read(&source, decoder, AdapterLimits::new(1, RANK));
    let adapter = match read {
        Ok(adapter) => adapter,
        Err(error) => return Outcome::refused(&error),
    };
    for linear in decoder.adaptable() {
        let Some(product) = adapter.products.get(&linear.weight) else { continue };
        assert!(product.rank <= RANK);
        assert_eq!(
            (product.a.len(), product.b.len()),
            (product.rank * linear.inputs, product.rank * linear.outputs)
        );
        assert!(product.a.iter().chain(&product.b).all(|value| value.is_finite()));
        let sizes = product.padded(ElementType::F32, RANK).map(|padded| padded.map(|bytes| bytes.len()));
        assert_eq!(sizes.ok(), Some([linear.inputs, linear.outputs].map(|size| 4 * RANK * size)));
    }
    Outcome::new(format_args!("read {}", adapter.products.len()))
}
