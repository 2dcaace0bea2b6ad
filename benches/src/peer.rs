//! mlx-lm in a process of its own, which measures on request.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// A running `mlx-lm/worker.py`; ended when dropped.
pub(crate) struct MlxLm {
    child: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
    pub(crate) versions: Versions,
}

/// What the worker says when it is ready.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Versions {
    pub(crate) mlx_lm: String,
    pub(crate) mlx: String,
}

/// The time that a request took.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct Timing {
    pub(crate) seconds: f64,
}

impl MlxLm {
    /// Starts a worker with `checkpoint` in type `kind`; `python` finds mlx-lm in `packages`.
    pub(crate) fn start(python: &str, packages: &Path, checkpoint: &Path, kind: &str) -> Result<Self> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("mlx-lm/worker.py");
        let mut child = Command::new(python)
            .arg(&script)
            .arg(checkpoint)
            .arg(kind)
            .env("PYTHONPATH", packages)
            .env("PYTHONNOUSERSITE", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting {python}"))?;
        let (Some(requests), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            bail!("{python} has no pipes");
        };
        let mut answers = BufReader::new(answers);
        let versions = match answer(&mut answers) {
            Ok(versions) => versions,
            Err(error) => {
                // It wrote why to standard error.
                let _ = child.kill();
                let _ = child.wait();
                return Err(error.context("mlx-lm did not start"));
            }
        };
        Ok(Self { child, requests, answers, versions })
    }

    /// How long a prompt of `tokens` tokens takes, until the token after it is known.
    pub(crate) fn prefill(&mut self, tokens: usize) -> Result<Timing> {
        self.ask(&format!("prefill {tokens}"))
    }

    /// How long `count` tokens take of a sequence that has `position` tokens.
    pub(crate) fn decode(&mut self, position: usize, count: usize) -> Result<Timing> {
        self.ask(&format!("decode {position} {count}"))
    }

    fn ask(&mut self, request: &str) -> Result<Timing> {
        writeln!(self.requests, "{request}").context("asking mlx-lm")?;
        self.requests.flush().context("asking mlx-lm")?;
        answer(&mut self.answers)
    }
}

fn answer<T: DeserializeOwned>(answers: &mut impl BufRead) -> Result<T> {
    let mut line = String::new();
    if answers.read_line(&mut line).context("reading mlx-lm's answer")? == 0 {
        bail!("mlx-lm ended");
    }
    serde_json::from_str(&line).with_context(|| format!("mlx-lm answered {line:?}"))
}

impl Drop for MlxLm {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
