//! A processor to run code on: this machine's, or a described one.

use std::collections::BTreeSet;
use std::fmt;

use mlxcel_core::{Error, Result};

use super::cpu::{Code, Family, GENERIC};
use super::{CompileTarget, model};

/// The backend that compiles for CPUs.
pub const BACKEND: &str = "llvm-cpu";

/// A processor to run code on: its instruction set, its features, and its name if known.
///
/// Prints as the [`CompileTarget`] of code that uses all its features.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Processor {
    family: String,
    cpu: Option<String>,
    features: BTreeSet<String>,
}

impl Processor {
    /// Detects this machine's processor on each call, without features that the operating system does not let
    /// programs use.
    pub fn detect() -> Self {
        Self {
            family: std::env::consts::ARCH.to_owned(),
            cpu: model::name().map(str::to_owned),
            features: detected().into_iter().map(str::to_owned).collect(),
        }
    }

    /// A processor of an instruction set (`x86_64`, `aarch64`) with exactly these features, named as LLVM
    /// does: for checking what would run on another machine.
    pub fn new<'a>(family: &str, features: impl IntoIterator<Item = &'a str>) -> Self {
        let features = features.into_iter().map(str::to_owned).collect();
        Self { family: family.to_owned(), cpu: None, features }
    }

    /// The instruction set, as Rust names it: `x86_64`, `aarch64`.
    pub fn family(&self) -> &str {
        &self.family
    }

    /// The features, as LLVM names them, in alphabetical order.
    pub fn features(&self) -> impl Iterator<Item = &str> {
        self.features.iter().map(String::as_str)
    }

    /// The target of code that uses exactly this processor's features, which `llvm-cpu:host` resolves to. It
    /// lists every feature in which the processor differs from others of its name, so equal machines have
    /// equal targets.
    ///
    /// # Errors
    /// [`Unsupported`](mlxcel_core::ErrorKind::Unsupported) if programs are not compiled for the instruction
    /// set.
    pub fn target(&self) -> Result<CompileTarget> {
        let family = Family::named(&self.family).ok_or_else(|| {
            Error::unsupported(
                "name this machine's processor",
                "programs are not compiled for its instruction set",
            )
            .with_context("instruction set", &self.family)
        })?;
        let known = |cpu: &str| family.cpus().find(|known| *known == cpu);
        let cpu = self.cpu.as_deref().and_then(known).unwrap_or_else(|| self.level(family));
        let features = family.features.iter().copied().filter(|name| self.features.contains(*name)).collect();
        Code { family, cpu, features }.target(BACKEND)
    }

    /// The highest standard level of the family whose features the processor has.
    fn level(&self, family: &Family) -> &'static str {
        let levels: &[&'static str] = match family.name {
            "x86_64" => &["x86-64-v4", "x86-64-v3", "x86-64-v2", "x86-64"],
            _ => &[],
        };
        let reached = |level: &&&'static str| {
            let features = family.features_of(level);
            features.is_some_and(|features| features.iter().all(|name| self.features.contains(*name)))
        };
        levels.iter().find(reached).copied().unwrap_or(GENERIC)
    }

    /// Whether `code`, compiled for `target`, runs here.
    ///
    /// # Errors
    /// [`Unsupported`](mlxcel_core::ErrorKind::Unsupported), naming the target, this processor, and what it
    /// lacks.
    pub(crate) fn expect(&self, target: &CompileTarget, code: &Code) -> Result<()> {
        let refused = |message: &'static str| {
            Error::unsupported("match a program with its device", message)
                .with_context("target", target)
                .with_context("processor", self)
        };
        if code.family.name != self.family {
            return Err(refused("the program is compiled for another instruction set"));
        }
        let missing: Vec<&str> =
            code.features.iter().copied().filter(|name| !self.features.contains(*name)).collect();
        if missing.is_empty() {
            return Ok(());
        }
        Err(refused("the program is compiled for a processor with more instructions")
            .with_context("missing", missing.join(", ")))
    }
}

impl fmt::Display for Processor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.target() {
            Ok(target) => fmt::Display::fmt(&target, f),
            Err(_) => f.write_str(&self.family),
        }
    }
}

macro_rules! detected {
    ($detect:ident: $($llvm:literal = $std:tt)*) => {
        [$(($llvm, std::arch::$detect!($std))),*]
            .into_iter()
            .filter_map(|(feature, present)| present.then_some(feature))
            .collect()
    };
}

/// The features of this machine's processor that programs may use, as LLVM names them.
#[cfg(target_arch = "x86_64")]
pub(super) fn detected() -> BTreeSet<&'static str> {
    let mut features: BTreeSet<&'static str> = detected!(is_x86_feature_detected:
        "adx" = "adx" "aes" = "aes" "avx" = "avx" "avx2" = "avx2" "avx512bf16" = "avx512bf16"
        "avx512bitalg" = "avx512bitalg" "avx512bw" = "avx512bw" "avx512cd" = "avx512cd" "avx512dq" = "avx512dq"
        "avx512f" = "avx512f" "avx512fp16" = "avx512fp16" "avx512ifma" = "avx512ifma" "avx512vbmi" = "avx512vbmi"
        "avx512vbmi2" = "avx512vbmi2" "avx512vl" = "avx512vl" "avx512vnni" = "avx512vnni"
        "avx512vp2intersect" = "avx512vp2intersect" "avx512vpopcntdq" = "avx512vpopcntdq" "bmi" = "bmi1" "bmi2" = "bmi2"
        "cx16" = "cmpxchg16b" "f16c" = "f16c" "fma" = "fma" "gfni" = "gfni" "lzcnt" = "lzcnt" "movbe" = "movbe"
        "pclmul" = "pclmulqdq" "popcnt" = "popcnt" "sha" = "sha" "sse3" = "sse3" "sse4.1" = "sse4.1" "sse4.2" = "sse4.2"
        "sse4a" = "sse4a" "ssse3" = "ssse3" "tbm" = "tbm" "vaes" = "vaes" "vpclmulqdq" = "vpclmulqdq");
    // Rust 1.88 does not detect these. They need the same operating system support as AVX, which it does
    // detect.
    let further = raw_cpuid::CpuId::new().get_extended_feature_info().filter(|_| features.contains("avx"));
    if let Some(info) = further {
        let found = [
            ("avxifma", info.has_avx_ifma()),
            ("avxneconvert", info.has_avx_ne_convert()),
            ("avxvnni", info.has_avx_vnni()),
            ("avxvnniint16", info.has_avx_vnni_int16()),
            ("avxvnniint8", info.has_avx_vnni_int8()),
        ];
        features.extend(found.into_iter().filter_map(|(feature, present)| present.then_some(feature)));
    }
    features
}

/// The features of this machine's processor that programs may use, as LLVM names them.
#[cfg(target_arch = "aarch64")]
pub(super) fn detected() -> BTreeSet<&'static str> {
    detected!(is_aarch64_feature_detected:
        "aes" = "aes" "bf16" = "bf16" "complxnum" = "fcma" "crc" = "crc" "dotprod" = "dotprod" "f32mm" = "f32mm"
        "f64mm" = "f64mm" "flagm" = "flagm" "fp16fml" = "fhm" "fptoint" = "frintts" "fullfp16" = "fp16" "i8mm" = "i8mm"
        "jsconv" = "jsconv" "lse" = "lse" "neon" = "neon" "rcpc" = "rcpc" "rcpc-immo" = "rcpc2" "rdm" = "rdm"
        "sha2" = "sha2" "sha3" = "sha3" "sve" = "sve" "sve2" = "sve2" "sve2-bitperm" = "sve2-bitperm")
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(super) fn detected() -> BTreeSet<&'static str> {
    BTreeSet::new()
}
