//! Cache keys: the content of everything that a compiled program depends on.

use mlxcel_iree_target::hex;
use sha2::{Digest, Sha256};

use crate::compiler::{CompileOptions, Identity};

/// Changes when artifacts or their files change their form.
pub(super) const FORMAT: &str = "mlxcel artifact 3";

/// A SHA-256 sum.
pub(super) type Sum = [u8; 32];

/// The sum of a program, of how it is compiled and for what; not of which compiler does it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProgramSum(pub(super) Sum);

impl ProgramSum {
    /// The sum of a program in MLIR text with its options.
    pub(crate) fn new(program: &str, options: &CompileOptions) -> Self {
        Self::of(FORMAT, env!("CARGO_PKG_VERSION"), program, options)
    }

    /// The sum with another format than [`FORMAT`], by another version of this crate.
    pub(super) fn of(format: &str, version: &str, program: &str, options: &CompileOptions) -> Self {
        let mut parts = Parts::new();
        for part in [format, version, program, options.target.fingerprint()] {
            parts.add(part);
        }
        options.all_flags().for_each(|flag| parts.add(flag));
        Self(parts.finish())
    }

    /// The beginning of the names of its entries.
    pub(super) fn stem(&self) -> String {
        hex(&self.0)
    }
}

/// A program, and the compiler that makes the artifact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    program: ProgramSum,
    sum: Sum,
}

impl Key {
    /// The key of what `compiler` makes of a program.
    pub(crate) fn new(program: ProgramSum, compiler: &Identity) -> Self {
        let mut parts = Parts::new();
        parts.add(FORMAT);
        parts.add_bytes(&program.0);
        parts.add(compiler.revision.as_str());
        parts.add_bytes(&compiler.checksum);
        Self { program, sum: parts.finish() }
    }

    /// The key whose sums were [written down](Self::to_bytes).
    pub(super) fn from_bytes(bytes: &[u8; 64]) -> Self {
        let mut sums = [[0; 32]; 2];
        sums.as_flattened_mut().copy_from_slice(bytes);
        let [program, sum] = sums;
        Self { program: ProgramSum(program), sum }
    }

    /// Both sums: that of the program, and that of all of it.
    pub(super) fn to_bytes(self) -> [u8; 64] {
        let mut bytes = [0; 64];
        let (program, sum) = bytes.split_at_mut(32);
        program.copy_from_slice(&self.program.0);
        sum.copy_from_slice(&self.sum);
        bytes
    }

    /// The sum of the program.
    pub(super) fn program(&self) -> &ProgramSum {
        &self.program
    }

    /// The name of the entry's file, without extension.
    pub(super) fn name(&self) -> String {
        format!("{}-{}", self.program.stem(), hex(&self.sum[..8]))
    }
}

/// A sum over parts whose borders count.
pub(super) struct Parts(Sha256);

impl Parts {
    pub(super) fn new() -> Self {
        Self(Sha256::new())
    }

    pub(super) fn add(&mut self, part: &str) {
        self.add_bytes(part.as_bytes());
    }

    pub(super) fn add_bytes(&mut self, part: &[u8]) {
        self.0.update((part.len() as u64).to_le_bytes());
        self.0.update(part);
    }

    pub(super) fn finish(self) -> Sum {
        self.0.finalize().into()
    }
}
