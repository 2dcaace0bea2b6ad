//! What an artifact is filed under: the content of everything that it was made from.

use sha2::{Digest, Sha256};

use crate::compiler::{CompileOptions, Revision};

/// Changes when artifacts or their files change their form.
const FORMAT: &str = "mlxcel artifact 1";

/// A SHA-256 sum.
pub(super) type Sum = [u8; 32];

/// The sum of a program, of how it is compiled and for what; not of which compiler does it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProgramSum(pub(super) Sum);

impl ProgramSum {
    /// The sum of a program in MLIR text with its options.
    pub(crate) fn new(program: &str, options: &CompileOptions) -> Self {
        let mut parts = Parts::new();
        parts.add(FORMAT);
        parts.add(env!("CARGO_PKG_VERSION"));
        parts.add(program);
        parts.add(options.target.fingerprint());
        for flag in options.all_flags() {
            parts.add(flag);
        }
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
    pub(crate) fn new(program: ProgramSum, compiler: &Revision) -> Self {
        let mut parts = Parts::new();
        parts.add(FORMAT);
        parts.add_bytes(&program.0);
        parts.add(compiler.as_str());
        Self { program, sum: parts.finish() }
    }

    /// The sum of all of it.
    pub(super) fn sum(&self) -> &Sum {
        &self.sum
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

/// Bytes as hexadecimal digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::resolved;

    #[test]
    fn everything_that_goes_into_an_artifact_changes_its_key() {
        let revision = |text: &str| Revision::recorded(text).unwrap();
        let options = CompileOptions::new(resolved("llvm-cpu:x86_64/generic"));
        let key = |program: &str, options: &CompileOptions, compiler: &str| {
            Key::new(ProgramSum::new(program, options), &revision(compiler))
        };
        let base = key("program", &options, "3.13.0 @ a");
        assert_eq!(base, key("program", &options, "3.13.0 @ a"));
        assert_eq!(base.name().len(), 64 + 1 + 16);

        let mut flags = options.clone();
        flags.flags.push("--more".to_owned());
        let target = CompileOptions::new(resolved("llvm-cpu:x86-64-v3"));
        let mut split = options.clone();
        split.flags = vec!["--iree-input-type=stablehlo--iree-opt-level=O3".to_owned()];
        for other in [
            key("program ", &options, "3.13.0 @ a"),
            key("program", &flags, "3.13.0 @ a"),
            key("program", &target, "3.13.0 @ a"),
            key("program", &split, "3.13.0 @ a"),
            key("program", &options, "3.13.0 @ b"),
        ] {
            assert_ne!(base.name(), other.name());
        }
    }
}
