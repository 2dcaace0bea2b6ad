//! Wakes the engine's thread.

use std::sync::PoisonError;
use std::time::Duration;

use crate::sync::{Condvar, Mutex, MutexGuard};

/// A wake-up flag that one thread waits for and any can set. It is not lost if the thread does not wait yet.
#[derive(Debug, Default)]
pub(super) struct Bell {
    rung: Mutex<bool>,
    changed: Condvar,
}

impl Bell {
    pub(super) fn ring(&self) {
        *lock(&self.rung) = true;
        self.changed.notify_one();
    }

    /// Waits until the flag is set, at most for `limit`.
    pub(super) fn wait(&self, limit: Option<Duration>) {
        let rung = lock(&self.rung);
        let mut rung = match limit {
            None => self.changed.wait_while(rung, |rung| !*rung).unwrap_or_else(PoisonError::into_inner),
            Some(limit) => {
                let waited = self.changed.wait_timeout_while(rung, limit, |rung| !*rung);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        };
        *rung = false;
    }
}

/// The guard of `mutex`. What it protects here is whole after every statement, so a panic elsewhere leaves
/// nothing broken.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
