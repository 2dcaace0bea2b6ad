//! The threads that compute the values of weights, and the progress of writing them.

use std::num::NonZeroUsize;
use std::sync::{Mutex, PoisonError};
use std::thread;

use mlxcel_core::{Control, Error, ErrorKind, LoadOptions, Result};

use crate::options::{WriteOptions, WriteProgressFn};

/// Bytes of address space that threads leave for their work.
const KEPT_ROOM: usize = 64 << 20;

/// How many values are computed between two writes.
pub(crate) const BLOCK: usize = 4 << 20;

/// How many values a thread takes at once.
pub(crate) const TASK: usize = 1 << 16;

/// How many bytes are copied between two looks at the cancel token.
pub(crate) const COPIED: usize = 16 << 20;

/// Fails for a number of threads that cannot be.
pub(crate) fn check_threads(operation: &'static str, threads: Option<usize>) -> Result<()> {
    match threads {
        Some(threads) if !(1..=LoadOptions::MAX_THREADS).contains(&threads) => {
            let message = format!("{threads} is not supported; supported: 1 to {}", LoadOptions::MAX_THREADS);
            Err(Error::new(ErrorKind::InvalidInput, operation, message).with_context("field", "threads"))
        }
        _ => Ok(()),
    }
}

/// Threads, with the cancel token and the progress of what they do.
pub(crate) struct Workers<'a> {
    operation: &'static str,
    threads: usize,
    control: Control<'a>,
    done: u64,
    total: u64,
    progress: Option<&'a WriteProgressFn>,
}

impl<'a> Workers<'a> {
    /// The threads that the options ask for, for `total` bytes.
    pub(crate) fn new(operation: &'static str, options: &'a WriteOptions, total: u64) -> Self {
        let of_machine = || thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let threads = options.threads.unwrap_or_else(of_machine);
        let control = options.cancel.as_ref().map(Control::cancelled_by).unwrap_or_default();
        Self { operation, threads, control, done: 0, total, progress: options.progress.as_ref() }
    }

    /// Fails if the work is to end.
    pub(crate) fn check(&self) -> Result<()> {
        self.control.check(self.operation)
    }

    /// Counts bytes that were written, and fails if the work is to end.
    pub(crate) fn wrote(&mut self, bytes: u64) -> Result<()> {
        self.done += bytes;
        if let Some(progress) = self.progress {
            progress(self.done, self.total);
        }
        self.check()
    }

    /// Has the threads do `tasks`, each thread with memory of its own that `scratch` makes.
    pub(crate) fn share_out<T: Send, S>(
        &self,
        tasks: impl ExactSizeIterator<Item = T> + Send,
        scratch: impl Fn() -> S + Sync,
        run: impl Fn(&mut S, T) + Sync,
    ) {
        let count = self.threads.min(tasks.len());
        let tasks = Mutex::new(tasks);
        let worker = || {
            let mut own = scratch();
            loop {
                let next = tasks.lock().unwrap_or_else(PoisonError::into_inner).next();
                let Some(task) = next else { break };
                run(&mut own, task);
            }
        };
        // Where the system limits what a process may map, stacks could take all of it, and the work needs
        // some too.
        let mut room: Vec<u8> = Vec::new();
        let _ = std::hint::black_box(&mut room).try_reserve_exact(KEPT_ROOM);
        thread::scope(|scope| {
            for _ in 1..count {
                // With threads that the system does not grant it takes longer, and that is all.
                let thread = thread::Builder::new().name("mlxcel-quantize".to_owned());
                if thread.spawn_scoped(scope, worker).is_err() {
                    break;
                }
            }
            drop(room);
            worker();
        });
    }
}
