//! Runs external programs, such as the compiler: child processes with captured output, which are killed on
//! cancellation.

use std::env;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use mlxcel_core::{CancelToken, Error, ErrorKind, Result};

use crate::child::tie_to_this_process;

/// How much of each output stream is kept; a failing compiler may print the whole program several times.
const KEPT: usize = 256 << 10;

/// How long a finished child's output may take to arrive: it takes longer only if a descendant holds the
/// pipe.
const DRAIN: Duration = Duration::from_millis(500);

/// The exit status of a child process, and the beginning of its output.
#[derive(Debug)]
#[non_exhaustive]
pub struct Finished {
    /// The exit status.
    pub status: ExitStatus,
    /// The beginning of standard output.
    pub stdout: String,
    /// The beginning of standard error.
    pub stderr: String,
}

/// Why a child process did not finish.
#[derive(Debug)]
#[non_exhaustive]
pub enum Failure {
    /// It could not be started.
    Start(std::io::Error),
    /// It was killed because the caller's token was cancelled.
    Cancelled,
    /// It was killed because it exceeded the time limit.
    TimedOut,
}

/// Runs a child process to completion; kills it with all its descendants on `cancel` and after `limit`.
///
/// # Errors
/// [`Failure`] if it did not end by itself.
pub fn run(
    command: &mut Command,
    cancel: Option<&CancelToken>,
    limit: Option<Duration>,
) -> Result<Finished, Failure> {
    tie_to_this_process(command);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let started = Instant::now();
    let mut running = Running(spawn(command).map_err(Failure::Start)?);
    let stdout = running.0.stdout.take().map(Capture::start).transpose().map_err(Failure::Start)?;
    let stderr = running.0.stderr.take().map(Capture::start).transpose().map_err(Failure::Start)?;
    let mut pause = Duration::from_millis(1);
    let status = loop {
        match running.0.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) => {}
            Err(source) => return Err(Failure::Start(source)),
        }
        if cancel.is_some_and(CancelToken::is_cancelled) {
            return Err(Failure::Cancelled);
        }
        if limit.is_some_and(|limit| started.elapsed() > limit) {
            return Err(Failure::TimedOut);
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    };
    let text = |capture: Option<Capture>| capture.map(Capture::finish).unwrap_or_default();
    Ok(Finished { status, stdout: text(stdout), stderr: text(stderr) })
}

/// Starts the child. A program that was just written is busy while any process forked meanwhile has not yet
/// called exec, so this retries for a second.
fn spawn(command: &mut Command) -> std::io::Result<Child> {
    let started = Instant::now();
    loop {
        match command.spawn() {
            Err(error)
                if error.kind() == std::io::ErrorKind::ExecutableFileBusy
                    && started.elapsed() < Duration::from_secs(1) =>
            {
                thread::sleep(Duration::from_millis(5));
            }
            result => return result,
        }
    }
}

impl Failure {
    /// The error of `operation`; `kind` and `message` describe a child that could not be started.
    pub fn into_error(self, operation: &'static str, kind: ErrorKind, message: &'static str) -> Error {
        match self {
            Self::Start(source) => {
                let kind = match source.kind() {
                    // The latter means that there are too many processes or threads.
                    std::io::ErrorKind::OutOfMemory | std::io::ErrorKind::WouldBlock => {
                        ErrorKind::ResourceExhausted
                    }
                    _ => kind,
                };
                Error::new(kind, operation, message).with_source(source)
            }
            Self::Cancelled => Error::new(ErrorKind::Cancelled, operation, "the work was cancelled"),
            Self::TimedOut => Error::new(kind, operation, "the compiler does not answer"),
        }
    }
}

/// The absolute folders of `PATH`, in order.
pub fn search_path() -> Vec<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).filter(|folder| folder.is_absolute()).collect()
}

/// The program `name` in the first absolute folder of `PATH` that has it. Unlike starting it by name, this
/// ignores relative folders.
pub fn on_path(name: &str) -> Option<PathBuf> {
    search_path().into_iter().map(|folder| folder.join(name)).find(|program| is_executable(program))
}

/// Whether `path` is an executable file.
pub fn is_executable(path: &Path) -> bool {
    let Ok(metadata) = path.metadata() else { return false };
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        metadata.is_file() && metadata.permissions().mode() & 0o111 != 0
    }
    #[cfg(not(unix))]
    metadata.is_file()
}

/// A child that is killed and reaped if this is dropped before it ends.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(Some(_))) {
            return;
        }
        // The group first: a script that wraps the compiler may have started it.
        #[cfg(unix)]
        let _ = rustix::process::kill_process_group(
            rustix::process::Pid::from_child(&self.0),
            rustix::process::Signal::KILL,
        );
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Reads one stream on its own thread, so that the child never waits for a full pipe.
struct Capture {
    kept: Arc<Mutex<Vec<u8>>>,
    done: Receiver<()>,
}

impl Capture {
    fn start(mut stream: impl Read + Send + 'static) -> std::io::Result<Self> {
        let kept = Arc::new(Mutex::new(Vec::new()));
        let (sender, done) = mpsc::channel();
        let target = Arc::clone(&kept);
        let read = move || {
            let mut chunk = [0; 8 << 10];
            while let Ok(count @ 1..) = stream.read(&mut chunk) {
                let mut kept = target.lock().unwrap_or_else(PoisonError::into_inner);
                let room = KEPT.saturating_sub(kept.len());
                kept.extend_from_slice(&chunk[..count.min(room)]);
            }
            // The receiver is gone if the child was abandoned.
            let _ = sender.send(());
        };
        thread::Builder::new().name("mlxcel-compiler".to_owned()).spawn(read)?;
        Ok(Self { kept, done })
    }

    fn finish(self) -> String {
        let _ = self.done.recv_timeout(DRAIN);
        String::from_utf8_lossy(&self.kept.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }
}
