//! Every target on a machine that has none of the devices: programs are compiled and not run.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use std::sync::Mutex;

use mlxcel_core::{ErrorKind, Precision};
use mlxcel_graph::{Numerics, Outputs, ProgramShape, ProgramWriter, state_layouts};
use mlxcel_iree_target::cpu::{Code, FAMILIES, Family};
use mlxcel_iree_target::threads::share_out;
use mlxcel_iree_target::{
    CompileBackends, CompileTarget, DeviceDescription, VulkanCapability, VulkanProperties,
};
use mlxcel_models::Decoder;
use mlxcel_stablehlo::ElementType::{BF16, F32};

use crate::artifact::Artifacts;
use crate::cache::Cache;
use crate::compiler::{CompileOptions, Compiler};
use crate::programs::ProgramCompiler;
use crate::testing::{checkpoint, host, resolved};

/// How many compilers run side by side.
const SIDE_BY_SIDE: usize = 4;

const PROGRAM: &str = "func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.add %a, %a : tensor<4xf32>
  return %0 : tensor<4xf32>
}";

fn compiler() -> Compiler {
    Compiler::locate(None).expect("no IREE compiler: run `cargo xtask setup`")
}

/// Does `work` for every item, several at a time, and reports failures at the end.
fn for_each<T: Send>(items: Vec<T>, work: impl Fn(T) -> Result<(), String> + Sync) {
    let problems = Mutex::new(Vec::new());
    share_out("test", SIDE_BY_SIDE, items, |item| {
        let problem = work(item).err();
        problems.lock().unwrap().extend(problem);
        Ok(())
    })
    .unwrap();
    let problems = problems.into_inner().unwrap();
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

fn writer(decoder: &Decoder, numerics: Numerics) -> ProgramWriter {
    let layouts = state_layouts(decoder, numerics, 64).unwrap();
    ProgramWriter::with_layouts(decoder.clone(), numerics, layouts).unwrap()
}

/// What the compiler makes of the target's options: the program after the first phase, where the target is
/// written out.
fn account_of(options: &CompileOptions) -> Result<String, String> {
    let mut options = options.clone();
    options.flags.push("--compile-to=preprocessing".to_owned());
    let text = compiler()
        .compile(PROGRAM, &options, None)
        .map_err(|error| format!("{}: {error}", options.target))?;
    Ok(String::from_utf8(text).unwrap())
}

#[test]
fn the_compiler_knows_every_listed_accelerator() {
    let backends = CompileBackends::builtin();
    let targets = ["cuda", "rocm", "vulkan-spirv", "metal-spirv"].into_iter().flat_map(|name| {
        let backend = backends.get(name).unwrap();
        let architectures = backend.known_architectures().into_iter().filter(|name| name != "host");
        architectures
            .map(move |architecture| CompileTarget::new(name, &architecture).unwrap())
            .collect::<Vec<_>>()
    });
    for_each(targets.collect(), |target| {
        let account = account_of(&CompileOptions::new(backends.resolve(&target).unwrap()))?;
        // It accepts unknown names, too.
        let known = account.contains("iree_codegen.target_info");
        if known { Ok(()) } else { Err(format!("{target}: the compiler has no description of it")) }
    });
}

/// The device that the compiler's description of a Vulkan target is of, with its first subgroup size.
fn described_device(account: &str) -> VulkanProperties {
    let after = |name: &str| account.split_once(name).map_or("", |(_, rest)| rest);
    let listed = |name: &str| -> Vec<&str> {
        let values = after(name).split([',', '>', ']']).next().unwrap();
        values.split('|').map(str::trim).collect()
    };
    let (compute, storage) = (listed("compute = "), listed("storage = "));
    let capabilities = VulkanCapability::ALL.into_iter().filter(|capability| match capability {
        VulkanCapability::DotProduct => account.contains("dot = dp4xi8toi32"),
        VulkanCapability::Float16 => compute.contains(&"fp16"),
        VulkanCapability::Float64 => compute.contains(&"fp64"),
        VulkanCapability::Int8 => compute.contains(&"int8"),
        VulkanCapability::Int16 => compute.contains(&"int16"),
        VulkanCapability::Int64 => compute.contains(&"int64"),
        VulkanCapability::Storage8 => storage.contains(&"b8"),
        VulkanCapability::Storage16 => storage.contains(&"b16"),
        _ => false,
    });
    let size = listed("subgroup_size_choices = [")[0].parse().unwrap();
    let mut properties = VulkanProperties::new("a card", size, capabilities);
    properties.workgroup_threads = listed("max_thread_count_per_workgroup = ")[0].parse().unwrap();
    properties
}

#[test]
fn a_vulkan_target_requires_exactly_what_the_compiler_describes() {
    let backend = CompileBackends::builtin().get("vulkan-spirv").unwrap();
    let mut names = backend.known_architectures();
    names.push("spirv,+float16,+int8,+int16,+storage8,+storage16,+subgroup16,+threads256".to_owned());
    for_each(names, |name| {
        let target = resolved(&format!("vulkan-spirv:{name}"));
        let device = described_device(&account_of(&CompileOptions::new(target.clone()))?);
        let runs =
            |device: VulkanProperties| target.check_device(&DeviceDescription::of_vulkan(device)).is_ok();
        if !runs(device.clone()) {
            return Err(format!("{name}: it requires more than the compiler describes: {device:?}"));
        }
        for capability in &device.capabilities {
            let mut lesser = device.clone();
            lesser.capabilities.remove(capability);
            if runs(lesser) {
                return Err(format!("{name}: it runs without {capability}"));
            }
        }
        let mut lesser = device.clone();
        lesser.workgroup_threads -= 1;
        let mut other = device.clone();
        (other.subgroup_size, other.subgroup_sizes) = (4, (4, 4));
        if runs(lesser) || runs(other) {
            return Err(format!("{name}: it runs with fewer threads or other subgroups"));
        }
        Ok(())
    });
}

/// The compiler's output for a processor directly, without our options.
fn asked_for_processor(cpu: &str, triple: &str) -> (String, String) {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("program.mlir"), PROGRAM).unwrap();
    let output = Command::new(compiler().path())
        .args(["--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=llvm-cpu"])
        .arg(format!("--iree-llvmcpu-target-triple={triple}"))
        .arg(format!("--iree-llvmcpu-target-cpu={cpu}"))
        .args(["--compile-to=preprocessing", "program.mlir"])
        .current_dir(folder.path())
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

/// The processor in the compiler's account of a target, and its features of this family.
fn processor_in<'a>(account: &'a str, family: &Family) -> (&'a str, BTreeSet<&'a str>) {
    let value = |name: &str| account.split_once(name).unwrap().1.split('"').next().unwrap();
    let features = value("cpu_features = \"").split(',').filter_map(|name| name.strip_prefix('+'));
    (value("{cpu = \""), features.filter(|name| family.features.contains(name)).collect())
}

#[test]
fn the_compiler_knows_every_listed_processor() {
    for family in FAMILIES {
        // For an unknown processor, it lists the known ones.
        let (_, words) = asked_for_processor("abacus", family.triple);
        let listed = words.lines().find_map(|line| line.strip_prefix("List of accepted CPUs: ")).unwrap();
        let mut accepted: BTreeSet<&str> = listed.trim().split(", ").collect();
        accepted.insert("generic");
        assert_eq!(family.cpus().collect::<BTreeSet<_>>(), accepted);
    }
}

#[test]
fn processors_have_the_features_that_the_compiler_gives_them() {
    let cpus = [
        "x86-64-v2", "haswell", "skylake-avx512", "sapphirerapids", "znver2", "znver5", "neoverse-n1",
        "apple-m1", "a64fx",
    ];
    for_each(cpus.to_vec(), |cpu| {
        let code = Code::of(&format!("llvm-cpu:{cpu}").parse().unwrap()).unwrap();
        let (account, _) = asked_for_processor(cpu, code.family.triple);
        let (_, theirs) = processor_in(&account, code.family);
        // An architecture version implies features that the compiler does not list.
        let versioned = code.family.name == "aarch64";
        let agree = if versioned { theirs.is_subset(&code.features) } else { theirs == code.features };
        if agree { Ok(()) } else { Err(format!("{cpu}: {:?} are {theirs:?}", code.features)) }
    });
}

#[test]
fn the_host_target_matches_the_compilers() {
    let host = host();
    let code = Code::of(host.target()).unwrap();
    let (account, _) = asked_for_processor("host", code.family.triple);
    let (cpu, theirs) = processor_in(&account, code.family);
    assert_eq!(code.features, theirs);
    assert_eq!(code.cpu, cpu);
    let stated = account_of(&CompileOptions::new(host.clone())).unwrap();
    assert_eq!(processor_in(&stated, code.family).0, cpu);
}

#[test]
fn unsupported_types_of_a_target_are_rejected_before_compiling() {
    let folder = tempfile::tempdir().unwrap();
    let artifacts = Artifacts::new(None, Cache::open(Some(folder.path())).unwrap());
    let numerics = Numerics { precision: Precision::Native, operand: BF16, kv: BF16 };
    let target = resolved("vulkan-spirv:rdna3");
    let writer = writer(&checkpoint("llama").decoder().unwrap(), numerics);
    let error = ProgramCompiler::new(writer, target, artifacts).unwrap_err();
    assert_eq!((error.kind(), error.context("element_type")), (ErrorKind::Unsupported, Some("bf16")));
    assert_eq!(error.context("target"), Some("vulkan-spirv:rdna3"));
}

/// Nothing of it is run.
mod nightly {
    use super::*;

    #[test]
    fn a_checkpoints_programs_compile_for_every_target() {
        let decoder = checkpoint("llama").decoder().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let artifacts = Artifacts::new(None, Cache::open(Some(folder.path())).unwrap());
        let shapes =
            [64, 1].map(|tokens| ProgramShape { rows: vec![tokens], length: 256, outputs: Outputs::Last });
        let targets = [
            ("llvm-cpu:x86-64-v3", BF16, "embedded-elf-x86_64"),
            ("llvm-cpu:neoverse-v1", BF16, "embedded-elf-arm_64"),
            ("cuda:sm_89", BF16, "cuda-nvptx-fb"),
            ("rocm:gfx942", BF16, "rocm-hsaco-fb"),
            ("vulkan-spirv:spirv,+float16,+int8,+int16,+storage8,+storage16", F32, "vulkan-spirv-fb"),
            (
                "vulkan-spirv:spirv,+float16,+int64,+int8,+int16,+storage8,+storage16",
                F32,
                "vulkan-spirv-bda-v1",
            ),
            ("metal-spirv:macos", F32, "metal-msl-fb"),
        ];
        let work =
            targets.iter().flat_map(|target| shapes.iter().map(move |shape| (target, shape))).collect();
        for_each(work, |((target, operand, format), shape)| {
            let target = resolved(target);
            // The checkpoint's own type, or what stands in for it.
            let element = target.element_type_for(BF16);
            assert_eq!(element, *operand, "{target}");
            let precision = if element == F32 { Precision::Exact } else { Precision::Native };
            let numerics = Numerics { precision, operand: element, kv: element };
            let compiler =
                ProgramCompiler::new(writer(&decoder, numerics), target.clone(), artifacts.clone()).unwrap();
            let artifact =
                compiler.compile(shape, None).map_err(|error| format!("{target}, {shape}: {error}"))?;
            let holds = artifact.bytes.windows(format.len()).any(|bytes| bytes == format.as_bytes());
            if holds { Ok(()) } else { Err(format!("{target}, {shape}: no {format} inside")) }
        });
    }
}
