//! The speed of memory, which bounds how fast a model decodes.

use std::hint::black_box;
use std::thread;
use std::time::Instant;

/// Far more than caches hold.
const BYTES: usize = 1 << 30;

/// Memory to read.
pub(crate) struct Probe {
    words: Vec<u64>,
}

impl Probe {
    /// Memory that has been written to, so that it is there.
    pub(crate) fn new() -> Self {
        Self { words: (0..(BYTES / size_of::<u64>()) as u64).collect() }
    }

    /// Bytes a second that `threads` threads read together, each a part of its own from end to end; the best of three.
    pub(crate) fn measure(&self, threads: usize) -> f64 {
        let best = (0..3).map(|_| self.read_once(threads)).fold(f64::INFINITY, f64::min);
        BYTES as f64 / best
    }

    fn read_once(&self, threads: usize) -> f64 {
        let start = Instant::now();
        thread::scope(|scope| {
            for part in self.words.chunks(self.words.len().div_ceil(threads.max(1))) {
                scope.spawn(move || black_box(sum(part)));
            }
        });
        start.elapsed().as_secs_f64()
    }
}

/// In eight independent sums, which compilers make vectors of.
fn sum(words: &[u64]) -> u64 {
    let mut sums = [0u64; 8];
    for eight in words.chunks_exact(8) {
        for (sum, word) in sums.iter_mut().zip(eight) {
            *sum = sum.wrapping_add(*word);
        }
    }
    sums.iter().fold(0, |all, sum| all.wrapping_add(*sum))
}
