//! One of our engines compared with the float32 oracles of checkpoints, in a process of its own: a driver
//! that ends the process does not end the suite.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use mlxcel_core::{
    Backend, Control, GenerateExt, GenerateOptions, InferenceSessionExt, LoadOptions, ModelSource, Precision,
    Row, SessionOptions, TokenId,
};
use serde::Deserialize;

use crate::serve::EngineArguments;

/// The engine, and what it is compared on.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    engine: EngineArguments,
    /// Folders with a checkpoint and its `oracle.json`
    #[arg(required = true)]
    folders: Vec<PathBuf>,
}

/// The results of transformers in float32.
#[derive(Deserialize)]
struct Oracle {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    prompt: Vec<TokenId>,
    greedy: Vec<TokenId>,
    /// The distance of the best logit from the second, for each of `greedy`.
    margins: Vec<f64>,
    prefill_logits: Vec<f64>,
}

/// Below this margin a float32 engine may choose the other token.
const HONEST_MARGIN: f64 = 1e-3;
/// The largest difference of prefill logits, relative to the largest of them.
const LOGITS: f64 = 1e-3;
/// The longest sequence.
const CAPACITY: usize = 160;

/// Prints a line per folder: its name, and `exact` with the largest difference of logits, or what is wrong.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let backend = arguments.engine.backend()?;
    let options = LoadOptions::default().with_precision(Precision::Exact).with_capacity(CAPACITY);
    let options = arguments.engine.on_device(options);
    let mut wrong = 0;
    for folder in &arguments.folders {
        let outcome = match compare(folder, &*backend, &options) {
            Ok(difference) => format!("exact ({difference:.0e})"),
            Err(error) => {
                wrong += 1;
                format!("{error:#}")
            }
        };
        let name = folder.file_name().unwrap_or(folder.as_os_str()).to_string_lossy();
        println!("{name}: {}", outcome.lines().next().unwrap_or_default());
    }
    if wrong > 0 {
        bail!("{wrong} of {} checkpoints are not exact", arguments.folders.len());
    }
    Ok(())
}

/// The largest difference of the logits after the oracle's prompts, relative to the largest of them.
fn compare(folder: &Path, backend: &dyn Backend, options: &LoadOptions) -> Result<f64> {
    let path = folder.join("oracle.json");
    let text = fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
    let oracle: Oracle =
        serde_json::from_slice(&text).with_context(|| format!("reading {}", path.display()))?;
    let model = backend.load(&ModelSource::from(folder), options)?;
    let mut session = model.open_session(&SessionOptions::default())?;
    let mut most = 0f64;
    for case in oracle.cases.iter().filter(|case| case.prompt.len() + case.greedy.len() <= CAPACITY) {
        let sequence = session.open()?;
        let result = session.run_row(Row::logits(sequence, &case.prompt), &Control::default())?;
        session.close(sequence)?;
        let logits = result.into_logits()?;
        let largest = case.prefill_logits.iter().fold(0f64, |most, logit| most.max(logit.abs()));
        let differences = logits.iter().zip(&case.prefill_logits).map(|(a, b)| (f64::from(*a) - b).abs());
        let difference = differences.fold(0f64, f64::max) / largest;
        if difference > LOGITS || logits.iter().any(|logit| logit.is_nan()) {
            bail!("logits differ by {difference:.1e} of the largest");
        }
        most = most.max(difference);
        let generation = session.generate_greedy(&case.prompt, &GenerateOptions::new(case.greedy.len()))?;
        let mut chosen = generation.tokens.iter().zip(&case.greedy).zip(&case.margins);
        if let Some(((token, expected), _)) =
            chosen.find(|((token, expected), margin)| token != expected && **margin >= HONEST_MARGIN)
        {
            bail!("a token is {token}, not {expected}");
        }
    }
    Ok(most)
}
