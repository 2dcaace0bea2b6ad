//! Which vector instructions kernels may use, from the features of the processor that programs are compiled
//! for.
//!
//! Kernels are generated for three instruction sets, and for a processor's extensions to its set. A processor
//! with none of them, and every target other than a CPU, gets the compiler's own code.

use std::collections::BTreeSet;

use crate::schedule::{Bf16Products, Schedule};
use crate::vector_set::VectorSet;

/// The vector instructions of a processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Instructions {
    /// The instruction set that kernels are written for.
    pub set: VectorSet,
    /// Sums of two products of bfloat16 in float32: AVX512-BF16's `vdpbf16ps`, Arm's `bfdot`.
    pub bf16_dot: bool,
    /// Sums of four products of bytes in 32 bits: `vpdpbusd` of AVX512-VNNI or AVX-VNNI, Arm's `sdot`.
    pub int8_dot: bool,
    /// Products of 2×8 matrices of bytes: Arm's `smmla` and `usmmla`.
    pub int8_mm: bool,
    /// How kernels use the instructions.
    pub schedule: Schedule,
}

impl Instructions {
    /// A set without extensions.
    pub const fn new(set: VectorSet) -> Self {
        Self { set, bf16_dot: false, int8_dot: false, int8_mm: false, schedule: Schedule::unmeasured(set) }
    }

    /// The instructions of a processor with these features, named as LLVM does, that kernels may use; none if
    /// kernels support none of its sets.
    pub fn of(features: &BTreeSet<&str>) -> Option<Self> {
        let has = |name: &str| features.contains(name);
        let all = |names: &[&str]| names.iter().all(|name| has(name));
        if all(&["avx512f", "avx512bw", "avx512dq", "avx512vl"]) {
            Some(Self {
                set: VectorSet::Avx512,
                bf16_dot: has("avx512bf16"),
                int8_dot: has("avx512vnni"),
                ..Self::new(VectorSet::Avx512)
            })
        } else if all(&["avx2", "fma", "f16c"]) {
            Some(Self { int8_dot: has("avxvnni"), ..Self::new(VectorSet::Avx2) })
        } else if has("neon") {
            Some(Self {
                bf16_dot: has("bf16"),
                int8_dot: has("dotprod"),
                int8_mm: has("i8mm"),
                ..Self::new(VectorSet::Neon)
            })
        } else {
            None
        }
    }

    /// The same with another schedule. The instructions do not change.
    #[must_use]
    pub const fn scheduled(self, schedule: Schedule) -> Self {
        Self { schedule, ..self }
    }

    /// Whether bfloat16 matrices are multiplied by instructions for them.
    pub fn multiplies_bf16(&self) -> bool {
        self.bf16_dot && self.schedule.bf16 == Bf16Products::Pairs
    }

    /// 32-bit elements of one register, and thus outputs of a matrix product that are computed side by side.
    pub const fn lanes(&self) -> usize {
        match self.set {
            VectorSet::Avx512 => 16,
            VectorSet::Avx2 => 8,
            VectorSet::Neon => 4,
        }
    }

    /// Whether kernels prefetch: x86-64 prefetches in hardware, but not far enough.
    pub(crate) fn fetches_ahead(&self) -> bool {
        self.set != VectorSet::Neon
    }

    /// The number of vector registers.
    pub const fn registers(&self) -> usize {
        match self.set {
            VectorSet::Avx512 | VectorSet::Neon => 32,
            VectorSet::Avx2 => 16,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AVX512: [&str; 7] = ["avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl"];

    fn of(features: &[&str]) -> Option<Instructions> {
        Instructions::of(&features.iter().copied().collect())
    }

    #[test]
    fn a_set_requires_all_of_its_features() {
        let sets =
            |features: &[&str]| of(features).map(|instructions| (instructions.set, instructions.lanes()));
        assert_eq!(sets(&AVX512), Some((VectorSet::Avx512, 16)));
        assert_eq!(sets(&AVX512[..4]), Some((VectorSet::Avx2, 8)), "avx512f alone is not the AVX-512 set");
        assert_eq!(sets(&AVX512[..3]), Some((VectorSet::Avx2, 8)));
        assert_eq!(sets(&AVX512[..2]), None);
        assert_eq!(sets(&["neon", "aes"]), Some((VectorSet::Neon, 4)));
        assert_eq!(sets(&[]), None);
    }

    #[test]
    fn extensions_of_the_set_follow_from_features_alone() {
        let beyond = |set: &[&str], more: &[&str]| {
            let instructions = of(&[set, more].concat()).unwrap();
            (instructions.bf16_dot, instructions.int8_dot, instructions.int8_mm)
        };
        assert_eq!(beyond(&AVX512, &[]), (false, false, false));
        assert_eq!(beyond(&AVX512, &["avx512vnni", "avx512bf16"]), (true, true, false));
        assert_eq!(beyond(&AVX512[..3], &["avx512vnni", "avxvnni"]), (false, true, false));
        assert_eq!(beyond(&["neon"], &["dotprod"]), (false, true, false));
        assert_eq!(beyond(&["neon"], &["bf16", "dotprod", "i8mm"]), (true, true, true));
        assert_eq!(of(&["neon"]), Some(Instructions::new(VectorSet::Neon)));
    }
}
