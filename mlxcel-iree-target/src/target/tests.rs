//! Parsing and printing targets, and names of processors. Without a compiler.

use mlxcel_core::ErrorKind;

use super::cpu::{Code, FAMILIES, Family};
use super::*;

#[test]
fn a_printed_target_parses_to_itself() {
    for text in [
        "llvm-cpu:znver4",
        "llvm-cpu:host",
        "llvm-cpu:x86-64-v3",
        "llvm-cpu:x86_64/generic,+avx2,-fma",
        "llvm-cpu:aarch64/neoverse-n1,+i8mm",
        "cuda:sm_89",
        "cuda:sm_80,+ptx80",
        "rocm:gfx942,-sramecc,+xnack",
        "vulkan-spirv:vp_android_baseline_2022",
        "metal-spirv:macos",
    ] {
        let target: CompileTarget = text.parse().unwrap();
        assert_eq!(target.to_string(), text);
        assert_eq!(target.to_string().parse::<CompileTarget>().unwrap(), target);
    }
    let target: CompileTarget = "CUDA:sm_89".parse().unwrap();
    assert_eq!(target, CompileTarget::new("cuda", "sm_89").unwrap());
}

#[test]
fn an_invalid_target_is_refused_with_the_grammar() {
    for text in [
        "", ":", "cuda", "cuda:", ":sm_89", "cuda:sm 89", "cuda:sm_89,", "cuda:sm_89,ptx80", "cuda:sm_89,+",
        "cuda:sm_89,+a b", "llvm-cpu:x86_64/", "llvm-cpu:/generic", "llvm-cpu:a/b/c", "cuda:sm_89\n",
        "llvm-cpu:é",
    ] {
        let error = text.parse::<CompileTarget>().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{text}");
        assert!(error.message().contains("cuda:sm_89"), "{error}");
    }
    let error = "llvm-cpu:znver4,+fma,-fma".parse::<CompileTarget>().unwrap_err();
    assert_eq!(error.context("feature"), Some("fma"));
}

#[test]
fn every_processor_has_one_name_and_known_features() {
    for family in FAMILIES {
        let mut names: Vec<_> = family.cpus().collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
        for name in names {
            for feature in family.features_of(name).unwrap() {
                assert!(family.features.contains(&feature), "{name}: {feature}");
            }
        }
    }
    let x86 = Family::named("x86_64").unwrap();
    let znver4 = x86.features_of("znver4").unwrap();
    assert!(["avx512bf16", "avx512f", "avx2", "sse3", "sse4a"].iter().all(|name| znver4.contains(name)));
    assert!(!znver4.contains("avxvnni"));
    assert_eq!(x86.features_of("abacus"), None);
    assert_eq!(x86.features_of(""), None);
}

#[test]
fn adding_and_removing_features_follows_their_dependencies() {
    let features = |text: &str| Code::of(&text.parse().unwrap()).unwrap().features;
    let without = features("llvm-cpu:znver4,-avx512f");
    assert!(without.contains("avx2") && !without.iter().any(|name| name.starts_with("avx512")));
    let with = features("llvm-cpu:x86-64-v2,+avx512vnni");
    assert!(["avx512vnni", "avx512f", "avx2", "fma", "avx"].iter().all(|name| with.contains(name)));
    assert!(!features("llvm-cpu:neoverse-v1,-sve").contains("sve"));
}

#[test]
fn processors_are_named_as_llvm_names_them() {
    let none = |_: &'static str| false;
    assert_eq!(model::x86("AuthenticAMD", 0x1a, 0x02, none), Some("znver5"));
    assert_eq!(model::x86("AuthenticAMD", 0x19, 0x11, none), Some("znver4"));
    assert_eq!(model::x86("AuthenticAMD", 0x19, 0x21, none), Some("znver3"));
    assert_eq!(model::x86("GenuineIntel", 6, 0x8f, none), Some("sapphirerapids"));
    assert_eq!(model::x86("GenuineIntel", 6, 0x55, none), Some("skylake-avx512"));
    assert_eq!(model::x86("GenuineIntel", 6, 0x55, |name| name == "avx512vnni"), Some("cascadelake"));
    assert_eq!(model::x86("Abacus", 6, 0x8f, none), None);
    let core = |part: &str| format!("CPU implementer\t: 0x41\nCPU part\t: {part}\n\n");
    assert_eq!(model::arm_of(&core("0xd0c").repeat(4)), Some("neoverse-n1"));
    assert_eq!(model::arm_of(&(core("0xd0b") + &core("0xd05"))), None, "cores of two kinds");
    assert_eq!(model::arm_of("processor : 0\n"), None);
}

#[test]
fn every_model_name_is_known_to_the_compiler() {
    let x86 = Family::named("x86_64").unwrap();
    let has = ["avx512vnni", "avx512bf16", ""];
    for (vendor, family, model) in ["GenuineIntel", "AuthenticAMD"].into_iter().flat_map(|vendor| {
        (0..=0x20).flat_map(move |family| (0..=0xff).map(move |model| (vendor, family, model)))
    }) {
        for wanted in has {
            if let Some(name) = model::x86(vendor, family, model, |feature| feature == wanted) {
                assert!(x86.features_of(name).is_some(), "{name}");
            }
        }
    }
    let arm = Family::named("aarch64").unwrap();
    for implementer in 0..=0xff {
        for part in 0..=0xfff {
            let core = format!("CPU implementer\t: 0x{implementer:02x}\nCPU part\t: 0x{part:03x}\n");
            if let Some(name) = model::arm_of(&core) {
                assert!(arm.features_of(name).is_some(), "{name}");
            }
        }
    }
}

#[test]
fn a_processor_is_described_by_its_name_and_the_differences_from_it() {
    let level = Processor::new("x86_64", Family::named("x86_64").unwrap().features_of("x86-64-v3").unwrap());
    assert_eq!(level.target().unwrap().to_string(), "llvm-cpu:x86-64-v3");
    let more = Processor::new("x86_64", level.features().chain(["aes"]));
    assert_eq!(more.target().unwrap().to_string(), "llvm-cpu:x86-64-v3,+aes");
    assert_eq!(Processor::new("x86_64", []).target().unwrap().to_string(), "llvm-cpu:x86-64");
    let arm = Processor::new("aarch64", ["neon", "dotprod"]);
    assert_eq!(arm.target().unwrap().to_string(), "llvm-cpu:aarch64/generic,+dotprod");
    let other = Processor::new("mips64", []);
    assert_eq!(other.target().unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(other.to_string(), "mips64");
}

#[test]
fn detecting_this_machines_processor_is_deterministic() {
    let host = Processor::detect();
    assert_eq!(host, Processor::detect());
    assert_eq!(host.family(), std::env::consts::ARCH);
    let target = host.target().unwrap();
    let code = Code::of(&target).unwrap();
    assert!(host.features().eq(code.features.iter().copied()), "the target lists all its features");
    host.expect(&target, &code).unwrap();
}
