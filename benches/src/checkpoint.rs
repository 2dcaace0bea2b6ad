//! Checkpoints with the shapes of published models and random weights: speed depends on shapes and types, not on values.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde_json::{Map, Value, json};

/// The shapes of a model of the llama family with tied embeddings.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shapes {
    pub(crate) name: &'static str,
    hidden: usize,
    intermediate: usize,
    layers: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    vocabulary: usize,
}

/// Those of Llama-3.2-1B.
pub(crate) const LLAMA_1B: Shapes = Shapes {
    name: "llama-3.2-1b",
    hidden: 2048,
    intermediate: 8192,
    layers: 16,
    heads: 32,
    kv_heads: 8,
    head_dim: 64,
    vocabulary: 128_256,
};

/// A model to try the program with.
pub(crate) const SMALL: Shapes = Shapes {
    name: "small",
    hidden: 256,
    intermediate: 512,
    layers: 2,
    heads: 4,
    kv_heads: 2,
    head_dim: 64,
    vocabulary: 2048,
};

impl Shapes {
    /// Each tensor's name and shape, in the order of the file.
    fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        let (hidden, wide) = (self.hidden, self.intermediate);
        let (q, kv) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let mut tensors = vec![
            ("model.embed_tokens.weight".to_owned(), vec![self.vocabulary, hidden]),
            ("model.norm.weight".to_owned(), vec![hidden]),
        ];
        for layer in 0..self.layers {
            for (name, shape) in [
                ("self_attn.q_proj", vec![q, hidden]),
                ("self_attn.k_proj", vec![kv, hidden]),
                ("self_attn.v_proj", vec![kv, hidden]),
                ("self_attn.o_proj", vec![hidden, q]),
                ("mlp.gate_proj", vec![wide, hidden]),
                ("mlp.up_proj", vec![wide, hidden]),
                ("mlp.down_proj", vec![hidden, wide]),
                ("input_layernorm", vec![hidden]),
                ("post_attention_layernorm", vec![hidden]),
            ] {
                tensors.push((format!("model.layers.{layer}.{name}.weight"), shape));
            }
        }
        tensors
    }

    /// The number of parameters. Decoding a token reads each once.
    pub(crate) fn parameters(&self) -> usize {
        self.tensors().iter().map(|(_, shape)| shape.iter().product::<usize>()).sum()
    }

    fn config(&self) -> Value {
        json!({
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "vocab_size": self.vocabulary,
            "max_position_embeddings": 131_072,
            "rms_norm_eps": 1e-5,
            "rope_theta": 500_000.0,
            "rope_scaling": {
                "factor": 32.0,
                "high_freq_factor": 4.0,
                "low_freq_factor": 1.0,
                "original_max_position_embeddings": 8192,
                "rope_type": "llama3",
            },
            "tie_word_embeddings": true,
            "torch_dtype": "bfloat16",
            "bos_token_id": 1,
            "eos_token_id": [2],
            "hidden_act": "silu",
            "attention_bias": false,
            "mlp_bias": false,
        })
    }

    /// The checkpoint's folder below `parent`, made where it is not there yet: bfloat16, values between -0.035 and 0.035 (a
    /// standard deviation of 0.02), norms of ones.
    pub(crate) fn provide(&self, parent: &Path) -> Result<PathBuf> {
        let folder = parent.join(self.name);
        if folder.join("model.safetensors").is_file() {
            return Ok(folder);
        }
        eprintln!("writing {} ({:.2} GB)", folder.display(), 2e-9 * self.parameters() as f64);
        fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
        fs::write(folder.join("config.json"), self.config().to_string()).context("writing config.json")?;
        // Under its name only once it is whole.
        let incoming = folder.join("incoming");
        self.write(&incoming).with_context(|| format!("writing {}", incoming.display()))?;
        fs::rename(&incoming, folder.join("model.safetensors")).context("naming the weights")?;
        Ok(folder)
    }

    fn write(&self, path: &Path) -> Result<()> {
        let mut header = Map::from_iter([("__metadata__".to_owned(), json!({"format": "pt"}))]);
        let mut at = 0;
        for (name, shape) in self.tensors() {
            let end = at + 2 * shape.iter().product::<usize>();
            header.insert(name, json!({"dtype": "BF16", "shape": shape, "data_offsets": [at, end]}));
            at = end;
        }
        let mut text = Value::Object(header).to_string();
        text.extend(std::iter::repeat_n(' ', text.len().next_multiple_of(64) - text.len()));

        let mut file = BufWriter::new(File::create(path)?);
        file.write_all(&(text.len() as u64).to_le_bytes())?;
        file.write_all(text.as_bytes())?;
        let values = random_values();
        let mut random = ChaCha8Rng::seed_from_u64(0);
        let (mut indices, mut block) = (vec![0; 1 << 16], Vec::with_capacity(1 << 17));
        for (_, shape) in self.tensors() {
            let mut left: usize = shape.iter().product();
            while left > 0 {
                let count = left.min(indices.len());
                block.clear();
                if shape.len() == 1 {
                    block.extend(std::iter::repeat_n(bfloat16(1.0), count).flatten());
                } else {
                    random.fill_bytes(&mut indices[..count]);
                    block.extend(indices[..count].iter().flat_map(|&index| values[usize::from(index)]));
                }
                file.write_all(&block)?;
                left -= count;
            }
        }
        file.into_inner().map_err(|error| error.into_error())?.sync_all()?;
        Ok(())
    }
}

/// 256 values, evenly spread.
fn random_values() -> [[u8; 2]; 256] {
    std::array::from_fn(|i| bfloat16((i as f32 - 127.5) / 127.5 * 0.02 * 3f32.sqrt()))
}

/// The upper half of a float's bits.
fn bfloat16(value: f32) -> [u8; 2] {
    ((value.to_bits() >> 16) as u16).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn llama_has_its_number_of_parameters() {
        assert_eq!(LLAMA_1B.parameters(), 1_235_814_400);
    }

    #[test]
    fn a_checkpoint_opens_and_is_made_once() {
        let parent = tempfile::tempdir().unwrap();
        let folder = SMALL.provide(parent.path()).unwrap();
        let checkpoint = mlxcel_models::Checkpoint::open(&folder).unwrap();
        assert_eq!(checkpoint.decoder().unwrap().parameters(), SMALL.parameters() as u64);
        let written = || fs::metadata(folder.join("model.safetensors")).unwrap().modified().unwrap();
        let before = written();
        SMALL.provide(parent.path()).unwrap();
        assert_eq!(written(), before);
    }
}
