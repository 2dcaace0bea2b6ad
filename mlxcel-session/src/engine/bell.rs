//! Wakes the engine's thread.

use std::time::Duration;

use crate::sync::{Condvar, Mutex, lock_when, unpoisoned};

/// A wake-up flag that one thread waits for and any can set. It is not lost if the thread does not wait yet.
#[derive(Debug, Default)]
pub(super) struct Bell {
    rung: Mutex<bool>,
    changed: Condvar,
}

impl Bell {
    pub(super) fn ring(&self) {
        *unpoisoned(self.rung.lock()) = true;
        self.changed.notify_one();
    }

    /// Waits until the flag is set, at most for `limit`, and clears it.
    pub(super) fn wait(&self, limit: Duration) {
        *lock_when(&self.rung, &self.changed, limit, |rung| *rung) = false;
    }
}
