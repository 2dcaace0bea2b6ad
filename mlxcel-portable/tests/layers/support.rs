//! Running a function on tensors, and numbers to run it on.

use half::bf16;

pub(crate) use crate::eval_programs::support::{elements, eval as run, noise as random, tensor};

pub(crate) fn halves(numbers: &[f32]) -> Vec<bf16> {
    numbers.iter().map(|&x| bf16::from_f32(x)).collect()
}

/// Numbers between -1 and 1 that differ from seed to seed.
pub(crate) fn numbers(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(12345);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}
