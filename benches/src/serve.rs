//! Our engines as a worker: [`crate::worker`] starts this program for it.

use std::io::{BufRead, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use mlxcel_core::{
    Backend, Control, InferenceSession, InferenceSessionExt, LoadOptions, Model, ModelSource, Precision, Row,
    SamplingPlan, SequenceId, SessionOptions, TokenId,
};
use mlxcel_iree::IreeBackend;
use mlxcel_mlx::{MlxBackend, WeightQuantization};
use mlxcel_pjrt::PjrtBackend;
use serde_json::{Value, json};

/// The worker's engine and model.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    engine: EngineArguments,
    /// The checkpoint's folder
    #[arg(long)]
    model: PathBuf,
    #[arg(long)]
    precision: Precision,
    #[arg(long)]
    threads: usize,
    /// The maximum length of a sequence
    #[arg(long)]
    capacity: usize,
    /// The maximum number of concurrent sequences
    #[arg(long)]
    sequences: usize,
}

/// An engine and its settings.
#[derive(clap::Args)]
pub(crate) struct EngineArguments {
    #[arg(long, value_enum)]
    engine: Engine,
    /// The engine's device
    #[arg(long)]
    device: Option<String>,
    /// The IREE engine's folder of compiled programs
    #[arg(long)]
    cache: Option<PathBuf>,
    /// The bits that the MLX engine quantizes weights to, in groups of 64
    #[arg(long)]
    bits: Option<usize>,
    /// The plugin of the PJRT engine
    #[arg(long)]
    plugin: Option<PathBuf>,
    /// Whether the plugin takes a GPU's memory as it is needed, and not most of it at the start
    #[arg(long)]
    shares_gpu: bool,
    /// Whether the PJRT engine stores weights in the type of its products
    #[arg(long)]
    expanded: bool,
    /// The number of devices over which the PJRT engine splits the model
    #[arg(long)]
    mesh: Option<usize>,
}

/// An engine that can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Engine {
    Iree,
    Mlx,
    Pjrt,
}

impl EngineArguments {
    pub(crate) fn backend(&self) -> Result<Arc<dyn Backend>> {
        Ok(match self.engine {
            Engine::Iree => match &self.cache {
                Some(folder) => Arc::new(IreeBackend::new().with_cache_dir(folder)),
                None => Arc::new(IreeBackend::new()),
            },
            Engine::Mlx => match self.bits {
                Some(bits) => {
                    let quantization = WeightQuantization::affine(bits, 64)?;
                    Arc::new(MlxBackend::new().with_quantization(quantization))
                }
                None => Arc::new(MlxBackend::new()),
            },
            Engine::Pjrt => {
                let engine = PjrtBackend::new().with_expanded_weights(self.expanded);
                let mut engine = self.mesh.map_or(engine.clone(), |devices| engine.with_mesh(devices));
                if self.shares_gpu {
                    engine = engine.with_client_option("preallocate", false);
                }
                Arc::new(self.plugin.as_ref().map_or(engine.clone(), |plugin| engine.with_plugin(plugin)))
            }
        })
    }

    pub(crate) fn on_device(&self, options: LoadOptions) -> LoadOptions {
        match (&self.device, self.engine) {
            (Some(device), _) => options.with_device(device),
            // Its default is a GPU, if present.
            (None, Engine::Mlx) => options.with_device("cpu"),
            (None, Engine::Iree | Engine::Pjrt) => options,
        }
    }
}

impl Arguments {
    fn options(&self) -> LoadOptions {
        let options = LoadOptions::default()
            .with_precision(self.precision)
            .with_capacity(self.capacity)
            .with_sequences(self.sequences);
        // Plugins and GPUs choose their threads.
        let has_threads = self.engine.engine != Engine::Pjrt && self.engine.device.is_none();
        self.engine.on_device(if has_threads { options.with_threads(self.threads) } else { options })
    }
}

/// Answers requests until the input ends.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let backend = arguments.engine.backend()?;
    let start = Instant::now();
    let model = backend.load(&ModelSource::from(arguments.model.as_path()), &arguments.options())?;
    let mut session = Session::new(&model)?;
    let load = start.elapsed();
    let info = model.info();
    answer(&json!({
        "versions": [["mlxcel", env!("CARGO_PKG_VERSION")]],
        "load_seconds": load.as_secs_f64(),
        "weight_bytes": info.weight_bytes,
        "notes": model.capabilities().to_string(),
    }))?;
    let loading = info.compile_time;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split_whitespace().collect();
        if words != ["state"] {
            session.close_all()?;
        }
        answer(&match words.as_slice() {
            ["prefill", tokens] => {
                let sequence = session.open()?;
                let start = Instant::now();
                session.feed(sequence, tokens.parse()?)?;
                json!({"seconds": start.elapsed().as_secs_f64()})
            }
            ["decode", count, positions @ ..] => {
                let count = count.parse()?;
                let sequence = session.open()?;
                let mut seconds = Vec::new();
                for position in positions {
                    let next = session.feed(sequence, position.parse()?)?;
                    seconds.push(session.decode(&mut [(sequence, next)], count)?.as_secs_f64());
                }
                json!({"seconds": seconds})
            }
            ["batch", count, position, numbers @ ..] => {
                let (count, position) = (count.parse()?, position.parse()?);
                let numbers = numbers.iter().map(|n| n.parse()).collect::<Result<Vec<usize>, _>>()?;
                let mut rows = session.begin(numbers.iter().copied().max().unwrap_or(0), position)?;
                let seconds = numbers
                    .iter()
                    .map(|&number| Ok(session.decode(&mut rows[..number], count)?.as_secs_f64()))
                    .collect::<Result<Vec<_>>>()?;
                json!({"seconds": seconds})
            }
            ["logits", tokens, ..] => {
                let file = line.splitn(3, ' ').nth(2).context("into which file?")?;
                let start = Instant::now();
                let logits = session.logits(tokens.parse()?)?;
                let seconds = start.elapsed().as_secs_f64();
                let bytes: Vec<u8> = logits.into_iter().flat_map(f32::to_le_bytes).collect();
                std::fs::write(file, bytes).with_context(|| format!("writing {file}"))?;
                json!({"seconds": seconds})
            }
            ["state"] => {
                let compiling = session.inner.stats().compile_time;
                json!({
                    "kv_bytes": session.kv_bytes(),
                    "compile_seconds": (loading + compiling).as_secs_f64(),
                })
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

/// A session and the sequences that are open in it.
pub(crate) struct Session {
    inner: Box<dyn InferenceSession>,
    plan: SamplingPlan,
    open: Vec<SequenceId>,
}

impl Session {
    pub(crate) fn new(model: &Arc<dyn Model>) -> Result<Self> {
        let inner = model.open_session(&SessionOptions::default())?;
        Ok(Self { inner, plan: SamplingPlan::greedy(), open: Vec::new() })
    }

    fn open(&mut self) -> Result<SequenceId> {
        let sequence = self.inner.open()?;
        self.open.push(sequence);
        Ok(sequence)
    }

    pub(crate) fn close_all(&mut self) -> Result<()> {
        for sequence in self.open.drain(..) {
            self.inner.close(sequence)?;
        }
        Ok(())
    }

    /// Extends a sequence to `tokens` tokens, and returns the next token.
    fn feed(&mut self, sequence: SequenceId, tokens: usize) -> Result<TokenId> {
        let prompt = prompt(self.inner.state(sequence)?.position, tokens);
        let row = Row::next(sequence, &prompt, &self.plan);
        Ok(self.inner.run_row(row, &Control::default())?.into_token()?.token)
    }

    /// Opens `count` sequences of `tokens` tokens; each with its next token.
    pub(crate) fn begin(&mut self, count: usize, tokens: usize) -> Result<Vec<(SequenceId, TokenId)>> {
        let one = |_| {
            let sequence = self.open()?;
            Ok((sequence, self.feed(sequence, tokens)?))
        };
        (0..count).map(one).collect()
    }

    /// The time of `count` steps of all `rows`: sequences with their next tokens.
    pub(crate) fn decode(&mut self, rows: &mut [(SequenceId, TokenId)], count: usize) -> Result<Duration> {
        let start = Instant::now();
        for _ in 0..count {
            let answers = self.inner.decode_step(rows, &self.plan, &Control::default())?;
            for (row, answer) in rows.iter_mut().zip(answers) {
                row.1 = answer?.token;
            }
        }
        Ok(start.elapsed())
    }

    pub(crate) fn kv_bytes(&self) -> u64 {
        self.inner.stats().kv_bytes
    }

    fn logits(&mut self, tokens: usize) -> Result<Vec<f32>> {
        let sequence = self.open()?;
        let tokens = prompt(0, tokens);
        let row = Row::logits(sequence, &tokens);
        Ok(self.inner.run_row(row, &Control::default())?.into_logits()?)
    }
}

/// The tokens of every contestant's sequences between two positions.
fn prompt(from: usize, to: usize) -> Vec<TokenId> {
    (from..to).map(|i| ((7 * i + 11) % 1000) as TokenId).collect()
}
