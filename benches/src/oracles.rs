//! One of our engines compared with the float32 oracles of checkpoints, in a process of its own: a driver
//! that ends the process does not end the suite.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use mlxcel_conformance::{Oracle, Tolerance};
use mlxcel_core::{Backend, LoadOptions, ModelSource, Precision, SessionOptions};

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
fn compare(folder: &Path, backend: &dyn Backend, options: &LoadOptions) -> Result<f32> {
    let oracle = Oracle::read(folder.join("oracle.json"))?.within(CAPACITY);
    let model = backend.load(&ModelSource::from(folder), options)?;
    let mut session = model.open_session(&SessionOptions::default())?;
    Ok(oracle.check(&mut *session, &Tolerance::RANDOM_WEIGHTS)?)
}
