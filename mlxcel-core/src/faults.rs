//! Failures on purpose: how an engine's tests have it fail where a device would.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, ErrorKind, Result};

/// Where an engine depends on a device that can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FaultPoint {
    /// Getting memory: for weights, for what a sequence keeps, for the inputs of a step.
    Allocation,
    /// Making a program ready to run.
    Compile,
    /// Copying to the device or within it, as when a sequence grows, is forked or restored.
    Copy,
    /// Running a program. It may have written to what the sequences of the pass keep.
    Dispatch,
    /// Copying back to the host: what a step gave, or what a snapshot is made of.
    ReadBack,
}

impl FaultPoint {
    /// Every point.
    pub const ALL: [Self; 5] = [Self::Allocation, Self::Compile, Self::Copy, Self::Dispatch, Self::ReadBack];

    /// The kind of error that a failure here answers.
    pub fn kind(self) -> ErrorKind {
        match self {
            Self::Allocation => ErrorKind::ResourceExhausted,
            Self::Compile => ErrorKind::Compile,
            Self::Copy | Self::Dispatch | Self::ReadBack => ErrorKind::Device,
        }
    }
}

impl fmt::Display for FaultPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Allocation => "allocation",
            Self::Compile => "compile",
            Self::Copy => "copy",
            Self::Dispatch => "dispatch",
            Self::ReadBack => "read-back",
        })
    }
}

/// A failure at one point, once: after so many times that it went well there. Clones count together.
///
/// An engine that is given one asks it at each of its points; the test kit `mlxcel-conformance` says what must come of it.
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
pub struct Faults(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    point: FaultPoint,
    good: u64,
    seen: AtomicU64,
}

impl Faults {
    /// A failure at `point` after it went well `good` times.
    pub fn new(point: FaultPoint, good: u64) -> Self {
        Self(Arc::new(Inner { point, good, seen: AtomicU64::new(0) }))
    }

    /// Whether it has failed.
    pub fn has_struck(&self) -> bool {
        self.0.seen.load(Ordering::Relaxed) > self.0.good
    }

    /// To be called where `operation` is about to depend on the device.
    ///
    /// # Errors
    ///
    /// Of [`FaultPoint::kind`], when it is time to fail.
    pub fn check(&self, point: FaultPoint, operation: &'static str) -> Result<()> {
        if point != self.0.point || self.0.seen.fetch_add(1, Ordering::Relaxed) != self.0.good {
            return Ok(());
        }
        let message = "it failed, as a test told it to";
        Err(Error::new(point.kind(), operation, message).with_context("point", point))
    }
}
