//! Guards the engine against what an application passed with a request: its sampling steps, constraints and
//! drafters.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use mlxcel_core::{Error, ErrorKind, Result};

use super::bell::Bell;
use crate::constraint::is_mask_thread;
use crate::sync::thread_local;

/// Runs `work`, which calls code of one request; a panic is an error of that request.
pub(super) fn caught<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        let message = "a sampling step, constraint or drafter of the request panicked";
        Err(Error::new(ErrorKind::Internal, "run request", message))
    })
}

/// Runs code of a request or of its reader, such as what drops it; a panic concerns nobody else.
pub(super) fn contained(work: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(work)).is_err() {
        tracing::error!("code of a request or of its reader panicked");
    }
}

thread_local! {
    static ENGINE: Cell<Option<EngineId>> = const { Cell::new(None) };
}

/// An engine, by the address of its bell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EngineId(usize);

impl EngineId {
    pub(super) fn of(bell: &Arc<Bell>) -> Self {
        Self(Arc::as_ptr(bell).addr())
    }

    /// The engine that this thread works for.
    pub(super) fn current() -> Option<Self> {
        ENGINE.with(Cell::get)
    }

    /// Says which engine this thread works for. Until its code returns that engine computes nothing.
    pub(super) fn enter(engine: Option<Self>) {
        ENGINE.with(|current| current.set(engine));
    }

    /// Whether code of a request of this engine may run on this thread, so that waiting for the engine would
    /// never end.
    pub(super) fn is_waiting_for_us(self) -> bool {
        is_mask_thread() || Self::current() == Some(self)
    }
}
