//! Loading in pieces, and telling about it.

use std::sync::{Mutex, PoisonError};

use mlxcel_core::{LoadProgress, LoadStage, ProgressFn};

/// The approximate interval of progress reports.
const REPORTS: u64 = 100;

/// Reports how many bytes are loaded, from any thread.
pub(super) struct Progress<'a> {
    tell: Option<&'a ProgressFn>,
    total: u64,
    /// The bytes that are loaded, and how many there were when it was last told. Held while telling, so that
    /// the numbers do not fall.
    done: Mutex<(u64, u64)>,
}

impl<'a> Progress<'a> {
    /// Nothing of `total` bytes is loaded yet.
    pub(super) fn new(total: u64, tell: Option<&'a ProgressFn>) -> Self {
        Self { tell, total, done: Mutex::default() }
    }

    /// `bytes` more are loaded.
    pub(super) fn add(&self, bytes: usize) {
        let Some(tell) = self.tell else { return };
        let mut state = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        let (done, told) = &mut *state;
        *done += bytes as u64;
        if *done == self.total || *done - *told >= self.total / REPORTS {
            *told = *done;
            tell(LoadProgress::new(LoadStage::Weights, *done, self.total));
        }
    }
}
