//! The files of an adapter, read for a checkpoint of the fixtures.

use std::cell::OnceCell;
use std::fs;

use mlxcel_core::{AdapterLimits, ModelSource, Result};
use mlxcel_models::{
    AdapterChanges, AdapterWeights, Checkpoint, Decoder, ElementType, LowRank, ModuleChange,
};

use super::place::{Place, fixture};
use crate::corpus::repository;
use crate::outcome::Outcome;
use crate::target::{Format, Target};

pub(super) const CONFIG: Target = Target {
    name: "adapter-config",
    about: "adapter_config.json, beside the weights of an adapter",
    run: |input| read(&[(CONFIG_FILE, input), (PEFT_FILE, &own(PEFT, PEFT_FILE))]),
    memory: 64,
    seconds: 5,
    longest: 16 << 10,
    seeds: || files(PEFT, CONFIG_FILE),
    ..Target::USUAL
};

pub(super) const WEIGHTS: Target = Target {
    name: "adapter-weights",
    about: "adapter_model.safetensors: what is read of it is finite and fits the model",
    format: Format::Safetensors,
    run: |input| read(&[(CONFIG_FILE, &own(PEFT, CONFIG_FILE)), (PEFT_FILE, input)]),
    seeds: || files(PEFT, PEFT_FILE),
    longest: 64 << 10,
    ..CONFIG
};

pub(super) const MLX_CONFIG: Target = Target {
    name: "adapter-mlx-config",
    about: "adapter_config.json of mlx-lm, beside the weights of an adapter",
    run: |input| read(&[(CONFIG_FILE, input), (MLX_FILE, &own(MLX, MLX_FILE))]),
    seeds: || files(MLX, CONFIG_FILE),
    ..CONFIG
};

pub(super) const MLX_WEIGHTS: Target = Target {
    name: "adapter-mlx-weights",
    about: "adapters.safetensors of mlx-lm: what is read of it is finite and fits the model",
    run: |input| read(&[(CONFIG_FILE, &own(MLX, CONFIG_FILE)), (MLX_FILE, input)]),
    seeds: || files(MLX, MLX_FILE),
    ..WEIGHTS
};

pub(super) const GGUF: Target = Target {
    name: "adapter-gguf",
    about: "an adapter in a GGUF file: what is read of it is finite and fits the model",
    format: Format::Gguf,
    run: |input| read(&[(GGUF_FILE, input)]),
    seeds: || files(CONVERTED, GGUF_FILE),
    ..WEIGHTS
};

const CONFIG_FILE: &str = "adapter_config.json";
const PEFT_FILE: &str = "adapter_model.safetensors";
const MLX_FILE: &str = "adapters.safetensors";
const GGUF_FILE: &str = "adapter.gguf";

/// The adapters of the fixtures in each format.
const PEFT: &[&str] = &["llama-attention", "llama-all", "llama-zero", "llama-dora"];
const MLX: &[&str] = &["llama-attention-mlx"];
const CONVERTED: &[&str] = &["llama-attention-gguf", "llama-all-gguf"];

thread_local! {
    static PLACE: Place = const { Place::new() };
    static BASE: OnceCell<Option<(Checkpoint, Decoder)>> = const { OnceCell::new() };
}

/// The rank that there is room for.
const RANK: usize = 8;

/// A file of each of these adapters.
fn files(adapters: &[&str], name: &str) -> Vec<Vec<u8>> {
    let folder = repository().join("fixtures/adapters");
    adapters.iter().filter_map(|adapter| fs::read(folder.join(adapter).join(name)).ok()).collect()
}

/// That of the first.
fn own(adapters: &[&str], name: &str) -> Vec<u8> {
    files(adapters, name).into_iter().next().unwrap_or_default()
}

/// Reads the adapter with these files, to run and to merge.
fn read(files: &[(&str, &[u8])]) -> Outcome {
    let open = || {
        let checkpoint = Checkpoint::open(fixture("llama")).ok()?;
        let decoder = checkpoint.decoder().ok()?;
        Some((checkpoint, decoder))
    };
    BASE.with(|base| match base.get_or_init(open) {
        Some((checkpoint, decoder)) => PLACE.with(|place| {
            [CONFIG_FILE, PEFT_FILE, MLX_FILE, GGUF_FILE].into_iter().for_each(|name| place.remove(name));
            files.iter().for_each(|(name, content)| place.put(name, content));
            let source = ModelSource::Folder(place.path().to_owned());
            Outcome::of(read_for(decoder, &source)).then(Outcome::of(merged(checkpoint, decoder, &source)))
        }),
        None => Outcome::new("no fixture"),
    })
}

/// What merging would change.
fn merged(checkpoint: &Checkpoint, decoder: &Decoder, source: &ModelSource) -> Result<Outcome> {
    let changes = AdapterChanges::read(source, checkpoint, decoder)?;
    for (name, change) in &changes.modules {
        let ModuleChange { outputs, inputs, product, replaced, magnitude, .. } = change;
        let fits = product.as_ref().is_none_or(|LowRank { rank, a, b }| {
            (a.len(), b.len()) == (rank * inputs, rank * outputs) && a.iter().chain(b).all(|x| x.is_finite())
        });
        assert!(fits, "{name:?}");
        assert!(replaced.as_ref().is_none_or(|values| values.len() == inputs * outputs), "{name:?}");
        assert!(magnitude.as_ref().is_none_or(|values| values.len() == *outputs), "{name:?}");
        change.apply(outputs - 1, &mut vec![1.0; *inputs]);
    }
    Ok(Outcome::new(format_args!("merged {}", changes.modules.len())))
}

fn read_for(decoder: &Decoder, source: &ModelSource) -> Result<Outcome> {
    let adapter = AdapterWeights::read(source, decoder, AdapterLimits::new(1, RANK))?;
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
    Ok(Outcome::new(format_args!("read {}", adapter.products.len())))
}
