//! candle on request, for `mlxcel-benches`: the llama of candle-transformers on the same safetensors.
//!
//! ```text
//! RAYON_NUM_THREADS=2 mlxcel-bench-candle FOLDER TYPE       (TYPE: f32, bf16)
//! ```
//!
//! Says in a line of JSON what it is and how long loading took, then reads a request a line and answers each
//! with a line:
//!
//! ```text
//! prefill TOKENS                          a prompt of as many tokens, until the token after it is known
//! decode COUNT POSITION...                COUNT tokens of a sequence that has POSITION tokens, for each position, in order
//! batch COUNT POSITION SEQUENCES...       COUNT tokens of each of so many sequences with POSITION tokens, for each number
//! logits TOKENS FILE                      writes the logits after a prompt, as float32
//! ```
#![deny(clippy::undocumented_unsafe_blocks)]

use std::io::{BufRead, Write};
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use candle_core::{D, DType, Device, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::llama::{Cache, Config, Llama, LlamaConfig};
use serde_json::{Value, json};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, kind] = arguments.as_slice() else {
        bail!("usage: mlxcel-bench-candle FOLDER TYPE");
    };
    let dtype = match kind.as_str() {
        "f32" => DType::F32,
        "bf16" => DType::BF16,
        _ => bail!("computes in f32 or bf16, not in {kind}"),
    };
    let start = Instant::now();
    let model = Model::load(Path::new(folder), dtype)?;
    answer(&json!({
        "versions": [["candle", "0.11.0"]],
        "load_seconds": start.elapsed().as_secs_f64(),
        "notes": format!("{} threads", candle_core::utils::get_num_threads()),
    }))?;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split_whitespace().collect();
        answer(&match words.as_slice() {
            ["prefill", tokens] => {
                let mut one = Sequences::new(&model, 1)?;
                let start = Instant::now();
                one.feed(tokens.parse()?)?;
                json!({"seconds": start.elapsed().as_secs_f64()})
            }
            ["decode", count, positions @ ..] => {
                let mut one = Sequences::new(&model, 1)?;
                let mut seconds = Vec::new();
                for position in positions {
                    one.feed(position.parse()?)?;
                    seconds.push(one.decode(count.parse()?)?);
                }
                json!({"seconds": seconds})
            }
            ["batch", count, position, numbers @ ..] => {
                // All sequences of a pass stand at one position here, so each number has a cache of its own.
                let mut seconds = Vec::new();
                for number in numbers {
                    let mut many = Sequences::new(&model, number.parse()?)?;
                    many.feed(position.parse()?)?;
                    seconds.push(many.decode(count.parse()?)?);
                }
                json!({"seconds": seconds})
            }
            ["logits", tokens, ..] => {
                let file = line.splitn(3, ' ').nth(2).context("into which file?")?;
                let mut one = Sequences::new(&model, 1)?;
                let start = Instant::now();
                let logits = one.feed(tokens.parse()?)?;
                let seconds = start.elapsed().as_secs_f64();
                let bytes: Vec<u8> =
                    logits.flatten_all()?.to_vec1::<f32>()?.into_iter().flat_map(f32::to_le_bytes).collect();
                std::fs::write(file, bytes).with_context(|| format!("writing {file}"))?;
                json!({"seconds": seconds})
            }
            _ => bail!("an unknown request: {line}"),
        })?;
    }
    Ok(())
}

fn answer(value: &Value) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{value}")?;
    Ok(out.flush()?)
}

/// The model, and what its caches are made by.
struct Model {
    llama: Llama,
    config: Config,
    dtype: DType,
}

impl Model {
    fn load(folder: &Path, dtype: DType) -> Result<Self> {
        let text = std::fs::read(folder.join("config.json")).context("reading config.json")?;
        let described: Value = serde_json::from_slice(&text)?;
        let config: LlamaConfig = serde_json::from_slice(&text).context("reading config.json")?;
        let heads = config.num_attention_heads;
        if described["head_dim"].as_u64().is_some_and(|size| size as usize * heads != config.hidden_size) {
            bail!("candle's llama has heads of the hidden size over their number, and these have not");
        }
        let config = config.into_config(false);
        let weights = folder.join("model.safetensors");
        // SAFETY: the file is not written to while it is measured.
        let weights = unsafe { VarBuilder::from_mmaped_safetensors(&[weights], dtype, &Device::Cpu)? };
        Ok(Self { llama: Llama::load(weights, &config)?, config, dtype })
    }
}

/// Sequences that are fed alike and computed together.
struct Sequences<'a> {
    model: &'a Model,
    cache: Cache,
    sequences: usize,
    length: usize,
    next: Vec<u32>,
}

impl<'a> Sequences<'a> {
    fn new(model: &'a Model, sequences: usize) -> Result<Self> {
        let cache = Cache::new(true, model.dtype, &model.config, &Device::Cpu)?;
        Ok(Self { model, cache, sequences, length: 0, next: vec![0; sequences] })
    }

    /// Extends each until it has `tokens`, and finds the token that follows.
    fn feed(&mut self, tokens: usize) -> Result<Tensor> {
        let prompt: Vec<u32> = (self.length..tokens).map(|i| ((7 * i + 11) % 1000) as u32).collect();
        self.run(&prompt.repeat(self.sequences))
    }

    /// The seconds that `count` steps take.
    fn decode(&mut self, count: usize) -> Result<f64> {
        let start = Instant::now();
        for _ in 0..count {
            let tokens = self.next.clone();
            self.run(&tokens)?;
        }
        Ok(start.elapsed().as_secs_f64())
    }

    fn run(&mut self, tokens: &[u32]) -> Result<Tensor> {
        let tokens = Tensor::new(tokens, &Device::Cpu)?.reshape((self.sequences, ()))?;
        let added = tokens.dim(1)?;
        let logits = self.model.llama.forward(&tokens, self.length, &mut self.cache)?;
        self.length += added;
        self.next = logits.argmax(D::Minus1)?.flatten_all()?.to_vec1()?;
        Ok(logits)
    }
}
