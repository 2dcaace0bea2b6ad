//! Tensors: their names and shapes are those that a family asks for; their values are random.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use half::{bf16, f16};
use mlxcel_core::{Error, ErrorKind};
use mlxcel_models::{Checkpoint, Decoder};
use serde_json::{Map, Value, json};

use super::draw::{Draft, Random};

/// A tensor: its type as safetensors files name it, its shape and its bytes.
#[derive(Clone)]
pub(crate) struct Tensor {
    pub(crate) dtype: &'static str,
    pub(crate) shape: Vec<usize>,
    pub(crate) bytes: Vec<u8>,
}

pub(crate) type Tensors = BTreeMap<String, Tensor>;
pub(crate) type Shapes = BTreeMap<String, Vec<usize>>;

/// The types that values are stored in.
pub(crate) const FLOATS: [&str; 3] = ["F32", "BF16", "F16"];

/// The tensors that the family of a draft reads, found by asking: a checkpoint without tensors lacks one, one
/// of another shape is refused with the expected one.
///
/// # Errors
///
/// The refusal of the settings.
pub(crate) fn expected(draft: &Draft, folder: &Path) -> Result<Shapes, Error> {
    fs::write(folder.join("config.json"), json!(draft.config).to_string()).unwrap();
    let mut shapes = Shapes::new();
    // A scalar is no tensor of any model, so what it stands for is read only if its shape is asked for.
    for marker in &draft.markers {
        shapes.extend((0..layers(draft)).map(|layer| (marker.replace('#', &layer.to_string()), Vec::new())));
    }
    // A family asks for each tensor twice at most; none has so many.
    for _ in 0..10_000 {
        let error = match describe(folder, &shapes) {
            Ok(decoder) => {
                let read: BTreeSet<_> = decoder.weights().flat_map(names).collect();
                shapes.retain(|name, _| read.contains(name));
                return Ok(shapes);
            }
            Err(error) => error,
        };
        let (Some(name), expected) = (error.context("tensor").map(str::to_owned), error.context("expected"))
        else {
            return Err(error);
        };
        match (error.kind(), expected) {
            (ErrorKind::NotFound, _) => add(&mut shapes, name),
            (ErrorKind::Corrupt, Some(shape)) => {
                shapes.insert(name, serde_json::from_str(shape).unwrap());
            }
            _ => return Err(error),
        }
    }
    panic!("{} asks for tensors without end", draft.config["model_type"]);
}

/// The description of a folder with tensors of these shapes.
fn describe(folder: &Path, shapes: &Shapes) -> Result<Decoder, Error> {
    let mut end = 0;
    let mut header = Map::new();
    for (name, shape) in shapes {
        let begin = end;
        end += 4 * shape.iter().product::<usize>();
        header.insert(name.clone(), json!({"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}));
    }
    let header = Value::from(header).to_string();
    let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat();
    let path = folder.join("model.safetensors");
    fs::write(&path, &file).unwrap();
    fs::File::options().write(true).open(&path).unwrap().set_len((file.len() + end) as u64).unwrap();
    Checkpoint::open(folder)?.decoder()
}

/// The tensors that a weight is read from.
fn names(weight: &mlxcel_models::WeightRef) -> Vec<String> {
    let of = |weight: &mlxcel_models::WeightRef| weight.names().map(str::to_owned).collect::<Vec<_>>();
    weight.tensors().flat_map(of).collect()
}

/// Adds a missing tensor. If an earlier layer or expert has one of that name, it and all others of the later
/// one are taken to have the same shapes, which saves most questions.
fn add(shapes: &mut Shapes, name: String) {
    let parts: Vec<_> = name.split('.').collect();
    for at in (0..parts.len()).rev() {
        let Some(before) = parts[at].parse::<usize>().ok().and_then(|index| index.checked_sub(1)) else {
            continue;
        };
        let (outer, inner) = (parts[..at].join("."), parts[at + 1..].join("."));
        if !shapes.contains_key(&format!("{outer}.{before}.{inner}")) {
            continue;
        }
        let (from, to) = (format!("{outer}.{before}."), format!("{outer}.{}.", before + 1));
        let alike = shapes.range(from.clone()..).take_while(|(name, _)| name.starts_with(&from));
        let alike: Vec<_> =
            alike.map(|(name, shape)| (name.replacen(&from, &to, 1), shape.clone())).collect();
        alike.into_iter().for_each(|(name, shape)| {
            shapes.entry(name).or_insert(shape);
        });
        return;
    }
    shapes.insert(name, Vec::new());
}

fn layers(draft: &Draft) -> usize {
    let layers = ["num_hidden_layers", "n_layer"].into_iter().find_map(|key| draft.config.get(key));
    layers.and_then(Value::as_u64).unwrap() as usize
}

/// Random values for tensors, each stored in the type that `dtype` gives it.
pub(crate) fn fill(
    random: &mut Random,
    shapes: &Shapes,
    mut dtype: impl FnMut(&mut Random) -> &'static str,
) -> Tensors {
    let filled = shapes.iter().map(|(name, shape)| {
        let values = values(random, name, shape);
        (name.clone(), floats(dtype(random), shape, &values))
    });
    filled.collect()
}

/// A tensor of these values.
pub(crate) fn floats(dtype: &'static str, shape: &[usize], values: &[f32]) -> Tensor {
    let bytes = match dtype {
        "F32" => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        "BF16" => values.iter().flat_map(|value| bf16::from_f32(*value).to_le_bytes()).collect(),
        "F16" => values.iter().flat_map(|value| f16::from_f32(*value).to_le_bytes()).collect(),
        other => panic!("{other}"),
    };
    Tensor { dtype, shape: shape.to_vec(), bytes }
}

/// Values with which activations keep their magnitude: factors around one, and matrices whose products are
/// about as large as their input.
fn values(random: &mut Random, name: &str, shape: &[usize]) -> Vec<f32> {
    let count = shape.iter().product();
    let (middle, most) = match shape {
        _ if name.ends_with("A_log") => (0.5, 1.0),
        _ if name.contains("norm") && name.ends_with("weight") => (1.0, 0.4),
        [_] if name.contains("ln_") && name.ends_with("weight") => (1.0, 0.4),
        [] | [_] => (0.0, 0.4),
        // Routers tell experts clearly apart.
        [.., inputs] if name.contains("gate.weight") || name.contains("router") => {
            (0.0, 4.0 / (*inputs as f32).sqrt())
        }
        _ if name.contains("embed") || name.contains("wte") => (0.0, 1.7),
        [.., inputs] => (0.0, 1.7 / (*inputs as f32).sqrt()),
    };
    (0..count).map(|_| middle + random.float(most)).collect()
}

/// Writes settings and weights: one file, or several if `shards` is more than one.
pub(crate) fn write(folder: &Path, config: &Map<String, Value>, tensors: &Tensors, shards: usize) {
    fs::create_dir_all(folder).unwrap();
    fs::write(folder.join("config.json"), format!("{:#}", json!(config))).unwrap();
    let single = folder.join("model.safetensors");
    if shards < 2 {
        fs::write(single, file(tensors.iter())).unwrap();
        return;
    }
    let _ = fs::remove_file(single);
    let mut map = Map::new();
    for shard in 0..shards {
        let name = format!("model-{:05}-of-{shards:05}.safetensors", shard + 1);
        let own = || {
            tensors.iter().enumerate().filter(|(index, _)| index % shards == shard).map(|(_, tensor)| tensor)
        };
        map.extend(own().map(|(tensor, _)| (tensor.clone(), name.clone().into())));
        fs::write(folder.join(name), file(own())).unwrap();
    }
    let index = json!({"metadata": {"total_size": 0}, "weight_map": map});
    fs::write(folder.join("model.safetensors.index.json"), index.to_string()).unwrap();
}

/// The content of a safetensors file.
fn file<'a>(tensors: impl Iterator<Item = (&'a String, &'a Tensor)> + Clone) -> Vec<u8> {
    let mut end = 0;
    let entry = |(name, tensor): (&String, &Tensor)| {
        let begin = end;
        end += tensor.bytes.len();
        let entry = json!({"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [begin, end]});
        (name.clone(), entry)
    };
    let mut header = json!({"__metadata__": {"format": "pt"}});
    header.as_object_mut().unwrap().extend(tensors.clone().map(entry));
    let header = header.to_string();
    let mut file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat();
    tensors.for_each(|(_, tensor)| file.extend(&tensor.bytes));
    file
}
