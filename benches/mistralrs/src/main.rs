//! mistral.rs on request, for `mlxcel-benches`: its llama on the same safetensors, quantized in place where a
//! type has fewer bits.
//!
//! ```text
//! RAYON_NUM_THREADS=2 mlxcel-bench-mistralrs FOLDER TYPE       (TYPE: f32, q8_0, q4_0)
//! ```
//!
//! Says in a line of JSON what it is and how long loading took, then reads a request a line and answers each
//! with a line:
//!
//! ```text
//! prefill TOKENS                          a prompt of as many tokens, until the token after it is known
//! decode COUNT POSITION...                COUNT tokens of a sequence that has POSITION tokens, for each position
//! logits TOKENS FILE                      writes the logits after a prompt, as float32
//! ```

use std::io::{BufRead, Write};
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use mistralrs::core::{Response, Usage};
use mistralrs::{
    DType, Model, ModelDType, NormalRequest, Request, RequestMessage, SamplingParams, TextModelBuilder,
    parse_isq_value,
};
use serde_json::{Value, json};
use tokio::sync::mpsc::channel;

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, kind] = arguments.as_slice() else {
        bail!("usage: mlxcel-bench-mistralrs FOLDER TYPE");
    };
    let worker = Worker::load(Path::new(folder), kind).await?;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split_whitespace().collect();
        answer(&match words.as_slice() {
            ["prefill", tokens] => {
                let start = Instant::now();
                worker.generate(tokens.parse()?, 1).await?;
                json!({"seconds": start.elapsed().as_secs_f64()})
            }
            ["decode", count, positions @ ..] => {
                let mut seconds = Vec::new();
                for position in positions {
                    // The first token is the prompt's.
                    let count: usize = count.parse()?;
                    let usage = worker.generate(position.parse()?, count + 1).await?;
                    if usage.completion_tokens != count + 1 {
                        bail!("{} tokens of {} were generated", usage.completion_tokens, count + 1);
                    }
                    seconds.push(f64::from(usage.total_completion_time_sec));
                }
                json!({"seconds": seconds})
            }
            ["logits", tokens, ..] => {
                let file = line.splitn(3, ' ').nth(2).context("into which file?")?;
                let start = Instant::now();
                let logits = worker.logits(tokens.parse()?).await?;
                let seconds = start.elapsed().as_secs_f64();
                let bytes: Vec<u8> = logits.into_iter().flat_map(f32::to_le_bytes).collect();
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

struct Worker {
    model: Model,
}

impl Worker {
    async fn load(folder: &Path, kind: &str) -> Result<Self> {
        let dtype = if kind == "f32" { ModelDType::F32 } else { ModelDType::BF16 };
        // It loads no model without a tokenizer and a template; no text is read or written here.
        let scratch = tempfile::tempdir()?;
        let [tokenizer, template] = ["tokenizer.json", "template.json"].map(|name| scratch.path().join(name));
        std::fs::write(&tokenizer, serde_json::to_vec(&words(folder)?)?)?;
        std::fs::write(&template, json!({"chat_template": ""}).to_string())?;
        let start = Instant::now();
        let mut builder = TextModelBuilder::new(folder.display())
            .with_tokenizer_json(tokenizer.display())
            .with_chat_template(template.display())
            .with_dtype(dtype)
            .with_force_cpu()
            .with_max_num_seqs(1)
            // A prompt is computed each time.
            .with_prefix_cache_n(None);
        if kind != "f32" {
            builder = builder.with_isq(parse_isq_value(kind, None).map_err(anyhow::Error::msg)?);
        }
        let model = builder.build().await?;
        answer(&json!({
            "versions": [["mistral.rs", "0.8.1"]],
            "load_seconds": start.elapsed().as_secs_f64(),
            "notes": "",
        }))?;
        Ok(Self { model })
    }

    /// Generates greedily after a prompt of so many tokens.
    async fn generate(&self, prompt: usize, tokens: usize) -> Result<Usage> {
        let mut sampling = SamplingParams::deterministic();
        sampling.max_len = Some(tokens);
        match self.run(prompt, sampling, false).await? {
            Response::CompletionDone(response) => Ok(response.usage),
            other => bail!("unexpected: {:?}", other.as_result().err()),
        }
    }

    /// The logits after a prompt of so many tokens.
    async fn logits(&self, prompt: usize) -> Result<Vec<f32>> {
        let mut sampling = SamplingParams::deterministic();
        sampling.max_len = Some(1);
        match self.run(prompt, sampling, true).await? {
            Response::Raw { logits_chunks, .. } => {
                let last = logits_chunks.last().context("no logits")?;
                let rows = last.flatten_to(last.rank() - 2)?;
                let last = rows.get(rows.dim(0)? - 1)?;
                Ok(last.to_dtype(DType::F32)?.to_vec1()?)
            }
            other => bail!("unexpected: {:?}", other.as_result().err()),
        }
    }

    async fn run(&self, prompt: usize, sampling: SamplingParams, logits: bool) -> Result<Response> {
        let tokens = (0..prompt).map(|i| ((7 * i + 11) % 1000) as u32).collect();
        let (sender, mut receiver) = channel(1);
        let message = RequestMessage::CompletionTokens(tokens);
        let mut request = NormalRequest::new_simple(message, sampling, sender, 0, None, None);
        request.return_raw_logits = logits;
        self.model.inner().get_sender(None)?.send(Request::Normal(Box::new(request))).await?;
        receiver.recv().await.context("no answer")
    }
}

/// A tokenizer of as many words as the model has tokens.
fn words(folder: &Path) -> Result<Value> {
    let config: Value = serde_json::from_slice(&std::fs::read(folder.join("config.json"))?)?;
    let size = config["vocab_size"].as_u64().context("config.json has no vocab_size")?;
    let vocabulary: serde_json::Map<_, _> = (0..size).map(|id| (format!("w{id}"), json!(id))).collect();
    Ok(json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": [],
        "normalizer": null,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "w0"},
    }))
}
