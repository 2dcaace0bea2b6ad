//! Fault injection: lets an engine's tests fail where a device would.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, ErrorKind, Result};

named! {
    /// A point where an engine depends on a device that can fail.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[non_exhaustive]
    pub enum FaultPoint {
        /// Allocating memory for weights, sequence state or the inputs of a step.
        Allocation = "allocation",
        /// Compiling or loading a program.
        Compile = "compile",
        /// Copying to or within the device, as when a sequence grows or is forked or restored.
        Copy = "copy",
        /// Running a program. It may have written to the state of the pass's sequences.
        Dispatch = "dispatch",
        /// Copying back to the host: results of a step, or the payload of a snapshot.
        ReadBack = "read-back",
    }
}

impl FaultPoint {
    /// The kind of error that a failure here returns.
    pub fn kind(self) -> ErrorKind {
        match self {
            Self::Allocation => ErrorKind::ResourceExhausted,
            Self::Compile => ErrorKind::Compile,
            Self::Copy | Self::Dispatch | Self::ReadBack => ErrorKind::Device,
        }
    }
}

/// Injects one failure at one point, after a number of successes there. Clones share the count.
///
/// An engine under test calls [`check`](Self::check) at each of its points; the test kit `mlxcel-conformance`
/// checks the consequences.
///
/// ```
/// use mlxcel_core::{FaultPoint, Faults};
///
/// let faults = Faults::new(FaultPoint::Dispatch, 1);
/// let dispatch = || faults.check(FaultPoint::Dispatch, "run program");
/// assert!(dispatch().is_ok() && dispatch().is_err() && dispatch().is_ok());
/// assert!(faults.has_struck());
/// ```
#[derive(Clone, Debug)]
pub struct Faults {
    point: FaultPoint,
    good: u64,
    seen: Arc<AtomicU64>,
}

impl Faults {
    /// Fails at `point` after `good` successes.
    pub fn new(point: FaultPoint, good: u64) -> Self {
        Self { point, good, seen: Arc::default() }
    }

    /// Whether the failure has occurred.
    pub fn has_struck(&self) -> bool {
        self.seen.load(Ordering::Relaxed) > self.good
    }

    /// Call it right before `operation` depends on the device.
    ///
    /// # Errors
    ///
    /// Of [`FaultPoint::kind`], once, when the failure is due.
    pub fn check(&self, point: FaultPoint, operation: &'static str) -> Result<()> {
        if point != self.point || self.seen.fetch_add(1, Ordering::Relaxed) != self.good {
            return Ok(());
        }
        let message = "injected fault";
        Err(Error::new(point.kind(), operation, message).with_context("point", point))
    }
}
