//! The instruction sets that kernels are written for.

/// A vector instruction set that kernels are written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum VectorSet {
    /// x86-64 with AVX-512 F, BW, DQ and VL: 32 registers of 512 bits.
    Avx512,
    /// x86-64 with AVX2, FMA and F16C: 16 registers of 256 bits.
    Avx2,
    /// 64-bit Arm: 32 registers of 128 bits.
    Neon,
}
