//! The child process, from outside: it is given inputs, waited for, and started anew when it is gone.

use std::fs::File;
use std::io::{self, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::child::{Reply, encode};
use crate::outcome::Outcome;
use crate::target::{Part, Target};

/// How many inputs a process runs; a leak does not grow for hours.
const RUNS: u64 = 20_000;

/// What may stay allocated after all runs of a process: caches.
const KEPT: u64 = 128 << 20;

/// How many times as long as its processor time a run may take, waiting included.
const PATIENCE: u32 = 20;

/// How a run ended that did not end well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Death {
    /// What it was, in a word or two.
    pub kind: &'static str,
    /// The last words of the process.
    pub words: String,
}

impl Death {
    /// What deaths are told apart by: the place in the code, mostly.
    pub fn key(&self) -> String {
        let first = self.words.lines().find(|line| line.contains(".rs:")).or(self.words.lines().next());
        format!("{} {}", self.kind, Outcome::new(first.unwrap_or_default()).words())
    }
}

/// A child process, or the place of one.
pub(crate) struct Process {
    target: &'static Target,
    running: Option<Running>,
    /// Processor time of processes that are gone.
    spent: Duration,
}

struct Running {
    child: Child,
    inputs: Sender<Vec<u8>>,
    replies: Receiver<Reply>,
    /// Temporary files of the process, which it cannot remove when it is killed, and what it says on
    /// standard error.
    folder: TempDir,
    runs: u64,
    /// What was allocated after the first run.
    allocated: Option<u64>,
}

impl Process {
    pub(crate) fn new(target: &'static Target) -> Self {
        Self { target, running: None, spent: Duration::ZERO }
    }

    /// The processor time of all processes.
    pub(crate) fn spent(&self) -> Duration {
        self.spent + self.running.as_ref().map_or(Duration::ZERO, |running| cpu_time(running.child.id()))
    }

    /// Runs inputs one after the other, as far as the process lives: the replies, and how the input behind
    /// the last of them ended. The error
    /// is of starting the process.
    pub(crate) fn run_all(
        &mut self,
        part: Part,
        inputs: &[Vec<u8>],
    ) -> io::Result<(Vec<Reply>, Option<Death>)> {
        if self.running.as_ref().is_some_and(|running| running.runs >= RUNS) {
            self.stop();
        }
        if self.running.is_none() {
            self.running = Some(Running::start(self.target)?);
        }
        let Some(running) = &mut self.running else { return Err(io::Error::other("no process")) };
        let (replies, death) = running.run_all(self.target, part, inputs)?;
        if death.is_some() {
            self.stop();
        }
        Ok((replies, death))
    }

    /// Runs one input. The error of the outer result is of starting the process.
    pub(crate) fn run(&mut self, part: Part, input: &[u8]) -> io::Result<Result<Reply, Death>> {
        let (replies, death) = self.run_all(part, &[input.to_vec()])?;
        match (death, replies.first()) {
            (Some(death), _) => Ok(Err(death)),
            (None, Some(reply)) => Ok(Ok(*reply)),
            (None, None) => Err(io::Error::other("no reply")),
        }
    }

    fn stop(&mut self) {
        if let Some(mut running) = self.running.take() {
            self.spent += cpu_time(running.child.id());
            let _ = running.child.kill();
            let _ = running.child.wait();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Running {
    fn start(target: &Target) -> io::Result<Self> {
        let folder = folder()?;
        let said = File::create(folder.path().join("stderr"))?;
        let mut child = Command::new(std::env::current_exe()?)
            .args(["child", target.name])
            .env("TMPDIR", folder.path())
            .env("RUST_BACKTRACE", "0")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(said)
            .spawn()?;
        let (Some(mut stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::Error::other("no pipes"));
        };
        let (sender, replies) = channel();
        // It ends when the process does.
        std::thread::spawn(move || {
            let mut stdout = BufReader::new(stdout);
            while let Some(reply) = Reply::read(&mut stdout) {
                if sender.send(reply).is_err() {
                    break;
                }
            }
        });
        let (inputs, batches) = channel::<Vec<u8>>();
        // Replies are waited for while it writes; it ends with this value or with the process.
        std::thread::spawn(move || {
            batches.into_iter().try_for_each(|batch| stdin.write_all(&batch).and_then(|()| stdin.flush()))
        });
        Ok(Self { child, inputs, replies, folder, runs: 0, allocated: None })
    }

    fn run_all(
        &mut self,
        target: &Target,
        part: Part,
        inputs: &[Vec<u8>],
    ) -> io::Result<(Vec<Reply>, Option<Death>)> {
        let mut batch = Vec::new();
        inputs.iter().try_for_each(|input| encode(part, input, &mut batch))?;
        // Where the process is gone, the replies end.
        let _ = self.inputs.send(batch);
        let mut replies = Vec::with_capacity(inputs.len());
        while replies.len() < inputs.len() {
            match self.reply(target) {
                Ok(reply) => replies.push(reply),
                Err(death) => return Ok((replies, Some(death))),
            }
        }
        Ok((replies, None))
    }

    /// Waits for the next reply.
    fn reply(&mut self, target: &Target) -> Result<Reply, Death> {
        self.runs += 1;
        // The first run of a process makes what all have in common.
        let allowed = Duration::from_secs(if self.runs == 1 { 3 } else { 1 } * target.seconds);
        let (mut before, start) = (None, Instant::now());
        let reply = loop {
            match self.replies.recv_timeout(allowed / 4) {
                Ok(reply) => break reply,
                Err(RecvTimeoutError::Disconnected) => return Err(self.died()),
                Err(RecvTimeoutError::Timeout) => {
                    let now = cpu_time(self.child.id());
                    let computed = now.saturating_sub(*before.get_or_insert(now));
                    if computed > allowed || start.elapsed() > allowed * PATIENCE {
                        let words = format!("no end after {computed:.1?} of processor time");
                        return Err(Death { kind: "hang", words });
                    }
                }
            }
        };
        let allocated = *self.allocated.get_or_insert(reply.allocated);
        if reply.allocated > allocated + KEPT {
            let words =
                format!("{} bytes stay allocated after {} runs", reply.allocated - allocated, self.runs);
            return Err(Death { kind: "leak", words });
        }
        Ok(reply)
    }

    /// What the process said before it was gone.
    fn died(&mut self) -> Death {
        let status = self.child.wait();
        let said = std::fs::read(self.folder.path().join("stderr")).unwrap_or_default();
        let said = String::from_utf8_lossy(&said);
        let words: String = said.trim().chars().take(4000).collect();
        let kind = if words.contains("memory allocation of") {
            "memory"
        } else if words.contains("overflowed its stack") {
            "stack overflow"
        } else if words.contains("panicked at") {
            "panic"
        } else {
            "crash"
        };
        let status = status.map_or_else(|error| error.to_string(), |status| status.to_string());
        Death { kind, words: if words.is_empty() { status } else { words } }
    }
}

/// A folder for what a process writes, in memory where the system has a place for that: most inputs are files
/// for a moment.
fn folder() -> io::Result<TempDir> {
    let in_memory = Path::new("/dev/shm");
    if in_memory.is_dir()
        && let Ok(folder) = tempfile::tempdir_in(in_memory)
    {
        return Ok(folder);
    }
    tempfile::tempdir()
}

/// The processor time that a process has taken; none where the system does not tell.
fn cpu_time(process: u32) -> Duration {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{process}/stat")) else { return Duration::ZERO };
    // The name, in parentheses, may hold anything; times are the 14th and the 15th field, in hundredths of a
    // second.
    let Some((_, fields)) = stat.rsplit_once(')') else { return Duration::ZERO };
    let ticks = fields.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<u64>().ok());
    Duration::from_millis(10 * ticks.sum::<u64>())
}
