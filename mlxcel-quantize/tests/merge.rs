//! Merging adapters: against sums in float64, and what is refused.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use half::bf16;
use mlxcel_core::{CancelToken, ErrorKind};
use mlxcel_models::Checkpoint;
use mlxcel_models::read::Float;
use mlxcel_quantize::{MergeOptions, MergedWeights, QuantizeOptions, WriteOptions, merge, quantize};
use serde_json::Value;

use crate::adapter::write_adapter;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures")
}

fn base(name: &str) -> PathBuf {
    fixtures().join("architectures").join(name)
}

fn adapter(name: &str) -> PathBuf {
    fixtures().join("adapters").join(name)
}

/// The tensors of a safetensors file: shapes and values.
fn tensors(path: &Path) -> BTreeMap<String, (Vec<usize>, Vec<f32>)> {
    let file = fs::read(path).unwrap();
    let length = u64::from_le_bytes(*file.first_chunk::<8>().unwrap()) as usize;
    let header: BTreeMap<String, Value> = serde_json::from_slice(&file[8..8 + length]).unwrap();
    let tensor = |(name, entry): (String, Value)| {
        let numbers = |key: &str| -> Vec<usize> { serde_json::from_value(entry[key].clone()).unwrap() };
        let range = numbers("data_offsets");
        let bytes = &file[8 + length..][range[0]..range[1]];
        let values = match entry["dtype"].as_str().unwrap() {
            "F32" => bytes.as_chunks::<4>().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect(),
            "BF16" => bytes.as_chunks::<2>().0.iter().map(|&b| bf16::from_le_bytes(b).to_f32()).collect(),
            other => panic!("{other}"),
        };
        (name, (numbers("shape"), values))
    };
    header.into_iter().filter(|(name, _)| name != "__metadata__").map(tensor).collect()
}

/// Writes an adapter of rank 2 with scale 1.5 for the modules called so, of these inputs and outputs.
fn make_adapter(folder: &Path, modules: &[(&str, usize, usize)]) {
    write_adapter(folder, modules, 2, 0.25, 1);
}

/// What the adapter makes of a weight, rounded once to bfloat16; `scale` is that of the module.
fn expected(
    weight: &[f32],
    [a, b]: [&(Vec<usize>, Vec<f32>); 2],
    scale: f64,
    is_transposed: bool,
) -> Vec<f64> {
    let (rank, inputs, outputs) = (a.0[0], a.0[1], b.0[0]);
    let mut sums = weight.iter().map(|&value| f64::from(value)).collect::<Vec<_>>();
    for output in 0..outputs {
        for input in 0..inputs {
            let products =
                (0..rank).map(|k| f64::from(b.1[output * rank + k]) * f64::from(a.1[k * inputs + input]));
            let at = if is_transposed { input * outputs + output } else { output * inputs + input };
            sums[at] += scale * products.sum::<f64>();
        }
    }
    sums
}

/// Holds values against sums that are rounded once; one in float32 may be on the other side of the middle of
/// two numbers.
fn assert_rounded(tensor: &str, sums: &[f64], values: &[f32]) {
    for (sum, value) in sums.iter().zip(values) {
        let unit = f64::from(bf16::EPSILON.to_f32()) * sum.abs();
        assert!((f64::from(*value) - sum).abs() <= 0.5001 * unit + 1e-9, "{tensor}: {value}, not {sum}");
    }
}

/// Holds the weights that an adapter changes in a merged file to their sums, and all others to what they were;
/// the names of the former.
fn changed(before: &Path, after: &Path, adapter: &Path, scale: f64, is_transposed: bool) -> Vec<String> {
    let [before, after, matrices] = [before, after, &adapter.join("adapter_model.safetensors")].map(tensors);
    let mut changed = Vec::new();
    for (tensor, (shape, values)) in after {
        assert_eq!(before[&tensor].0, shape);
        let module = tensor.strip_suffix(".weight").unwrap_or(&tensor);
        let matrix = |name: &str| matrices.get(&format!("base_model.model.{module}.{name}.weight"));
        let (Some(a), Some(b)) = (matrix("lora_A"), matrix("lora_B")) else {
            assert_eq!(before[&tensor].1, values, "{tensor}");
            continue;
        };
        assert_rounded(&tensor, &expected(&before[&tensor].1, [a, b], scale, is_transposed), &values);
        changed.push(tensor);
    }
    changed
}

#[test]
fn merged_weights_are_the_sums_rounded_once_and_all_else_is_copied() {
    let folder = tempfile::tempdir().unwrap();
    let made = folder.path().join("made");
    let width =
        tensors(&base("gpt2").join("model.safetensors"))["transformer.h.0.attn.c_attn.weight"].0.clone();
    make_adapter(&made, &[("transformer.h.0.attn.c_attn", width[0], width[1])]);
    let config: Value =
        serde_json::from_slice(&fs::read(adapter("phi3-fused").join("adapter_config.json")).unwrap())
            .unwrap();
    assert!(config["rank_pattern"].as_object().unwrap().is_empty() && config["use_rslora"] == false);
    let scale = config["lora_alpha"].as_f64().unwrap() / config["r"].as_f64().unwrap();
    for (name, adapter, scale) in [("phi3", adapter("phi3-fused"), scale), ("gpt2", made, 1.5)] {
        let (from, out) = (base(name), folder.path().join(name));
        let checkpoint = Checkpoint::open(&from).unwrap();
        let options = MergeOptions::default().with_write(WriteOptions::default().with_threads(3));
        let merged = merge(&checkpoint, &*adapter, &out, &options).unwrap();
        let [before, after] = [&from, &out].map(|folder| folder.join("model.safetensors"));
        let changed = changed(&before, &after, &adapter, scale, name == "gpt2");
        assert_eq!((merged.tensors, merged.files, merged.resumed), (changed, 1, 0));
        assert_eq!(fs::read(from.join("config.json")).unwrap(), fs::read(out.join("config.json")).unwrap());
        assert_eq!(Checkpoint::open(&out).unwrap().decoder().unwrap(), checkpoint.decoder().unwrap());
    }
}

/// All values of a checkpoint in float32, by the names of their modules.
fn values(folder: &Path, element: mlxcel_models::ElementType) -> BTreeMap<String, Vec<f32>> {
    let checkpoint = Checkpoint::open(folder).unwrap();
    let decoder = checkpoint.decoder().unwrap();
    let value = |weight: &mlxcel_models::WeightRef| {
        let bytes = checkpoint.expanded_weight(weight, element).unwrap();
        let float = Float::of(element).unwrap();
        let mut values = vec![0.0; bytes.len() / float.bytes()];
        float.read(&bytes, &mut values);
        (weight.tensor.clone(), values)
    };
    decoder.weights().map(value).collect()
}

#[test]
fn packed_weights_are_merged_as_floats_or_packed_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let packing = QuantizeOptions::new(4, 32);
    quantize(&Checkpoint::open(base("llama")).unwrap(), path("packed"), &packing).unwrap();
    let packed = Checkpoint::open(path("packed")).unwrap();
    let merge = |name: &str, weights: MergedWeights| {
        let options = MergeOptions::default().with_weights(weights);
        merge(&packed, adapter("llama-all"), path(name), &options).unwrap()
    };
    let merged = merge("floats", MergedWeights::Unpacked);
    assert_eq!(merged.tensors.len(), 21);
    // The same as unpacking first.
    let exact = mlxcel_models::ElementType::BF16;
    let [before, after] = ["packed", "floats"].map(|name| values(&path(name), exact));
    let changes = tensors(&adapter("llama-all").join("adapter_model.safetensors"));
    assert_eq!(before.keys().collect::<Vec<_>>(), after.keys().collect::<Vec<_>>());
    let config: Value =
        serde_json::from_slice(&fs::read(path("floats").join("config.json")).unwrap()).unwrap();
    assert!(config.get("quantization").is_none() && config.get("quantization_config").is_none());
    for (tensor, values) in &before {
        let module = tensor.strip_suffix(".weight").unwrap();
        let is_changed = changes.contains_key(&format!("base_model.model.{module}.lora_A.weight"));
        assert_eq!(values != &after[tensor], is_changed, "{tensor}");
    }
    // Sums of unpacked values that are not rounded in between: those of a float32 copy.
    merge("again", MergedWeights::Packed(packing.clone()));
    let direct = values(&path("again"), mlxcel_models::ElementType::F32);
    let mut largest = 0f32;
    for (tensor, sums) in values(&path("floats"), mlxcel_models::ElementType::F32) {
        let step = sums.iter().fold(0f32, |most, value| most.max(value.abs())) / 7.0;
        for (sum, packed) in sums.iter().zip(&direct[&tensor]) {
            largest = largest.max((sum - packed).abs() / step);
        }
    }
    assert!(largest > 0.0 && largest < 0.75, "{largest} steps of a packing of 4 bits");
    // What is stacked cannot be changed while it is packed.
    let experts = path("experts");
    make_adapter(&experts, &[("model.layers.0.mlp.experts.0.gate_proj", 64, 48)]);
    quantize(&Checkpoint::open(base("qwen3_moe")).unwrap(), path("moe"), &packing).unwrap();
    let moe = Checkpoint::open(path("moe")).unwrap();
    let options = MergeOptions::default().with_weights(MergedWeights::Unpacked);
    let error = mlxcel_quantize::merge(&moe, experts, path("no"), &options).unwrap_err();
    assert!([ErrorKind::Unsupported, ErrorKind::InvalidInput].contains(&error.kind()), "{error}");
}

#[test]
fn matrices_of_experts_that_are_stored_apart_are_merged() {
    let folder = tempfile::tempdir().unwrap();
    let (made, out) = (folder.path().join("made"), folder.path().join("out"));
    let module = "model.layers.0.mlp.experts.3.down_proj";
    make_adapter(&made, &[(module, 48, 64)]);
    let checkpoint = Checkpoint::open(base("qwen3_moe")).unwrap();
    let merged = merge(&checkpoint, &*made, &out, &MergeOptions::default()).unwrap();
    assert_eq!(merged.tensors, [format!("{module}.weight")]);
    let [before, after] = [&base("qwen3_moe"), &out].map(|folder| folder.join("model.safetensors"));
    assert_eq!(changed(&before, &after, &made, 1.5, false), merged.tensors);
}

#[test]
fn shards_stay_shards_and_interrupted_work_is_resumed() {
    let folder = tempfile::tempdir().unwrap();
    let [made, other, out] = ["made", "other", "out"].map(|name| folder.path().join(name));
    // In the first of four files, and in the last one.
    let modules = [("model.layers.0.mlp.gate_proj", 64, 128), ("model.layers.2.mlp.down_proj", 128, 64)];
    make_adapter(&made, &modules);
    make_adapter(&other, &modules[..1]);
    let from = base("olmo2");
    let checkpoint = Checkpoint::open(&from).unwrap();
    let files = [1, 2, 3, 4].map(|number| format!("model-0000{number}-of-00004.safetensors"));
    let cancel = CancelToken::new();
    let (token, first) = (cancel.clone(), fs::metadata(from.join(&files[0])).unwrap().len());
    let write = WriteOptions::default().with_cancel(cancel).with_progress(move |done, _| {
        if done > first {
            token.cancel();
        }
    });
    let stopped = MergeOptions::default().with_write(write);
    let error = merge(&checkpoint, &*made, &out, &stopped).unwrap_err();
    assert_eq!((error.kind(), out.exists()), (ErrorKind::Cancelled, false));
    // With another adapter what is there is of no use.
    let error = merge(&checkpoint, &*other, &out, &MergeOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    let merged = merge(&checkpoint, &*made, &out, &MergeOptions::default()).unwrap();
    assert_eq!((merged.files, merged.resumed), (4, 1));
    let index = |folder: &Path| fs::read(folder.join("model.safetensors.index.json")).unwrap();
    assert_eq!(index(&out), index(&from));
    let changed = files.map(|file| changed(&from.join(&file), &out.join(&file), &made, 1.5, false));
    assert_eq!(changed.concat(), merged.tensors);
    assert!(!changed[0].is_empty() && !changed[3].is_empty(), "{changed:?}");
}

#[test]
fn what_cannot_be_merged_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let refused = |from: &Path, adapter: &Path| {
        let checkpoint = Checkpoint::open(from).unwrap();
        let error = merge(&checkpoint, adapter, &out, &MergeOptions::default()).unwrap_err();
        assert!(!out.exists(), "{error}");
        error
    };
    let packed = folder.path().join("packed");
    quantize(&Checkpoint::open(base("llama")).unwrap(), &packed, &QuantizeOptions::new(8, 32)).unwrap();
    let error = refused(&packed, &adapter("llama-attention"));
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.context("tensor").unwrap().starts_with("model.layers.0.self_attn."), "{error}");
    let other = refused(&base("mistral"), &adapter("phi3-fused"));
    assert_eq!(other.kind(), ErrorKind::InvalidInput);
    let tied = folder.path().join("tied");
    make_adapter(&tied, &[("lm_head", 64, 256)]);
    let error = refused(&base("llama"), &tied);
    assert_eq!((error.kind(), error.context("tensor")), (ErrorKind::Unsupported, Some("lm_head")));
    let gguf = refused(&fixtures().join("formats/gguf-llama-q8_0"), &adapter("llama-attention"));
    assert_eq!((gguf.kind(), gguf.context("field")), (ErrorKind::Unsupported, Some("model")));
    // A value beyond what the weight's type holds.
    let huge = folder.path().join("huge");
    fs::create_dir(&huge).unwrap();
    let file = fs::read(adapter("llama-attention").join("adapter_model.safetensors")).unwrap();
    let length = u64::from_le_bytes(*file.first_chunk::<8>().unwrap()) as usize;
    let mut large = file.clone();
    for value in large[8 + length..].as_chunks_mut::<4>().0 {
        *value = 1e19f32.to_le_bytes();
    }
    fs::write(huge.join("adapter_model.safetensors"), large).unwrap();
    fs::copy(adapter("llama-attention").join("adapter_config.json"), huge.join("adapter_config.json"))
        .unwrap();
    let error = refused(&base("llama"), &huge);
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.context("tensor").is_some() && Float::of(mlxcel_models::ElementType::BF16).is_some());
    let threads = MergeOptions::default().with_write(WriteOptions::default().with_threads(0));
    let checkpoint = Checkpoint::open(base("llama")).unwrap();
    let error = merge(&checkpoint, adapter("llama-all"), &out, &threads).unwrap_err();
    assert_eq!((error.kind(), error.context("field")), (ErrorKind::InvalidInput, Some("threads")));
}
