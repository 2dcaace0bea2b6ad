//! A contestant in its own process, which measures on request: its memory is measured separately, and freed
//! when it ends.
//!
//! Requests are lines of words, results lines of JSON; `llama-cpp/src/main.rs` lists them. A worker first
//! sends [`Hello`].

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// A running worker; ended when dropped.
pub(crate) struct Worker {
    name: String,
    child: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
    pub(crate) hello: Hello,
    /// The peak private memory before it was ready, in bytes, if the system reports it.
    pub(crate) loading_peak: Option<f64>,
}

/// The first message of a worker, when it is ready.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Hello {
    /// Names and versions of the libraries.
    pub(crate) versions: Vec<(String, String)>,
    /// Seconds to load, without starting the process.
    #[serde(default)]
    pub(crate) load_seconds: f64,
    /// Bytes of weights, if the worker knows them.
    #[serde(default)]
    pub(crate) weight_bytes: Option<u64>,
    /// Further notes for readers.
    #[serde(default)]
    pub(crate) notes: String,
}

/// Memory of a process in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    /// Private memory, without files and shared memory.
    pub(crate) private: f64,
    /// Mapped files, as far as touched.
    pub(crate) mapped: f64,
}

/// What a worker of ours reports.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub(crate) struct State {
    /// Bytes of the KV caches of open sequences.
    pub(crate) kv_bytes: u64,
    /// Seconds spent compiling since the start.
    pub(crate) compile_seconds: f64,
}

#[derive(Deserialize)]
struct Took<T> {
    seconds: T,
}

#[derive(Deserialize)]
struct Moved {
    bytes_per_second: f64,
}

impl Worker {
    /// Starts `command`, named `name` in errors, and waits until it is ready.
    pub(crate) fn start(name: &str, mut command: Command) -> Result<Self> {
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.with_context(|| format!("starting {name}: {:?}", command.get_program()))?;
        let (Some(requests), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            bail!("{name} has no pipes");
        };
        let answers = BufReader::new(answers);
        let (hello, loading_peak) = (Hello::default(), None);
        let mut worker = Self { name: name.to_owned(), child, requests, answers, hello, loading_peak };
        let (process, is_ready) = (worker.child.id(), AtomicBool::new(false));
        let (answer, peak) = thread::scope(|scope| {
            let watch = scope.spawn(|| {
                let mut peak: Option<f64> = None;
                while !is_ready.load(Ordering::Relaxed) {
                    let now = memory_of(process).map(|memory| memory.private);
                    peak = peak.into_iter().chain(now).reduce(f64::max);
                    thread::sleep(Duration::from_millis(20));
                }
                peak
            });
            let answer = worker.answer();
            is_ready.store(true, Ordering::Relaxed);
            (answer, watch.join().unwrap_or_default())
        });
        // If it ends, standard error has the reason.
        (worker.hello, worker.loading_peak) =
            (answer.with_context(|| format!("{name} did not start"))?, peak);
        Ok(worker)
    }

    /// The time from a prompt of `tokens` tokens to the first new token.
    pub(crate) fn prefill(&mut self, tokens: usize) -> Result<f64> {
        self.ask::<Took<f64>>(&format!("prefill {tokens}")).map(|answer| answer.seconds)
    }

    /// The time of `count` tokens of a sequence at each of `positions`, which rise by more than `count`.
    pub(crate) fn decode(&mut self, count: usize, positions: &[usize]) -> Result<Vec<f64>> {
        self.ask::<Took<Vec<f64>>>(&format!("decode {count} {}", words(positions)))
            .map(|answer| answer.seconds)
    }

    /// Rates in tok/s: of decoding `count` tokens at `position`, and of a prompt of `prompt` tokens.
    pub(crate) fn rates(&mut self, count: usize, position: usize, prompt: usize) -> Result<(f64, f64)> {
        let decode: f64 = self.decode(count, &[position])?.into_iter().sum();
        Ok((count as f64 / decode, prompt as f64 / self.prefill(prompt)?))
    }

    /// The time of `count` tokens of each sequence, for each of `numbers` sequences together.
    pub(crate) fn batch(&mut self, count: usize, position: usize, numbers: &[usize]) -> Result<Vec<f64>> {
        self.ask::<Took<Vec<f64>>>(&format!("batch {count} {position} {}", words(numbers)))
            .map(|answer| answer.seconds)
    }

    /// The logits after a prompt of `tokens` tokens, transferred through the file `through`.
    pub(crate) fn logits(&mut self, tokens: usize, through: &Path) -> Result<Vec<f32>> {
        self.ask::<Took<f64>>(&format!("logits {tokens} {}", through.display()))?;
        let bytes = fs::read(through).with_context(|| format!("reading {}", through.display()))?;
        fs::remove_file(through).with_context(|| format!("removing {}", through.display()))?;
        Ok(bytes.as_chunks::<4>().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect())
    }

    /// Bytes that the device's memory moves in a second, of a worker that can tell.
    pub(crate) fn bandwidth(&mut self) -> Result<f64> {
        self.ask::<Moved>("bandwidth").map(|moved| moved.bytes_per_second)
    }

    /// The report of a worker of ours.
    pub(crate) fn state(&mut self) -> Result<State> {
        self.ask("state")
    }

    /// The memory of its process, if the system reports it.
    pub(crate) fn memory(&self) -> Option<Memory> {
        memory_of(self.child.id())
    }

    /// The answer to a line.
    pub(crate) fn ask<T: DeserializeOwned>(&mut self, request: &str) -> Result<T> {
        let sent = writeln!(self.requests, "{request}").and_then(|()| self.requests.flush());
        sent.with_context(|| format!("asking {}", self.name))?;
        self.answer()
    }

    fn answer<T: DeserializeOwned>(&mut self) -> Result<T> {
        let mut line = String::new();
        let read = self.answers.read_line(&mut line).with_context(|| format!("hearing {}", self.name))?;
        if read == 0 {
            bail!("{} ended", self.name);
        }
        serde_json::from_str(&line).with_context(|| format!("{} answered {line:?}", self.name))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A value's name on the command line.
pub(crate) fn name(value: &impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// A command of this program itself, which is the worker of our engines.
pub(crate) fn this_program() -> Result<Command> {
    Ok(Command::new(std::env::current_exe().context("finding this program")?))
}

fn memory_of(process: u32) -> Option<Memory> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    Some(Memory { private: size(&status, "RssAnon")?, mapped: size(&status, "RssFile")? })
}

/// The largest difference of `logits` from `reference`, and the largest magnitude of the latter; NaN if a
/// number is none.
pub(crate) fn apart(reference: &[f32], logits: &[f32]) -> (f32, f32) {
    // `f32::max` would ignore it.
    let most = |most: f32, one: f32| if most.is_nan() || one <= most { most } else { one };
    let difference = reference.iter().zip(logits).map(|(a, b)| (a - b).abs()).fold(0.0, most);
    (difference, reference.iter().map(|logit| logit.abs()).fold(0.0, most))
}

fn words(numbers: &[usize]) -> String {
    numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

/// A size of `/proc/PID/status` (in kilobytes there), in bytes.
fn size(status: &str, name: &str) -> Option<f64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(1024.0 * line.trim().strip_suffix("kB")?.trim().parse::<f64>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_from_a_processs_status() {
        let status = "Name:\tx\nRssAnon:\t     116 kB\nRssFile:\t    1996 kB\n";
        assert_eq!(size(status, "RssAnon"), Some(118_784.0));
        assert_eq!(size(status, "RssShmem"), None);
    }

    #[cfg(unix)]
    #[test]
    fn a_worker_responds_until_it_ends() {
        let mut command = Command::new("sh");
        command.arg("-c").arg(
            r#"echo '{"versions": [["x", "1"]]}'; read line; echo '{"seconds": [1.5, 2]}'; read line; echo "$line""#,
        );
        let mut worker = Worker::start("a script", command).unwrap();
        assert_eq!(worker.hello.versions, [("x".to_owned(), "1".to_owned())]);
        assert_eq!(worker.decode(1, &[2, 9]).unwrap(), [1.5, 2.0]);
        assert!(worker.prefill(3).unwrap_err().to_string().contains("prefill 3"));
        assert!(worker.state().is_err());
    }
}
