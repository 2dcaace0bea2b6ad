//! What a program is compiled for.

use std::fmt::Write as _;

/// A device and a processor to compile for: the compiler's flags, and what they stand for on this machine.
///
/// The flag for "this machine's processor" is the same everywhere and means something else on each, so an artifact is
/// filed under what it resolves to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CompileTarget {
    flags: Vec<String>,
    identity: String,
}

impl CompileTarget {
    /// Code for the processor of this machine, with everything that it can do.
    pub(crate) fn host() -> Self {
        Self::processor("host", host_identity())
    }

    /// Code for a processor that the compiler knows by name, such as `x86-64-v3` or `generic`.
    #[cfg(test)]
    pub(crate) fn named(cpu: &str) -> Self {
        Self::processor(cpu, cpu.to_owned())
    }

    fn processor(cpu: &str, identity: String) -> Self {
        let flags = vec![
            "--iree-hal-target-device=local".to_owned(),
            "--iree-hal-local-target-device-backends=llvm-cpu".to_owned(),
            format!("--iree-llvmcpu-target-cpu={cpu}"),
        ];
        let identity = format!("{} {}\n{identity}", std::env::consts::ARCH, std::env::consts::OS);
        Self { flags, identity }
    }

    /// What `iree-compile` is told.
    pub(crate) fn flags(&self) -> &[String] {
        &self.flags
    }

    /// What the flags mean here: architecture, system, and the processor's model and features.
    pub(crate) fn identity(&self) -> &str {
        &self.identity
    }
}

/// The model and the features of this machine's processor.
///
/// The compiler asks the processor itself; the kernel's account of it distinguishes at least as much, wherever there is
/// one. Elsewhere it is the features that the standard library can detect, which decide whether code runs at all.
fn host_identity() -> String {
    kernel_account().unwrap_or_else(detected_features)
}

/// The lines of `/proc/cpuinfo` that tell processors apart, once for each kind of core.
#[cfg(target_os = "linux")]
fn kernel_account() -> Option<String> {
    account(&std::fs::read_to_string("/proc/cpuinfo").ok()?)
}

#[cfg(not(target_os = "linux"))]
fn kernel_account() -> Option<String> {
    None
}

#[cfg(any(target_os = "linux", test))]
fn account(cpuinfo: &str) -> Option<String> {
    // x86, then Arm, then RISC-V and the rest.
    const TELLING: [&str; 14] = [
        "vendor_id",
        "cpu family",
        "model",
        "stepping",
        "flags",
        "CPU implementer",
        "CPU architecture",
        "CPU variant",
        "CPU part",
        "CPU revision",
        "Features",
        "isa",
        "uarch",
        "cpu",
    ];
    let mut kinds: Vec<String> = Vec::new();
    for block in cpuinfo.split("\n\n") {
        let mut kind = String::new();
        for (name, value) in block.lines().filter_map(|line| line.split_once(':')) {
            if TELLING.contains(&name.trim()) {
                let _ = writeln!(kind, "{}: {}", name.trim(), value.trim());
            }
        }
        if !kind.is_empty() && !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    kinds.sort();
    (!kinds.is_empty()).then(|| kinds.join("\n"))
}

/// The features that the standard library detects at run time.
fn detected_features() -> String {
    macro_rules! detected {
        ($detect:ident: $($feature:tt)*) => {
            [$(($feature, std::arch::$detect!($feature))),*]
                .into_iter()
                .filter(|(_, present)| *present)
                .map(|(feature, _)| feature)
                .collect::<Vec<_>>()
                .join(",")
        };
    }
    #[cfg(target_arch = "x86_64")]
    return detected!(is_x86_feature_detected: "sse3" "ssse3" "sse4.1" "sse4.2" "popcnt" "lzcnt" "bmi1" "bmi2" "avx" "avx2"
        "fma" "f16c" "avx512f" "avx512bw" "avx512cd" "avx512dq" "avx512vl" "avx512vnni" "avx512bf16" "avx512vbmi");
    #[cfg(target_arch = "aarch64")]
    return detected!(is_aarch64_feature_detected: "neon" "fp16" "fhm" "dotprod" "i8mm" "bf16" "sve" "sve2" "lse" "rcpc");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    return String::new();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_is_told_by_model_and_features_and_not_by_its_load() {
        let one = "processor\t: 0\nmodel\t\t: 85\ncpu MHz\t\t: 2500.0\nflags\t\t: fpu avx512f\n";
        let busy = one.replace("2500.0", "3100.7").replace("processor\t: 0", "processor\t: 1");
        let other = one.replace("avx512f", "avx512f avx512_bf16");
        assert_eq!(account(one), account(&format!("{one}\n{busy}\n")));
        assert_ne!(account(one), account(&other));
        assert_eq!(account(""), None);
    }

    #[test]
    fn targets_differ_in_flags_and_identity() {
        let (host, generic) = (CompileTarget::host(), CompileTarget::named("generic"));
        assert_eq!(host, CompileTarget::host());
        assert_ne!(host.identity(), generic.identity());
        assert!(generic.flags().contains(&"--iree-llvmcpu-target-cpu=generic".to_owned()));
        assert!(!detected_features().contains(' '));
    }
}
