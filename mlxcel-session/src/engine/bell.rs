//! Wakes the engine's thread.

use std::time::Duration;

use crate::sync::{Condvar, Mutex, unpoisoned};

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

    /// Waits until the flag is set, at most for `limit`.
    pub(super) fn wait(&self, limit: Option<Duration>) {
        let rung = unpoisoned(self.rung.lock());
        let mut rung = match limit {
            None => unpoisoned(self.changed.wait_while(rung, |rung| !*rung)),
            Some(limit) => unpoisoned(self.changed.wait_timeout_while(rung, limit, |rung| !*rung)).0,
        };
        *rung = false;
    }
}
