//! The child process, from outside: it is given inputs, waited for, and started anew when it is gone.

use std::fs::File;
use std::io::{self, BufReader};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::Target;
use crate::child::{Reply, send};

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
        format!("{} {}", self.kind, crate::Outcome::new(first.unwrap_or_default()).words())
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
    stdin: ChildStdin,
    replies: Receiver<Reply>,
    /// Temporary files of the process, which it cannot remove when it is killed, and what it says on standard error.
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

    /// Runs an input. The error of the outer result is of starting the process.
    pub(crate) fn run(&mut self, input: &[u8]) -> io::Result<Result<Reply, Death>> {
        if self.running.as_ref().is_some_and(|running| running.runs >= RUNS) {
            self.stop();
        }
        if self.running.is_none() {
            self.running = Some(Running::start(self.target)?);
        }
        let Some(running) = &mut self.running else { return Err(io::Error::other("no process")) };
        let ended = running.run(self.target, input);
        if ended.is_err() {
            self.stop();
        }
        Ok(ended)
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
        let folder = tempfile::tempdir()?;
        let said = File::create(folder.path().join("stderr"))?;
        let mut child = Command::new(std::env::current_exe()?)
            .args(["child", target.name])
            .env("TMPDIR", folder.path())
            .env("RUST_BACKTRACE", "0")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(said)
            .spawn()?;
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
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
        Ok(Self { child, stdin, replies, folder, runs: 0, allocated: None })
    }

    fn run(&mut self, target: &Target, input: &[u8]) -> Result<Reply, Death> {
        self.runs += 1;
        // The first run of a process makes what all have in common.
        let allowed = Duration::from_secs(if self.runs == 1 { 3 } else { 1 } * target.seconds);
        let (before, start) = (cpu_time(self.child.id()), Instant::now());
        if send(input, &mut self.stdin).is_err() {
            return Err(self.died());
        }
        let reply = loop {
            match self.replies.recv_timeout(allowed / 4) {
                Ok(reply) => break reply,
                Err(RecvTimeoutError::Disconnected) => return Err(self.died()),
                Err(RecvTimeoutError::Timeout) => {
                    let computed = cpu_time(self.child.id()).saturating_sub(before);
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

/// The processor time that a process has taken; none where the system does not tell.
fn cpu_time(process: u32) -> Duration {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{process}/stat")) else { return Duration::ZERO };
    // The name, in parentheses, may hold anything; times are the 14th and the 15th field, in hundredths of a second.
    let Some((_, fields)) = stat.rsplit_once(')') else { return Duration::ZERO };
    let ticks = fields.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<u64>().ok());
    Duration::from_millis(10 * ticks.sum::<u64>())
}
