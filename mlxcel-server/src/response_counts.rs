//! How many requests were answered, by path and status.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

#[derive(Default)]
pub(crate) struct ResponseCounts(Mutex<BTreeMap<(String, u16), u64>>);

impl ResponseCounts {
    /// Counts a response.
    pub(crate) fn add(&self, path: String, status: u16) {
        *self.lock().entry((path, status)).or_default() += 1;
    }

    /// All counts: path, status and number.
    pub(crate) fn all(&self) -> Vec<(String, u16, u64)> {
        self.lock().iter().map(|((path, status), &count)| (path.clone(), *status, count)).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(String, u16), u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
