//! Which vector instructions kernels may use, from the features of the processor that programs are compiled for.
//!
//! Kernels are generated for three sets of instructions, and for what a processor has beyond its set. A processor that has none
//! of them, and every target that is no processor, gets the compiler's own code.

use mlxcel_core::Result;

use super::CPU;
use crate::backend::ResolvedTarget;
use crate::target::cpu::Code;

/// A set of vector instructions that kernels are written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum VectorSet {
    /// x86-64 with AVX-512 F, BW, DQ and VL: 32 registers of 512 bits.
    Avx512,
    /// x86-64 with AVX2, FMA and F16C: 16 registers of 256 bits.
    Avx2,
    /// 64-bit Arm: 32 registers of 128 bits.
    Neon,
}

/// The vector instructions of a processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Instructions {
    /// The set that kernels are written for.
    pub(crate) set: VectorSet,
    /// Sums of two products of bfloat16 in float32: AVX512-BF16's `vdpbf16ps`, Arm's `bfdot`.
    pub(crate) bf16_dot: bool,
    /// Sums of four products of bytes in 32 bits: `vpdpbusd` of AVX512-VNNI or AVX-VNNI, Arm's `sdot`.
    pub(crate) int8_dot: bool,
    /// Products of 2×8 matrices of bytes: Arm's `smmla` and `usmmla`.
    pub(crate) int8_mm: bool,
}

impl Instructions {
    /// What kernels for `target` may use; none for targets that kernels are not written for.
    ///
    /// # Errors
    /// Those of a target that is no processor's although its backend is.
    pub(crate) fn of(target: &ResolvedTarget) -> Result<Option<Self>> {
        if target.target().backend() != CPU {
            return Ok(None);
        }
        let code = Code::of(target.target())?;
        let all = |names: &[&str]| names.iter().all(|name| code.features.contains(name));
        let has = |name: &str| code.features.contains(name);
        Ok(if all(&["avx512f", "avx512bw", "avx512dq", "avx512vl"]) {
            Some(Self {
                set: VectorSet::Avx512,
                bf16_dot: has("avx512bf16"),
                int8_dot: has("avx512vnni"),
                int8_mm: false,
            })
        } else if all(&["avx2", "fma", "f16c"]) {
            Some(Self { set: VectorSet::Avx2, bf16_dot: false, int8_dot: has("avxvnni"), int8_mm: false })
        } else if has("neon") {
            Some(Self {
                set: VectorSet::Neon,
                bf16_dot: has("bf16"),
                int8_dot: has("dotprod"),
                int8_mm: has("i8mm"),
            })
        } else {
            None
        })
    }

    /// Elements of 32 bits in one register; so many outputs of a matrix product are computed side by side.
    pub(crate) fn lanes(&self) -> usize {
        match self.set {
            VectorSet::Avx512 => 16,
            VectorSet::Avx2 => 8,
            VectorSet::Neon => 4,
        }
    }

    /// How many vector registers there are.
    pub(crate) fn registers(&self) -> usize {
        match self.set {
            VectorSet::Avx512 | VectorSet::Neon => 32,
            VectorSet::Avx2 => 16,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::resolved;

    fn of(target: &str) -> Option<Instructions> {
        Instructions::of(&resolved(target)).unwrap()
    }

    #[test]
    fn a_processor_has_the_set_that_all_its_features_make() {
        let sets = |target| of(target).map(|instructions| (instructions.set, instructions.lanes()));
        assert_eq!(sets("llvm-cpu:cascadelake"), Some((VectorSet::Avx512, 16)));
        assert_eq!(sets("llvm-cpu:x86-64-v3"), Some((VectorSet::Avx2, 8)));
        assert_eq!(sets("llvm-cpu:knl"), Some((VectorSet::Avx2, 8)), "512 bits of few types are no set");
        assert_eq!(sets("llvm-cpu:cascadelake,-avx512bw"), Some((VectorSet::Avx2, 8)));
        assert_eq!(sets("llvm-cpu:apple-m1"), Some((VectorSet::Neon, 4)));
        assert_eq!(sets("llvm-cpu:x86-64-v2"), None);
        assert_eq!(sets("llvm-cpu:x86-64-v3,-f16c"), None);
        assert_eq!(sets("cuda:sm_89"), None);
    }

    #[test]
    fn what_is_beyond_the_set_is_told_from_features_alone() {
        let beyond = |target| {
            let instructions = of(target).unwrap();
            (instructions.bf16_dot, instructions.int8_dot, instructions.int8_mm)
        };
        assert_eq!(beyond("llvm-cpu:x86-64-v4"), (false, false, false));
        assert_eq!(beyond("llvm-cpu:cascadelake"), (false, true, false));
        assert_eq!(beyond("llvm-cpu:znver4"), (true, true, false));
        assert_eq!(beyond("llvm-cpu:alderlake"), (false, true, false));
        assert_eq!(beyond("llvm-cpu:apple-m1"), (false, true, false));
        assert_eq!(beyond("llvm-cpu:neoverse-v2"), (true, true, true));
        assert_eq!(beyond("llvm-cpu:aarch64/generic"), (false, false, false));
    }
}
