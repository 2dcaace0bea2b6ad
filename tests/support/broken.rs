//! Checkpoints of which nothing can be computed.

use std::fs;
use std::path::Path;

/// Writes a copy of a checkpoint in which a factor of the last norm, a number of 16 bits, is none.
pub(crate) fn break_weights(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    fs::copy(from.join("config.json"), to.join("config.json")).unwrap();
    let mut file = fs::read(from.join("model.safetensors")).unwrap();
    let length = u64::from_le_bytes(*file.first_chunk::<8>().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&file[8..8 + length]).unwrap();
    let norms = ["model.norm.weight", "model.embedding_norm.weight", "backbone.norm_f.weight"];
    let norm = norms.into_iter().find_map(|name| header.get(name)).unwrap();
    let at = 8 + length + norm["data_offsets"][0].as_u64().unwrap() as usize;
    file[at..at + 2].copy_from_slice(&0x7fffu16.to_le_bytes());
    fs::write(to.join("model.safetensors"), file).unwrap();
}
