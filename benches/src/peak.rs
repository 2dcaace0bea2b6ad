//! The multiply-adds that the processor does at most, which bounds how fast a prompt is computed.
//!
//! A loop does nothing else: as many independent sums as hide an instruction's latency, all operands in
//! registers. The instructions are those that the kernels use. Only processors of x86-64 are measured.
#![allow(unsafe_code, reason = "the loops are in assembly, so that they contain nothing else")]

#[cfg(target_arch = "x86_64")]
use std::arch::{asm, is_x86_feature_detected as has};
use std::thread;
use std::time::Instant;

use serde::{Deserialize, Serialize};

#[cfg(target_arch = "x86_64")]
use crate::machine;

/// Iterations of a loop, which take some milliseconds.
const TURNS: usize = 1 << 20;

/// Independent sums of a loop: more than the product of an instruction's latency and the number that begin at
/// once.
const SUMS: usize = 12;

/// How weights are multiplied by activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Arithmetic {
    /// Both are float32.
    Floats,
    /// Both are bfloat16, or become float32 if the processor multiplies that faster.
    Halves,
    /// Both have 8 bits.
    Bytes,
    /// Weights have 8 bits, activations 16: two products of bytes.
    TwoBytes,
}

/// The peaks of all threads together, in multiply-adds a second; none for instructions that the processor
/// does not have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peaks {
    floats: Option<f64>,
    halves: Option<f64>,
    bytes: Option<f64>,
}

impl Peaks {
    /// Measures with this many threads.
    pub(crate) fn measure(threads: usize) -> Self {
        measure(threads)
    }

    /// The weights that are multiplied by activations in a second at most; none if it is not known for this
    /// processor.
    pub(crate) fn of(&self, arithmetic: Arithmetic) -> Option<f64> {
        match arithmetic {
            Arithmetic::Floats => self.floats,
            Arithmetic::Halves => self.floats.into_iter().chain(self.halves).reduce(f64::max),
            // Without instructions for bytes, kernels use floats.
            Arithmetic::Bytes => self.bytes.or(self.floats),
            Arithmetic::TwoBytes => self.bytes.map(|peak| peak / 2.0).or(self.floats),
        }
    }
}

/// The multiply-adds a second of all threads, each of which runs a loop with `of_turn` of them in a turn; the
/// best of three.
fn rate(threads: usize, of_turn: usize, turns: impl Fn(usize) + Sync) -> f64 {
    let once = || {
        let start = Instant::now();
        thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| turns(TURNS));
            }
        });
        start.elapsed().as_secs_f64()
    };
    let least = (0..3).map(|_| once()).fold(f64::INFINITY, f64::min);
    (threads * of_turn * TURNS) as f64 / least
}

/// A function that runs an instruction on each of [`SUMS`] registers of a kind, `turns` times.
#[cfg(target_arch = "x86_64")]
macro_rules! repeated {
    ($instruction:literal, $register:literal) => {
        |turns: usize| {
            // SAFETY: the code writes registers that it declares, and no memory. Its caller has found that the processor has the
            // instruction.
            unsafe {
                asm!(
                    "vzeroall",
                    "2:",
                    repeated!(@ $instruction, $register, 0),
                    repeated!(@ $instruction, $register, 1),
                    repeated!(@ $instruction, $register, 2),
                    repeated!(@ $instruction, $register, 3),
                    repeated!(@ $instruction, $register, 4),
                    repeated!(@ $instruction, $register, 5),
                    repeated!(@ $instruction, $register, 6),
                    repeated!(@ $instruction, $register, 7),
                    repeated!(@ $instruction, $register, 8),
                    repeated!(@ $instruction, $register, 9),
                    repeated!(@ $instruction, $register, 10),
                    repeated!(@ $instruction, $register, 11),
                    "sub {turns}, 1",
                    "jnz 2b",
                    "vzeroupper",
                    turns = inout(reg) turns => _,
                    out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _, out("xmm5") _,
                    out("xmm6") _, out("xmm7") _, out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
                    out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
                    options(nomem, nostack),
                );
            }
        }
    };
    (@ $instruction:literal, $register:literal, $number:literal) => {
        concat!($instruction, " ", $register, $number, ", ", $register, "12, ", $register, "12")
    };
}

#[cfg(target_arch = "x86_64")]
fn measure(threads: usize) -> Peaks {
    let wide =
        |known: bool, lanes: usize, turns: fn(usize)| known.then(|| rate(threads, lanes * SUMS, turns));
    let floats = wide(has!("avx512f"), 16, repeated!("vfmadd231ps", "zmm"));
    let narrow_floats = || wide(has!("fma"), 8, repeated!("vfmadd231ps", "ymm"));
    let bytes = wide(has!("avx512vnni"), 64, repeated!("vpdpbusd", "zmm"));
    // The standard library does not know it in every version that compiles this.
    let narrow_bytes = || wide(machine::has("avx_vnni"), 32, repeated!("{{vex}} vpdpbusd", "ymm"));
    Peaks {
        floats: floats.or_else(narrow_floats),
        halves: wide(has!("avx512bf16"), 32, repeated!("vdpbf16ps", "zmm")),
        bytes: bytes.or_else(narrow_bytes),
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn measure(_threads: usize) -> Peaks {
    Peaks { floats: None, halves: None, bytes: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_processor_multiplies_fewer_wide_activations_than_narrow_ones() {
        let peaks = Peaks { floats: Some(10.0), halves: Some(8.0), bytes: Some(60.0) };
        let of = [Arithmetic::Floats, Arithmetic::Halves, Arithmetic::Bytes, Arithmetic::TwoBytes];
        assert_eq!(of.map(|arithmetic| peaks.of(arithmetic)), [10.0, 10.0, 60.0, 30.0].map(Some));
        let floats = Peaks { halves: None, bytes: None, ..peaks };
        assert_eq!(of.map(|arithmetic| floats.of(arithmetic)), [Some(10.0); 4]);
        let faster = Peaks { halves: Some(20.0), ..peaks };
        assert_eq!(faster.of(Arithmetic::Halves), Some(20.0));
    }

    #[test]
    fn what_the_processor_has_is_measured() {
        let peaks = Peaks::measure(1);
        for peak in [peaks.floats, peaks.halves, peaks.bytes].into_iter().flatten() {
            assert!(peak > 1e8, "{peaks:?}");
        }
    }
}
