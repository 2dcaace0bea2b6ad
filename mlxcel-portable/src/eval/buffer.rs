//! Tensor memory: aligned buffers, and an arena that recycles them during a run.

use std::sync::atomic::{AtomicUsize, Ordering};

use bytemuck::Zeroable;
use bytemuck::allocation::try_zeroed_slice_box;

use super::error::{EvalError, Result};

/// The alignment of every buffer: a cache line, and the widest vector register.
const ALIGNMENT: usize = 64;
const WORD: usize = size_of::<u64>();

/// `count` zeros. The sizes of tensors follow from files and lengths of sequences, so that they can be had is
/// not taken for granted.
pub(super) fn zeros<T: Zeroable>(count: usize) -> Result<Box<[T]>> {
    try_zeroed_slice_box(count)
        .map_err(|()| EvalError::OutOfMemory { bytes: count.saturating_mul(size_of::<T>()) })
}

/// Owned bytes that start on a cache line.
#[derive(Debug)]
pub(super) struct Buffer {
    words: Box<[u64]>,
    /// The first word on a cache line.
    first: usize,
    bytes: usize,
}

impl Buffer {
    /// A buffer of zeros.
    pub(super) fn zeroed(bytes: usize) -> Result<Self> {
        Ok(Self::of(zeros(words(bytes))?, bytes))
    }

    /// A copy of `bytes`.
    pub(super) fn copy_of(bytes: &[u8]) -> Result<Self> {
        let mut buffer = Self::zeroed(bytes.len())?;
        buffer.bytes_mut().copy_from_slice(bytes);
        Ok(buffer)
    }

    /// A copy of `bytes`, which are few, or of which the caller has a copy already.
    pub(super) fn copy_of_few(bytes: &[u8]) -> Self {
        let mut buffer = Self::of(vec![0; words(bytes.len())].into_boxed_slice(), bytes.len());
        buffer.bytes_mut().copy_from_slice(bytes);
        buffer
    }

    fn of(words: Box<[u64]>, bytes: usize) -> Self {
        let offset = words.as_ptr().align_offset(ALIGNMENT);
        // `align_offset` may answer "impossible" (in const evaluation only); then the buffer is merely less
        // aligned.
        let first = if offset < ALIGNMENT / WORD { offset } else { 0 };
        Self { words, first, bytes }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        let bytes: &[u8] = bytemuck::cast_slice(&self.words[self.first..]);
        &bytes[..self.bytes]
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut self.words[self.first..]);
        &mut bytes[..self.bytes]
    }

    /// The bytes that the buffer can hold without a new allocation.
    fn capacity(&self) -> usize {
        (self.words.len() - self.first) * WORD
    }

    /// The bytes allocated.
    fn allocated(&self) -> usize {
        self.words.len() * WORD
    }
}

impl Clone for Buffer {
    fn clone(&self) -> Self {
        Self::copy_of_few(self.bytes())
    }
}

/// The words that hold `bytes` from a cache line on.
fn words(bytes: usize) -> usize {
    bytes.div_ceil(WORD) + ALIGNMENT / WORD - 1
}

/// Counters of a run, filled while it runs; see [`RunOptions::stats`](super::RunOptions::stats).
#[derive(Debug, Default)]
pub struct RunStats {
    live: AtomicUsize,
    peak: AtomicUsize,
    steps: AtomicUsize,
}

impl RunStats {
    /// The peak memory of the run beyond its inputs, in bytes: intermediate tensors, results and scratch
    /// memory of all threads. Owned inputs that are updated in place do not count.
    pub fn peak_bytes(&self) -> usize {
        self.peak.load(Ordering::Relaxed)
    }

    /// The number of steps that ran; a step of a loop counts each time.
    pub fn steps(&self) -> usize {
        self.steps.load(Ordering::Relaxed)
    }

    pub(super) fn add_step(&self) {
        self.steps.fetch_add(1, Ordering::Relaxed);
    }

    fn add(&self, bytes: usize) {
        let live = self.live.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.peak.fetch_max(live, Ordering::Relaxed);
    }

    fn remove(&self, bytes: usize) {
        self.live.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// Gives buffers to the steps of a run and takes them back, so that a run's memory stays warm and small.
#[derive(Debug)]
pub(super) struct Arena<'a> {
    free: Vec<Buffer>,
    stats: &'a RunStats,
}

impl<'a> Arena<'a> {
    /// More free buffers than this are returned to the system.
    const KEPT: usize = 16;

    pub(super) fn new(stats: &'a RunStats) -> Self {
        Self { free: Vec::new(), stats }
    }

    /// A buffer of unspecified contents; the step that asks for it writes all of it.
    pub(super) fn take(&mut self, bytes: usize) -> Result<Buffer> {
        // Not more than twice what is needed (small ones aside), so that recycling does not hoard memory.
        let limit = bytes.saturating_mul(2).max(4096);
        let best = (0..self.free.len())
            .filter(|&i| (bytes..=limit).contains(&self.free[i].capacity()))
            .min_by_key(|&i| self.free[i].capacity());
        if let Some(index) = best {
            let mut buffer = self.free.swap_remove(index);
            buffer.bytes = bytes;
            return Ok(buffer);
        }
        let buffer = Buffer::zeroed(bytes)?;
        self.stats.add(buffer.allocated());
        Ok(buffer)
    }

    /// Takes a buffer back for reuse. Buffers that the caller brought are `foreign`: they were never counted.
    pub(super) fn give(&mut self, buffer: Buffer, foreign: bool) {
        if foreign {
            return;
        }
        self.free.push(buffer);
        if self.free.len() > Self::KEPT {
            let smallest = (0..self.free.len()).min_by_key(|&i| self.free[i].capacity());
            if let Some(index) = smallest {
                let dropped = self.free.swap_remove(index);
                self.stats.remove(dropped.allocated());
            }
        }
    }

    /// Counts scratch memory that a step allocates by itself, for as long as `use_it` runs.
    pub(super) fn with_scratch<R>(&self, bytes: usize, use_it: impl FnOnce() -> R) -> R {
        self.stats.add(bytes);
        let result = use_it();
        self.stats.remove(bytes);
        result
    }
}
