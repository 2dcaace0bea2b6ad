//! The processors that the compiler (IREE 3.13.0) supports, with the features that decide whether its code
//! runs.
//!
//! Only features are listed that generated code can use and that a program can detect: vector, bit and atomic
//! instructions, but not privileged, cache-control or enclave code, which no tensor program contains.

use std::collections::BTreeSet;

use mlxcel_core::{Error, ErrorKind, Result};

use super::{CompileTarget, unresolved};

/// An instruction set and its processors.
#[derive(Debug)]
pub struct Family {
    /// The name in `std::env::consts::ARCH`.
    pub name: &'static str,
    /// LLVM's triple of files for IREE's own loader, independent of the operating system.
    pub triple: &'static str,
    /// Every feature that can be requested, as LLVM names it, and as the standard library detects it.
    pub features: &'static [&'static str],
    /// Names of processors with the same features; the name of one with fewer; their additional features.
    cpus: &'static [(&'static str, &'static str, &'static str)],
    /// Names of features, and a feature that each of them implies.
    includes: &'static [(&'static str, &'static str)],
}

/// The families that programs are compiled for.
pub const FAMILIES: [&Family; 2] = [&X86_64, &AARCH64];

/// The processor name that every family has.
pub const GENERIC: &str = "generic";

impl Family {
    /// The family of this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        FAMILIES.into_iter().find(|family| family.name == name)
    }

    /// The names of its processors.
    pub fn cpus(&self) -> impl Iterator<Item = &'static str> {
        self.cpus.iter().flat_map(|(names, ..)| names.split(' '))
    }

    /// Each feature that implies another one, with that.
    fn implications(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        self.includes.iter().flat_map(|&(names, implied)| names.split(' ').map(move |name| (name, implied)))
    }

    /// The features of the processor of that name.
    pub fn features_of(&self, cpu: &str) -> Option<BTreeSet<&'static str>> {
        let mut features = BTreeSet::new();
        let mut cpu = cpu;
        loop {
            let (_, like, more) =
                self.cpus.iter().find(|(names, ..)| names.split(' ').any(|name| name == cpu))?;
            features.extend(more.split_ascii_whitespace());
            if like.is_empty() {
                return Some(features);
            }
            cpu = like;
        }
    }
}

/// A target's processor, with the features that code may use.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Code {
    /// Its instruction set.
    pub family: &'static Family,
    /// Its name.
    pub cpu: &'static str,
    /// The features that code may use.
    pub features: BTreeSet<&'static str>,
}

impl Code {
    /// What code for `target` may use.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for an unknown processor or feature, listing the known ones.
    pub fn of(target: &CompileTarget) -> Result<Self> {
        let (family, name) = match target.architecture().split_once('/') {
            Some((family, name)) => (Some(family), name),
            None => (None, target.architecture()),
        };
        let mut candidates =
            FAMILIES.into_iter().filter(|known| family.is_none_or(|family| family == known.name));
        let found = candidates.find_map(|family| Some((family, family.cpus().find(|cpu| *cpu == name)?)));
        let (found, cpu) = match found {
            Some((_, GENERIC)) if family.is_none() => {
                let known = FAMILIES.map(|family| format!("{}/{GENERIC}", family.name)).join(", ");
                return Err(unresolved("name the instruction set of this processor", target)
                    .with_context("known", known));
            }
            Some(found) => found,
            None => {
                return Err(unresolved("the compiler does not know this processor", target)
                    .with_context("known", known(family)));
            }
        };
        let features = found.features_of(cpu).unwrap_or_default();
        target.features().try_fold(Self { family: found, cpu, features }, Self::with)
    }

    /// The same with a feature added or removed, together with the features that it implies or that depend on
    /// it.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for a feature that does not affect code for this instruction set.
    pub fn with(mut self, (name, enabled): (&str, bool)) -> Result<Self> {
        let family = self.family;
        let Some(&feature) = family.features.iter().find(|&&feature| feature == name) else {
            let message = "the compiler's code for this instruction set does not depend on this feature";
            return Err(Error::new(ErrorKind::InvalidInput, OPERATION, message)
                .with_context("feature", name)
                .with_context("known", family.features.join(", ")));
        };
        let mut pending = vec![feature];
        while let Some(feature) = pending.pop() {
            let implications = family.implications();
            if enabled {
                self.features.insert(feature);
                pending.extend(implications.filter(|(name, _)| *name == feature).map(|(_, implied)| implied));
            } else {
                self.features.remove(feature);
                pending.extend(implications.filter(|(_, implied)| *implied == feature).map(|(name, _)| name));
            }
        }
        Ok(self)
    }

    /// The canonical target: its features are the differences from the named processor.
    ///
    /// # Errors
    /// The errors of [`CompileTarget::new`], for an invalid backend name.
    pub fn target(&self, backend: &str) -> Result<CompileTarget> {
        let Self { family, cpu, features } = self;
        let architecture = if *cpu == GENERIC { format!("{}/{cpu}", family.name) } else { (*cpu).to_owned() };
        let known = family.features_of(cpu).unwrap_or_default();
        features
            .symmetric_difference(&known)
            .try_fold(CompileTarget::new(backend, &architecture)?, |target, name| {
                target.with_feature(name, features.contains(name))
            })
    }
}

const OPERATION: &str = "resolve a compile target";

/// The processors of one family or of all.
fn known(family: Option<&str>) -> String {
    let families = FAMILIES.iter().filter(|known| family.is_none_or(|family| family == known.name));
    let known: Vec<&str> = families.flat_map(|family| family.cpus()).collect();
    if known.is_empty() {
        return FAMILIES.map(|family| format!("{}/…", family.name)).join(", ");
    }
    known.join(", ")
}

/// 64-bit x86.
static X86_64: Family = Family {
    name: "x86_64",
    includes: &[
        ("ssse3 sse4a", "sse3"),
        ("sse4.1", "ssse3"),
        ("sse4.2", "sse4.1"),
        ("avx", "sse4.2"),
        ("avx2 f16c fma vpclmulqdq", "avx"),
        ("vaes", "aes"),
        ("vpclmulqdq", "pclmul"),
        ("vaes avxifma avxneconvert avxvnni avxvnniint16 avxvnniint8 avx512f", "avx2"),
        ("avx512f", "f16c"),
        ("avx512f", "fma"),
        ("avx512bw avx512cd avx512dq avx512ifma avx512vl", "avx512f"),
        ("avx512vnni avx512vp2intersect avx512vpopcntdq", "avx512f"),
        ("avx512bf16 avx512bitalg avx512fp16 avx512vbmi avx512vbmi2", "avx512bw"),
    ],
    triple: "x86_64-unknown-unknown-eabi-elf",
    features: &[
        "adx", "aes", "avx", "avx2", "avx512bf16", "avx512bitalg", "avx512bw", "avx512cd", "avx512dq",
        "avx512f", "avx512fp16", "avx512ifma", "avx512vbmi", "avx512vbmi2", "avx512vl", "avx512vnni",
        "avx512vp2intersect", "avx512vpopcntdq", "avxifma", "avxneconvert", "avxvnni", "avxvnniint16",
        "avxvnniint8", "bmi", "bmi2", "cx16", "f16c", "fma", "gfni", "lzcnt", "movbe", "pclmul", "popcnt",
        "sha", "sse3", "sse4.1", "sse4.2", "sse4a", "ssse3", "tbm", "vaes", "vpclmulqdq",
    ],
    cpus: &[
        ("k8 athlon64 athlon-fx opteron x86-64 generic", "", ""),
        ("k8-sse3 athlon64-sse3 opteron-sse3", "k8", "sse3"),
        ("nocona", "k8-sse3", "cx16"),
        ("core2", "nocona", "ssse3"),
        ("bonnell atom", "core2", "movbe"),
        ("penryn", "core2", "sse4.1"),
        ("amdfam10 barcelona", "nocona", "lzcnt popcnt sse4a"),
        ("btver1", "amdfam10", "ssse3"),
        ("nehalem corei7 x86-64-v2", "penryn", "popcnt sse4.2"),
        ("westmere", "nehalem", "pclmul"),
        ("sandybridge corei7-avx", "westmere", "avx"),
        ("silvermont slm", "westmere", "movbe"),
        ("ivybridge core-avx-i", "sandybridge", "f16c"),
        ("goldmont goldmont-plus", "silvermont", "aes sha"),
        ("bdver1", "sandybridge", "aes lzcnt sse4a"),
        ("tremont", "goldmont", "gfni"),
        ("btver2", "bdver1", "bmi f16c movbe"),
        ("x86-64-v3", "nehalem", "avx avx2 bmi bmi2 f16c fma lzcnt movbe"),
        ("bdver2 bdver3", "bdver1", "bmi f16c fma tbm"),
        ("haswell core-avx2", "x86-64-v3", "pclmul"),
        ("broadwell", "haswell", "adx"),
        ("skylake", "broadwell", "aes"),
        ("bdver4", "bdver2", "avx2 bmi2 movbe"),
        ("knl", "skylake", "avx512cd avx512f"),
        ("x86-64-v4", "x86-64-v3", "avx512bw avx512cd avx512dq avx512f avx512vl"),
        ("znver1 znver2 c86-4g-m4 c86-4g-m6", "skylake", "sha sse4a"),
        ("knm", "knl", "avx512vpopcntdq"),
        ("znver3", "znver1", "vaes vpclmulqdq"),
        ("alderlake raptorlake meteorlake gracemont", "skylake", "avxvnni gfni sha vaes vpclmulqdq"),
        ("skylake-avx512 skx", "knl", "avx512bw avx512dq avx512vl"),
        ("cascadelake", "skylake-avx512", "avx512vnni"),
        ("cooperlake", "cascadelake", "avx512bf16"),
        ("arrowlake sierraforest grandridge", "alderlake", "avxifma avxneconvert avxvnniint8"),
        ("cannonlake", "skylake-avx512", "avx512ifma avx512vbmi sha"),
        ("arrowlake-s lunarlake pantherlake wildcatlake clearwaterforest", "arrowlake", "avxvnniint16"),
        (
            "icelake-client rocketlake icelake-server",
            "cannonlake",
            "avx512bitalg avx512vbmi2 avx512vnni avx512vpopcntdq gfni vaes vpclmulqdq",
        ),
        ("tigerlake", "icelake-client", "avx512vp2intersect"),
        ("znver4 c86-4g-m7 c86-4g-m8", "icelake-client", "avx512bf16 sse4a"),
        (
            "sapphirerapids graniterapids graniterapids-d emeraldrapids",
            "icelake-client",
            "avx512bf16 avx512fp16 avxvnni",
        ),
        ("znver5", "znver4", "avx512vp2intersect avxvnni"),
        ("novalake diamondrapids", "sapphirerapids", "avxifma avxneconvert avxvnniint16 avxvnniint8"),
        ("znver6", "znver5", "avx512fp16 avxifma avxneconvert avxvnniint8"),
    ],
};

/// 64-bit Arm.
static AARCH64: Family = Family {
    name: "aarch64",
    includes: &[
        ("aes sha2 rdm complxnum jsconv dotprod fullfp16 bf16 i8mm", "neon"),
        ("sha3", "sha2"),
        ("fp16fml sve", "fullfp16"),
        ("sve2 f32mm f64mm", "sve"),
        ("sve2-bitperm", "sve2"),
        ("rcpc-immo", "rcpc"),
    ],
    triple: "aarch64-unknown-unknown-eabi-elf",
    features: &[
        "aes", "bf16", "complxnum", "crc", "dotprod", "f32mm", "f64mm", "flagm", "fp16fml", "fptoint",
        "fullfp16", "i8mm", "jsconv", "lse", "neon", "rcpc", "rcpc-immo", "rdm", "sha2", "sha3", "sve",
        "sve2", "sve2-bitperm",
    ],
    cpus: &[
        ("generic", "", "neon"),
        ("apple-a7 apple-a8 apple-a9 cyclone", "generic", "aes sha2"),
        (
            "cortex-a34 cortex-a35 cortex-a53 cortex-a57 cortex-a72 cortex-a73 exynos-m3 kryo thunderx thunderxt81 thunderxt83 thunderxt88",
            "apple-a7",
            "crc",
        ),
        ("apple-a10 falkor", "cortex-a34", "rdm"),
        ("thunderx2t99", "apple-a10", "lse"),
        ("apple-a11 carmel", "thunderx2t99", "fullfp16"),
        ("exynos-m4 exynos-m5", "apple-a11", "dotprod"),
        ("a64fx", "apple-a11", "complxnum sve"),
        (
            "cortex-a55 cortex-a65 cortex-a65ae cortex-a75 cortex-a76 cortex-a76ae cortex-a77 cortex-a78 cortex-a78ae cortex-x1 neoverse-e1 neoverse-n1",
            "exynos-m4",
            "rcpc",
        ),
        ("thunderx3t110", "thunderx2t99", "complxnum jsconv rcpc"),
        ("apple-a12 apple-s4 apple-s5", "thunderx3t110", "fullfp16"),
        ("cortex-a78c", "cortex-a55", "flagm"),
        ("cortex-x1c", "cortex-a78c", "rcpc-immo"),
        ("tsv110", "exynos-m4", "complxnum fp16fml jsconv"),
        (
            "cortex-r82 cortex-r82ae",
            "generic",
            "complxnum crc dotprod flagm fp16fml fullfp16 jsconv lse rcpc rcpc-immo rdm",
        ),
        ("saphira", "thunderx3t110", "dotprod flagm rcpc-immo"),
        ("apple-a13 apple-s6 apple-s7 apple-s8", "cortex-r82", "aes sha2 sha3"),
        ("apple-a14 apple-m1", "apple-a13", "fptoint"),
        ("oryon-1", "saphira", "bf16 fptoint i8mm sha3"),
        (
            "ampere1 ampere1a ampere1b apple-a15 apple-a16 apple-a17 apple-a18 apple-a19 apple-m2 apple-m3 apple-m4 apple-m5 apple-s10 apple-s9",
            "apple-a14",
            "bf16 i8mm",
        ),
        (
            "armagicpu c1-nano c1-premium c1-pro c1-ultra c2-pro c2-ultra cobalt-100 cortex-a320 cortex-a510 cortex-a520 cortex-a520ae cortex-a710 cortex-a715 cortex-a720 cortex-a720ae cortex-a725 cortex-x2 cortex-x3 cortex-x4 cortex-x925 neoverse-n2 neoverse-n3 neoverse-v2 neoverse-v3 neoverse-v3ae",
            "cortex-r82",
            "bf16 fptoint i8mm sve sve2 sve2-bitperm",
        ),
        ("neoverse-512tvb neoverse-v1", "apple-a13", "bf16 i8mm sve"),
        ("ampere1c", "ampere1", "sve sve2"),
        ("fujitsu-monaka gb10 grace hip12 olympus rigel", "ampere1c", "sve2-bitperm"),
    ],
};
