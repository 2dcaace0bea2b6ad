//! Memory bandwidth, which bounds how fast a model decodes.

use std::hint::black_box;
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result};
use memmap2::MmapMut;

/// Far larger than caches.
const BYTES: usize = 1 << 30;

/// Memory to read: in huge pages where the system has them, as weights are, since small pages read slower by
/// a quarter.
pub(crate) struct Probe {
    memory: MmapMut,
}

impl Probe {
    /// Allocates memory and writes to it, so that its pages exist.
    ///
    /// # Errors
    /// If the allocation fails.
    pub(crate) fn new() -> Result<Self> {
        let mut memory = MmapMut::map_anon(BYTES).context("taking memory to measure its speed")?;
        #[cfg(target_os = "linux")]
        // A system without huge pages returns an error, and is measured without them.
        let _ = memory.advise(memmap2::Advice::HugePage);
        memory.fill(1);
        Ok(Self { memory })
    }

    /// Bytes per second that `threads` threads read together, each its own part from end to end; the best of
    /// three.
    pub(crate) fn measure(&self, threads: usize) -> f64 {
        let best = (0..3).map(|_| self.read_once(threads)).fold(f64::INFINITY, f64::min);
        BYTES as f64 / best
    }

    fn read_once(&self, threads: usize) -> f64 {
        let start = Instant::now();
        thread::scope(|scope| {
            for part in self.memory.chunks(BYTES.div_ceil(threads.max(1)).next_multiple_of(64)) {
                scope.spawn(move || black_box(sum(bytemuck::cast_slice(part))));
            }
        });
        start.elapsed().as_secs_f64()
    }
}

/// In eight independent sums, which compilers vectorize.
fn sum(words: &[u64]) -> u64 {
    let mut sums = [0u64; 8];
    for eight in words.chunks_exact(8) {
        for (sum, word) in sums.iter_mut().zip(eight) {
            *sum = sum.wrapping_add(*word);
        }
    }
    sums.iter().fold(0, |all, sum| all.wrapping_add(*sum))
}
