//! A random checkpoint: settings of a family, tensors for them, and perhaps a packing.

use std::fs;
use std::path::{Path, PathBuf};

use mlxcel_core::Error;
use serde_json::{Map, Value, json};

use super::draw::{Draft, Random};
use super::families::FAMILIES;
use super::packings::Packing;
use super::weights::{FLOATS, Tensors, expected, fill, floats, write};

/// A checkpoint in a folder.
pub(crate) struct RandomCheckpoint {
    /// What it is packed by, as counts name it.
    pub(crate) packing: &'static str,
    pub(crate) path: PathBuf,
    /// The choices that are left, for texts.
    pub(crate) random: Random,
    pub(crate) vocabulary: usize,
    pub(crate) context: usize,
}

/// The family of checkpoint `number`, of those whose names contain `wanted`.
pub(crate) fn family(number: u64, wanted: &str) -> &'static str {
    let names: Vec<_> = FAMILIES.iter().map(|(name, _)| *name).filter(|name| name.contains(wanted)).collect();
    names[number as usize % names.len()]
}

/// Models whose text part is one of a family, with what precedes the names of its modules.
const WRAPPERS: [(&str, &str); 14] = [
    ("aya_vision", "cohere2"),
    ("exaone4_5", "exaone4"),
    ("gemma3", "gemma3_text"),
    ("gemma3n", "gemma3n_text"),
    ("gemma4", "gemma4_text"),
    ("gemma4_unified", "gemma4_unified_text"),
    ("hyperclovax_vision_v2", "hyperclovax"),
    ("internvl", "qwen2"),
    ("lfm3_vl", "lfm3"),
    ("lighton_ocr", "qwen3"),
    ("llava", "llama"),
    ("mistral3", "ministral3"),
    ("qwen3_5", "qwen3_5_text"),
    ("qwen3_5_moe", "qwen3_5_moe_text"),
];

/// Draws and writes a checkpoint into `folder`, which is empty.
///
/// # Errors
///
/// The refusal of its settings or its packing.
pub(crate) fn make(
    mut random: Random,
    family: &'static str,
    folder: &Path,
) -> Result<RandomCheckpoint, Error> {
    let packable = random.one_in(2);
    let mut draft = Draft { random, config: Map::new(), packable, markers: Vec::new() };
    draft.set("model_type", family);
    let (_, settings) = FAMILIES.iter().find(|(name, _)| *name == family).unwrap();
    settings(&mut draft);
    draft.set("eos_token_id", 1);
    draft.one("pad_token_id", &[json!(2), Value::Null]);
    let shapes = expected(&draft, folder)?;

    let Draft { mut random, mut config, .. } = draft;
    let stored = random.pick(&FLOATS);
    let mixed = random.one_in(8);
    let named = json!({"F32": "float32", "BF16": "bfloat16", "F16": "float16"});
    config.insert(random.pick(&["dtype", "torch_dtype"]).to_owned(), named[stored].clone());
    let mut tensors = fill(&mut random, &shapes, |random| if mixed { random.pick(&FLOATS) } else { stored });
    if mixed {
        unify_stacks(&mut tensors, stored);
    }
    let number = |keys: [&str; 2]| keys.iter().find_map(|key| config.get(*key)).and_then(Value::as_u64);
    let vocabulary = number(["vocab_size", ""]).unwrap() as usize;
    let context = number(["max_position_embeddings", "n_positions"]).unwrap_or(512) as usize;
    let config = vary_names(&mut random, family, config, &mut tensors);
    let shards = if random.one_in(3) { 1 + random.below(3) } else { 1 };
    let dense = folder.join("dense");
    write(&dense, &config, &tensors, shards);
    let (mut packing, mut path) = ("dense", dense);
    if packable {
        let chosen = Packing::draw(&mut random, family);
        let to = folder.join("packed");
        if chosen.write(&mut random, (&config, &tensors, &path), &to)? {
            (packing, path) = (chosen.name(), to);
        }
    }
    let _ = fs::remove_file(folder.join("model.safetensors"));
    Ok(RandomCheckpoint { packing, path, random, vocabulary, context })
}

/// Experts are stored alike.
fn unify_stacks(tensors: &mut Tensors, dtype: &'static str) {
    for (name, tensor) in
        tensors.iter_mut().filter(|(name, _)| name.contains(".experts.") || name.contains(".norms."))
    {
        let count = tensor.shape.iter().product::<usize>();
        let values: Vec<f32> =
            (0..count).map(|index| ((index * 7 + name.len()) % 13) as f32 * 0.02 - 0.12).collect();
        *tensor = floats(dtype, &tensor.shape, &values);
    }
}

/// Other names and arrangements that mean the same, and a head of its own where the settings tie it.
fn vary_names(
    random: &mut Random,
    family: &str,
    mut config: Map<String, Value>,
    tensors: &mut Tensors,
) -> Map<String, Value> {
    // mlx-lm keeps the taps of convolutions in front.
    if random.one_in(3) {
        for (_, tensor) in tensors.iter_mut().filter(|(name, _)| name.contains("conv")) {
            if let [channels, 1, taps] = tensor.shape[..] {
                tensor.shape = vec![channels, taps, 1];
            }
        }
    }
    let is_tied = !tensors.contains_key("lm_head.weight");
    if is_tied && random.one_in(6) && tensors.contains_key("model.embed_tokens.weight") {
        let table = &tensors["model.embed_tokens.weight"];
        let shape = [("lm_head.weight".to_owned(), table.shape.clone())].into();
        let dtype = table.dtype;
        tensors.extend(fill(random, &shape, |_| dtype));
    } else if is_tied && random.one_in(6) {
        rename(tensors, |name| name.strip_prefix("model.").unwrap_or(name).to_owned());
    }
    if let Some((wrapper, _)) = WRAPPERS.iter().find(|(_, text)| *text == family)
        && random.one_in(6)
        && tensors.contains_key("model.embed_tokens.weight")
    {
        let prefix = random.pick(&["model.language_model.", "language_model.model."]);
        let head = if prefix.starts_with("model") { "" } else { "language_model." };
        rename(tensors, |name| match name.strip_prefix("model.") {
            Some(inner) => format!("{prefix}{inner}"),
            None => format!("{head}{name}"),
        });
        let inner = std::mem::take(&mut config);
        config.insert("model_type".to_owned(), (*wrapper).into());
        config.insert("text_config".to_owned(), inner.into());
        config.insert("vision_config".to_owned(), json!({}));
    }
    config
}

fn rename(tensors: &mut Tensors, to: impl Fn(&str) -> String) {
    *tensors = std::mem::take(tensors).into_iter().map(|(name, tensor)| (to(&name), tensor)).collect();
}
