//! Worker threads of a run.

use std::sync::{Mutex, PoisonError};

use super::error::{EvalError, Result};

/// A fixed number of threads including the calling one, shared by any number of programs and runs.
#[derive(Debug)]
pub struct Workers {
    /// All threads but the caller's.
    pool: Option<rayon::ThreadPool>,
    threads: usize,
}

impl Workers {
    /// A pool of `threads` threads: the caller's and `threads - 1` worker threads. Zero means one.
    ///
    /// # Errors
    /// [`EvalError::Threads`] if the operating system cannot start them.
    pub fn new(threads: usize) -> Result<Self> {
        let threads = threads.max(1);
        let pool = if threads == 1 {
            None
        } else {
            let pool = rayon::ThreadPoolBuilder::new()
                .num_threads(threads - 1)
                .thread_name(|index| format!("mlxcel-eval-{index}"))
                .build()
                .map_err(|error| EvalError::Threads(Box::new(error)))?;
            Some(pool)
        };
        Ok(Self { pool, threads })
    }

    /// The number of threads, including the caller's.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// The workers that are the calling thread alone.
    pub(super) const fn caller_only() -> Self {
        Self { pool: None, threads: 1 }
    }

    /// Runs `body` on every item, each participating thread with a state of its own. Threads take the next
    /// item when they are done with one, so the caller never waits for a thread that has not woken up
    /// yet.
    pub(super) fn for_each<I, S>(
        &self,
        items: I,
        state: impl Fn() -> S + Sync,
        body: impl Fn(&mut S, I::Item) + Sync,
    ) where
        I: ExactSizeIterator + Send,
    {
        let helpers = (self.threads - 1).min(items.len().saturating_sub(1));
        let Some(pool) = self.pool.as_ref().filter(|_| helpers > 0) else {
            let mut own = state();
            items.for_each(|item| body(&mut own, item));
            return;
        };
        let queue = Mutex::new(items);
        let work = || {
            let mut own = None;
            loop {
                let item = queue.lock().unwrap_or_else(PoisonError::into_inner).next();
                match item {
                    Some(item) => body(own.get_or_insert_with(&state), item),
                    None => break,
                }
            }
        };
        pool.in_place_scope(|scope| {
            for _ in 0..helpers {
                scope.spawn(|_| work());
            }
            work();
        });
    }
}
