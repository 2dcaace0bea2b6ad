//! LLVM's name of this machine's processor: it determines how code is tuned; features determine whether it
//! runs.
//!
//! Vendors number their models (Intel's and AMD's optimisation guides; the main identification register of
//! Arm and others); LLVM's host detection maps the same numbers to the same names.

/// The processor's name, if vendor and model are known here.
#[cfg(target_arch = "x86_64")]
pub(super) fn name() -> Option<&'static str> {
    let cpuid = raw_cpuid::CpuId::new();
    let info = cpuid.get_feature_info()?;
    let features = super::processor::detected();
    let has = |feature| features.contains(feature);
    x86(cpuid.get_vendor_info()?.as_str(), info.family_id(), info.model_id(), has)
}

/// The processor's name, if vendor and model are known here and all its cores are equal.
#[cfg(all(target_arch = "aarch64", target_os = "linux"))]
#[allow(clippy::disallowed_methods, reason = "the kernel's own file")]
pub(super) fn name() -> Option<&'static str> {
    arm_of(&std::fs::read_to_string("/proc/cpuinfo").ok()?)
}

/// The vendor's first processor; later ones support all its features.
#[cfg(all(target_arch = "aarch64", target_os = "macos"))]
pub(super) fn name() -> Option<&'static str> {
    Some("apple-m1")
}

#[cfg(not(any(
    target_arch = "x86_64",
    all(target_arch = "aarch64", any(target_os = "linux", target_os = "macos"))
)))]
pub(super) fn name() -> Option<&'static str> {
    None
}

/// The name of an x86 processor.
#[cfg(any(target_arch = "x86_64", test))]
pub(super) fn x86(
    vendor: &str,
    family: u8,
    model: u8,
    has: impl Fn(&'static str) -> bool,
) -> Option<&'static str> {
    match vendor {
        "GenuineIntel" => intel(family, model, has),
        "AuthenticAMD" => amd(family, model),
        _ => None,
    }
}

#[cfg(any(target_arch = "x86_64", test))]
fn intel(family: u8, model: u8, has: impl Fn(&'static str) -> bool) -> Option<&'static str> {
    Some(match (family, model) {
        (6, 0x0f | 0x16) => "core2",
        (6, 0x17 | 0x1d) => "penryn",
        (6, 0x1a | 0x1e | 0x1f | 0x2e) => "nehalem",
        (6, 0x25 | 0x2c | 0x2f) => "westmere",
        (6, 0x2a | 0x2d) => "sandybridge",
        (6, 0x3a | 0x3e) => "ivybridge",
        (6, 0x3c | 0x3f | 0x45 | 0x46) => "haswell",
        (6, 0x3d | 0x47 | 0x4f | 0x56) => "broadwell",
        (6, 0x4e | 0x5e | 0x8e | 0x9e | 0xa5 | 0xa6) => "skylake",
        // Three server generations share this number.
        (6, 0x55) if has("avx512bf16") => "cooperlake",
        (6, 0x55) if has("avx512vnni") => "cascadelake",
        (6, 0x55) => "skylake-avx512",
        (6, 0x66) => "cannonlake",
        (6, 0x7d | 0x7e) => "icelake-client",
        (6, 0x6a | 0x6c) => "icelake-server",
        (6, 0xa7) => "rocketlake",
        (6, 0x8c | 0x8d) => "tigerlake",
        (6, 0x8f) => "sapphirerapids",
        (6, 0xcf) => "emeraldrapids",
        (6, 0xad) => "graniterapids",
        (6, 0xae) => "graniterapids-d",
        (6, 0x97 | 0x9a) => "alderlake",
        (6, 0xb7 | 0xba | 0xbf) => "raptorlake",
        (6, 0xaa | 0xac) => "meteorlake",
        (6, 0xb5 | 0xc5) => "arrowlake",
        (6, 0xc6) => "arrowlake-s",
        (6, 0xbd) => "lunarlake",
        (6, 0xcc) => "pantherlake",
        (6, 0x1c | 0x26 | 0x27 | 0x35 | 0x36) => "bonnell",
        (6, 0x37 | 0x4a | 0x4c | 0x4d | 0x5a | 0x5d) => "silvermont",
        (6, 0x5c | 0x5f) => "goldmont",
        (6, 0x7a) => "goldmont-plus",
        (6, 0x86 | 0x8a | 0x96 | 0x9c) => "tremont",
        (6, 0xbe) => "gracemont",
        (6, 0xaf) => "sierraforest",
        (6, 0xb6) => "grandridge",
        (6, 0xdd) => "clearwaterforest",
        (6, 0x57) => "knl",
        (6, 0x85) => "knm",
        _ => return None,
    })
}

#[cfg(any(target_arch = "x86_64", test))]
fn amd(family: u8, model: u8) -> Option<&'static str> {
    Some(match (family, model) {
        (0x10, _) => "amdfam10",
        (0x14, _) => "btver1",
        (0x15, 0x60..=0x7f) => "bdver4",
        (0x15, 0x30..=0x3f) => "bdver3",
        (0x15, 0x02 | 0x10..=0x1f) => "bdver2",
        (0x15, 0x00..=0x0f) => "bdver1",
        (0x16, _) => "btver2",
        (0x17, 0x00..=0x2f) => "znver1",
        (0x17, _) => "znver2",
        (0x19, 0x00..=0x0f | 0x20..=0x5f) => "znver3",
        (0x19, 0x10..=0x1f | 0x60..=0xaf) => "znver4",
        (0x1a, 0x00..=0x4f | 0x60..=0x77) => "znver5",
        _ => return None,
    })
}

/// The name of an Arm processor, from the Linux kernel's description of its cores.
#[cfg(any(all(target_arch = "aarch64", target_os = "linux"), test))]
pub(super) fn arm_of(cpuinfo: &str) -> Option<&'static str> {
    let values = |name: &'static str| {
        cpuinfo
            .lines()
            .filter_map(|line| line.split_once(':'))
            .filter(move |(key, _)| key.trim() == name)
            .map(|(_, value)| value.trim())
    };
    let mut cores = values("CPU implementer").zip(values("CPU part"));
    let first = cores.next()?;
    // Code is tuned differently for big and little cores, and a thread may run on either.
    cores.all(|core| core == first).then(|| arm(first.0, first.1)).flatten()
}

#[cfg(any(all(target_arch = "aarch64", target_os = "linux"), test))]
fn arm(implementer: &str, part: &str) -> Option<&'static str> {
    Some(match (implementer, part) {
        ("0x41", "0xd02") => "cortex-a34",
        ("0x41", "0xd04") => "cortex-a35",
        ("0x41", "0xd03") => "cortex-a53",
        ("0x41", "0xd05") => "cortex-a55",
        ("0x41", "0xd07") => "cortex-a57",
        ("0x41", "0xd08") => "cortex-a72",
        ("0x41", "0xd09") => "cortex-a73",
        ("0x41", "0xd0a") => "cortex-a75",
        ("0x41", "0xd0b") => "cortex-a76",
        ("0x41", "0xd0e") => "cortex-a76ae",
        ("0x41", "0xd0d") => "cortex-a77",
        ("0x41", "0xd41") => "cortex-a78",
        ("0x41", "0xd42") => "cortex-a78ae",
        ("0x41", "0xd4b") => "cortex-a78c",
        ("0x41", "0xd44") => "cortex-x1",
        ("0x41", "0xd4c") => "cortex-x1c",
        ("0x41", "0xd46") => "cortex-a510",
        ("0x41", "0xd80") => "cortex-a520",
        ("0x41", "0xd47") => "cortex-a710",
        ("0x41", "0xd4d") => "cortex-a715",
        ("0x41", "0xd81") => "cortex-a720",
        ("0x41", "0xd87") => "cortex-a725",
        ("0x41", "0xd48") => "cortex-x2",
        ("0x41", "0xd4e") => "cortex-x3",
        ("0x41", "0xd82") => "cortex-x4",
        ("0x41", "0xd85") => "cortex-x925",
        ("0x41", "0xd4a") => "neoverse-e1",
        ("0x41", "0xd0c") => "neoverse-n1",
        ("0x41", "0xd49") => "neoverse-n2",
        ("0x41", "0xd8e") => "neoverse-n3",
        ("0x41", "0xd40") => "neoverse-v1",
        ("0x41", "0xd4f") => "neoverse-v2",
        ("0x41", "0xd84") => "neoverse-v3",
        ("0x41", "0xd83") => "neoverse-v3ae",
        ("0x43", "0x0a1") => "thunderxt88",
        ("0x43", "0x0af") => "thunderx2t99",
        ("0x46", "0x001") => "a64fx",
        ("0x46", "0x003") => "fujitsu-monaka",
        ("0x48", "0xd01") => "tsv110",
        ("0x4e", "0x004") => "carmel",
        ("0x4e", "0x010") => "olympus",
        ("0x51", "0x001") => "oryon-1",
        ("0x61", "0x022" | "0x023" | "0x024" | "0x025" | "0x028" | "0x029") => "apple-m1",
        ("0x61", "0x032" | "0x033" | "0x034" | "0x035" | "0x038" | "0x039") => "apple-m2",
        ("0x6d", "0xd49") => "cobalt-100",
        ("0xc0", "0xac3") => "ampere1",
        ("0xc0", "0xac4") => "ampere1a",
        ("0xc0", "0xac5") => "ampere1b",
        _ => return None,
    })
}
