//! The registry, resolution of targets, and compatible devices. Without a compiler.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use mlxcel_core::{Error, ErrorKind};

use super::*;
use crate::target::Processor;

fn choice(backend: Option<&str>, target: Option<&str>) -> TargetChoice {
    TargetChoice { backend: backend.map(str::to_owned), target: target.map(str::to_owned) }
}

#[derive(Debug)]
struct Abacus;

impl CompileBackend for Abacus {
    fn name(&self) -> &str {
        "abacus"
    }
    fn known_architectures(&self) -> Vec<String> {
        vec!["ten-beads".to_owned()]
    }
    fn detect_target(&self) -> Result<CompileTarget> {
        CompileTarget::new("abacus", "ten-beads")
    }
    fn resolve(&self, target: &CompileTarget) -> Result<CompileTarget> {
        Ok(target.clone())
    }
    fn options(&self, _: &CompileTarget) -> Result<Vec<String>> {
        Ok(vec!["--beads".to_owned()])
    }
    fn element_types(&self, _: &CompileTarget) -> Vec<ElementType> {
        vec![]
    }
    fn drivers(&self) -> &[&str] {
        &["fingers"]
    }
}

#[test]
fn names_are_case_insensitive_and_unique() {
    let mut backends = CompileBackends::builtin();
    assert_eq!(
        backends.names().collect::<Vec<_>>(),
        ["cuda", "llvm-cpu", "metal-spirv", "rocm", "vulkan-spirv"]
    );
    assert_eq!(backends.get("CUDA").unwrap().name(), "cuda");
    backends.register("Abacus", || Ok(Arc::new(Abacus))).unwrap();
    let error = backends.register("ABACUS", || Ok(Arc::new(Abacus))).unwrap_err();
    assert_eq!((error.kind(), error.context("backend")), (ErrorKind::InvalidInput, Some("ABACUS")));
    backends.replace("aBACUS", || Ok(Arc::new(Abacus)));
    assert_eq!(backends.detect("abacus").unwrap().to_string(), "abacus:ten-beads");
    assert_eq!(backends.detect("abacus").unwrap().options(), ["--beads"]);
}

#[test]
fn an_unknown_name_lists_the_known_ones() {
    let error = CompileBackends::builtin().get("tpu").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert_eq!(error.context("known"), Some("cuda, llvm-cpu, metal-spirv, rocm, vulkan-spirv"));
    assert_eq!(CompileBackends::empty().get("cuda").unwrap_err().context("known"), Some(""));
}

#[test]
fn a_providers_error_surfaces_when_its_backend_is_requested() {
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&asked);
    let mut backends = CompileBackends::builtin();
    backends
        .register("sick", move || {
            counter.fetch_add(1, Ordering::Relaxed);
            Err(Error::new(ErrorKind::Toolchain, "load a plugin", "its library is missing"))
        })
        .unwrap();
    assert!(backends.names().any(|name| name == "sick"));
    backends.resolve(&"cuda:sm_89".parse().unwrap()).unwrap();
    assert_eq!(asked.load(Ordering::Relaxed), 0);
    let error = backends.resolve(&"sick:any".parse().unwrap()).unwrap_err();
    assert_eq!((error.kind(), error.context("backend")), (ErrorKind::Toolchain, Some("sick")));
    backends.get("sick").map(drop).unwrap_err();
    assert_eq!(asked.load(Ordering::Relaxed), 2, "and on each request");
}

#[test]
fn a_backend_that_resolves_to_anothers_target_is_an_error() {
    let mut backends = CompileBackends::empty();
    backends.replace("cuda", || Ok(Arc::new(Abacus)));
    let error = backends.resolve(&"cuda:sm_89".parse().unwrap()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Internal);
}

#[test]
fn unknown_architectures_and_features_list_the_known_ones() {
    let backends = CompileBackends::builtin();
    for (target, known) in [
        ("llvm-cpu:abacus", "znver4"),
        ("llvm-cpu:aarch64/znver4", "neoverse-n1"),
        ("llvm-cpu:mips/r4000", "x86_64/"),
        ("llvm-cpu:generic", "aarch64/generic"),
        ("llvm-cpu:znver4,+sve", "avx512bf16"),
        ("cuda:sm_90", "sm_89"),
        ("cuda:sm_89,+fast", "ptx"),
        ("cuda:sm_89,+ptx", "ptx"),
        ("rocm:gfx1", "gfx942"),
        ("rocm:gfx942,+fast", "xnack"),
        ("vulkan-spirv:abacus", "rdna3"),
        ("vulkan-spirv:rdna3,+fast", "none"),
        ("vulkan-spirv:spirv,+fast", "storage16"),
        ("metal-spirv:windows", "macos"),
    ] {
        let error = backends.resolve(&target.parse().unwrap()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{target}");
        assert!(error.context("known").unwrap().contains(known), "{error}");
        let parsed: CompileTarget = target.parse().unwrap();
        assert!(!backends.get(parsed.backend()).unwrap().supports_target(&parsed));
    }
}

#[test]
fn a_newer_cuda_device_is_told_the_architecture_that_it_runs() {
    let refused = |target: &str| {
        let error = CompileBackends::builtin().resolve(&target.parse().unwrap()).unwrap_err();
        error.context("runs on it").map(str::to_owned)
    };
    assert_eq!(refused("cuda:sm_90").as_deref(), Some("cuda:sm_89"));
    assert_eq!(refused("cuda:sm_100").as_deref(), Some("cuda:sm_89"));
    assert_eq!(refused("cuda:sm_50"), None);
    assert_eq!(refused("cuda:hopper"), None);
}

#[test]
fn every_known_architecture_resolves_to_itself() {
    let backends = CompileBackends::builtin();
    for name in backends.names() {
        let backend = backends.get(name).unwrap();
        for architecture in backend.known_architectures().iter().filter(|name| *name != "host") {
            let target = CompileTarget::new(name, architecture).unwrap();
            let resolved = backends.resolve(&target).unwrap();
            assert_eq!(resolved.target(), &target);
            assert!(resolved.element_types().contains(&ElementType::F32));
            assert!(!resolved.options().is_empty());
        }
    }
}

#[test]
fn equivalent_targets_are_equal() {
    let same = |one, other| assert_eq!(resolved(one), resolved(other), "{one} {other}");
    same("llvm-cpu:znver4", "llvm-cpu:x86_64/znver4,+avx2");
    same("llvm-cpu:znver4,-avx512f", "LLVM-CPU:znver4,-avx512f,-avx512bw");
    same("llvm-cpu:host", "llvm-cpu:host");
    assert_ne!(resolved("llvm-cpu:x86_64/generic").options(), resolved("llvm-cpu:aarch64/generic").options());
    assert_ne!(resolved("llvm-cpu:znver4"), resolved("llvm-cpu:znver4,-avx512bf16"));
}

#[test]
fn the_host_resolves_to_an_explicit_target() {
    let host = host();
    assert!(!host.to_string().contains("host") && !host.fingerprint().contains("host"));
    assert!(host.options().iter().all(|option| !option.ends_with("host")));
    let cpu = host.options().iter().find(|option| option.starts_with("--iree-llvmcpu-target-cpu=")).unwrap();
    assert!(host.to_string().contains(cpu.split_once('=').unwrap().1));
    assert_eq!(resolved(&host.to_string()), host, "its name resolves to itself");
}

#[test]
fn options_override_the_environment_and_the_environment_the_device() {
    let backends = CompileBackends::builtin();
    let explicit: CompileTarget = "rocm:gfx942".parse().unwrap();
    let select = |environment: TargetChoice, explicit: Option<&CompileTarget>| {
        environment
            .select(&backends, explicit, &DeviceDescription::of_driver("local-task"))
            .map(|target| target.to_string())
    };
    let host = host().to_string();
    assert_eq!(select(choice(None, None), None).unwrap(), host);
    assert_eq!(select(choice(Some("LLVM-CPU"), None), None).unwrap(), host);
    assert_eq!(select(choice(None, Some("cuda:sm_89")), None).unwrap(), "cuda:sm_89");
    assert_eq!(select(choice(None, Some("x86-64-v3")), None).unwrap(), "llvm-cpu:x86-64-v3");
    assert_eq!(select(choice(Some("cuda"), Some("sm_80,+ptx80")), None).unwrap(), "cuda:sm_80,+ptx80");
    assert_eq!(select(choice(Some("cuda"), Some("CUDA:sm_80")), None).unwrap(), "cuda:sm_80");
    assert_eq!(select(choice(Some("cuda"), Some("nonsense:")), Some(&explicit)).unwrap(), "rocm:gfx942");

    let error = select(choice(Some("cuda"), Some("rocm:gfx942")), None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert_eq!(error.context("MLXCEL_COMPILE_BACKEND"), Some("cuda"));
    assert_eq!(error.context("MLXCEL_COMPILE_TARGET"), Some("rocm:gfx942"));
    let error = select(choice(Some("tpu"), None), None).unwrap_err();
    assert_eq!((error.kind(), error.context("MLXCEL_COMPILE_BACKEND")), (ErrorKind::NotFound, Some("tpu")));
    let error = select(choice(None, Some("cuda:sm_2048")), None).unwrap_err();
    assert_eq!(error.context("MLXCEL_COMPILE_TARGET"), Some("cuda:sm_2048"));
}

#[test]
fn the_element_type_depends_on_the_target() {
    use ElementType::{BF16, F16, F32};
    assert_eq!(resolved("vulkan-spirv:rdna3").element_type_for(BF16), F32);
    assert_eq!(resolved("metal-spirv:macos").element_type_for(BF16), F32);
    assert_eq!(resolved("metal-spirv:macos").element_type_for(F16), F32);
    assert_eq!(resolved("rocm:gfx942").element_type_for(F16), F16);
    assert_eq!(resolved("cuda:sm_89").element_type_for(BF16), BF16);
    assert_eq!(host().element_type_for(BF16), BF16);
}

#[test]
fn programs_and_devices_are_matched_by_driver() {
    let refused = |target: &str, driver: &str| {
        let error = resolved(target).check_device(&DeviceDescription::of_driver(driver)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert_eq!(error.context("target"), Some(target));
        assert!(error.context("device").unwrap().starts_with(driver), "{error}");
        error.context("drivers that do").unwrap().to_owned()
    };
    assert_eq!(refused("cuda:sm_89", "local-task"), "cuda");
    assert_eq!(refused("vulkan-spirv:rdna3", "cuda"), "vulkan");
    assert_eq!(refused("metal-spirv:macos", "local-sync"), "metal");
    assert_eq!(refused("rocm:gfx942", "cuda"), "hip");
    assert_eq!(refused("llvm-cpu:znver4", "cuda"), "local-task, local-sync");
    for driver in ["local-task", "local-sync"] {
        host().check_device(&DeviceDescription::of_driver(driver)).unwrap();
        assert_eq!(default_backend(driver), "llvm-cpu");
    }
    let cuda = DeviceDescription::of_driver("cuda");
    resolved("cuda:sm_89").check_device(&cuda).unwrap();
    resolved("cuda:sm_80").check_device(&cuda.clone().with_architecture("sm_90")).unwrap();
    let error = resolved("cuda:sm_89").check_device(&cuda.with_architecture("sm_75")).unwrap_err();
    assert_eq!(error.context("device"), Some("cuda on sm_75"));
}

#[test]
fn code_for_missing_instructions_is_refused_with_both_names() {
    let device = |family: &str, features: &str| {
        let processor = Processor::new(family, features.split_ascii_whitespace());
        DeviceDescription::of_driver("local-task").with_processor(processor)
    };
    let v3 = device("x86_64", "sse3 ssse3 sse4.1 sse4.2 cx16 popcnt avx avx2 bmi bmi2 f16c fma lzcnt movbe");
    resolved("llvm-cpu:x86-64-v2").check_device(&v3).unwrap();
    resolved("llvm-cpu:x86-64-v3").check_device(&v3).unwrap();
    resolved("llvm-cpu:x86-64-v4,-avx512f").check_device(&v3).unwrap();
    let error = resolved("llvm-cpu:x86-64-v4").check_device(&v3).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert_eq!(error.context("target"), Some("llvm-cpu:x86-64-v4"));
    assert_eq!(error.context("processor"), Some("llvm-cpu:x86-64-v3"));
    assert_eq!(error.context("missing"), Some("avx512bw, avx512cd, avx512dq, avx512f, avx512vl"));
    let error = resolved("llvm-cpu:neoverse-n1").check_device(&v3).unwrap_err();
    assert!(error.message().contains("another instruction set"), "{error}");
    let arm = device("aarch64", "neon aes sha2");
    resolved("llvm-cpu:aarch64/generic").check_device(&arm).unwrap();
    let error = resolved("llvm-cpu:neoverse-n1").check_device(&arm).unwrap_err();
    assert_eq!(error.context("missing"), Some("crc, dotprod, fullfp16, lse, rcpc, rdm"));
}
