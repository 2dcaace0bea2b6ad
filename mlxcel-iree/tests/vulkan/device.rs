//! Devices and programs for them: listed, found by name, compiled for their properties, and refused.

use mlxcel_core::{Backend, ErrorKind, GenerateExt, GenerateOptions, LoadOptions, Precision, SessionOptions};
use mlxcel_iree::devices::DeviceKind;
use mlxcel_iree::{IreeBackend, bundle};

use crate::exact::run;
use crate::{LLAMA_GREEDY, LLAMA_PROMPT, engine, llama, options, own_device};

#[test]
fn the_device_is_listed_and_found_by_path_and_number() {
    let found = own_device();
    eprintln!("{found}");
    assert!(found.unusable.is_none() && found.kind != DeviceKind::Cpu && found.memory_bytes > Some(0));
    assert!(found.target.as_ref().unwrap().starts_with("vulkan-spirv:spirv,"));
    let folder = llama();
    let load = |device: &str| engine().load(&folder.clone().into(), &options().with_device(device));
    assert!(load(&found.device).unwrap().info().device.starts_with(&found.device));
    let error = load("vulkan:GPU-none").map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.context("known").unwrap().contains(&found.device));
}

#[test]
fn programs_for_another_subgroup_size_are_refused_before_they_are_compiled() {
    let folder = llama();
    let sizes = own_device().subgroup_sizes.unwrap();
    let others = [("vulkan-spirv:valhall", 16), ("vulkan-spirv:ampere", 32), ("vulkan-spirv:cdna3", 64)];
    for (target, _) in others.into_iter().filter(|(_, size)| sizes != (*size, *size)) {
        let engine = engine().with_compiler("/nowhere").with_compile_target(target.parse().unwrap());
        let error = engine.load(&folder.clone().into(), &options()).map(drop).unwrap_err();
        assert_eq!(
            (error.kind(), error.context("target")),
            (ErrorKind::Unsupported, Some(target)),
            "{error}"
        );
        assert!(error.context("missing").unwrap().contains("subgroups of"), "{error}");
    }
}

#[test]
fn programs_without_subgroup_operations_are_exact() {
    // What a device gets whose driver chooses between subgroup sizes.
    let target = "vulkan-spirv:spirv,+float16,+int16,+int8,+storage16,+storage8";
    run(&llama(), &engine().with_compile_target(target.parse().unwrap())).unwrap();
}

#[test]
fn a_bundle_for_the_device_runs() {
    let place = tempfile::tempdir().unwrap();
    let checkpoint = llama();
    let folder = place.path().join("bundle");
    let mut wanted = bundle::BundleOptions::default().with_targets(["vulkan-spirv:host"]);
    wanted.load = LoadOptions::default().with_precision(Precision::Exact).with_capacity(150);
    bundle::write(&engine(), &checkpoint.as_path().into(), &folder, &wanted).unwrap();
    let engine = IreeBackend::new().with_trusted_bundle(&folder);
    let model = engine.load(&folder.clone().into(), &options().with_capacity(150)).unwrap();
    let mut session = model.open_session(&SessionOptions::default()).unwrap();
    let text = session.generate_greedy(&LLAMA_PROMPT, &GenerateOptions::new(6)).unwrap();
    assert_eq!(text.tokens, LLAMA_GREEDY);
}
