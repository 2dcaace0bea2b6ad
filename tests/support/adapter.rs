//! An adapter for tests.

use std::fs;
use std::path::Path;

use serde_json::{Map, json};

/// Writes an adapter of PEFT's, with a scale of 1.5, for modules of a width of inputs and one of outputs: its
/// numbers are pseudorandom ones of this seed, at most `distance` from zero.
pub(crate) fn write_adapter(
    folder: &Path,
    modules: &[(&str, usize, usize)],
    rank: usize,
    distance: f32,
    seed: u64,
) {
    let (mut random, mut header, mut bytes) = (seed, Map::new(), Vec::new());
    for &(module, inputs, outputs) in modules {
        for (name, shape) in [("lora_A", [rank, inputs]), ("lora_B", [outputs, rank])] {
            let start = bytes.len();
            for _ in 0..shape[0] * shape[1] {
                random =
                    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let number = ((random >> 40) as f32 / (1 << 23) as f32 - 1.0) * distance;
                bytes.extend_from_slice(&number.to_le_bytes());
            }
            let entry = json!({ "dtype": "F32", "shape": shape, "data_offsets": [start, bytes.len()] });
            header.insert(format!("base_model.model.{module}.{name}.weight"), entry);
        }
    }
    let header = serde_json::to_vec(&header).unwrap();
    let file = [&(header.len() as u64).to_le_bytes()[..], &header, &bytes].concat();
    fs::create_dir_all(folder).unwrap();
    fs::write(folder.join("adapter_model.safetensors"), file).unwrap();
    let names: Vec<_> = modules.iter().map(|(module, ..)| module.rsplit('.').next().unwrap()).collect();
    let alpha = 1.5 * rank as f32;
    let config = json!({ "peft_type": "LORA", "r": rank, "lora_alpha": alpha, "target_modules": names });
    fs::write(folder.join("adapter_config.json"), config.to_string()).unwrap();
}
