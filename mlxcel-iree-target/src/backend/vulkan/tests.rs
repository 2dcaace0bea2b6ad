//! Targets of Vulkan devices.

use mlxcel_core::ErrorKind;

use super::*;
use crate::CompileBackends;

fn device(subgroup_sizes: (u32, u32), capabilities: &[VulkanCapability]) -> DeviceDescription {
    let mut properties = VulkanProperties::new("a card", subgroup_sizes.1, capabilities.iter().copied());
    properties.subgroup_sizes = subgroup_sizes;
    properties.workgroup_threads = 1536;
    DeviceDescription::of_vulkan(properties)
}

fn target_of(device: &DeviceDescription) -> Result<String> {
    CompileBackends::builtin().of_device(device).map(|target| target.to_string())
}

#[test]
fn the_target_of_a_device_is_what_it_has() {
    let mut capabilities = REQUIRED.to_vec();
    let target = target_of(&device((8, 8), &capabilities)).unwrap();
    assert_eq!(
        target,
        "vulkan-spirv:spirv,+float16,+int16,+int8,+storage16,+storage8,+subgroup8,+threads1024"
    );
    // Its driver may choose either size, so no operation of code may depend on it.
    let target = target_of(&device((32, 64), &capabilities)).unwrap();
    assert_eq!(target, "vulkan-spirv:spirv,+float16,+int16,+int8,+storage16,+storage8");
    capabilities.retain(|capability| *capability != VulkanCapability::Storage16);
    let error = target_of(&device((8, 8), &capabilities)).unwrap_err();
    assert_eq!((error.kind(), error.context("missing")), (ErrorKind::Unsupported, Some("storage16")));
}

#[test]
fn the_device_of_a_target_runs_it_and_others_are_refused_by_what_they_lack() {
    let all = VulkanCapability::ALL;
    let backends = CompileBackends::builtin();
    let own = backends.of_device(&device((8, 8), &all)).unwrap();
    own.check_device(&device((8, 8), &all)).unwrap();
    let missing = |target: &str, device: &DeviceDescription| {
        let error = backends.resolve(&target.parse().unwrap()).unwrap().check_device(device).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        error.context("missing").unwrap().to_owned()
    };
    for target in ["vulkan-spirv:valhall", "vulkan-spirv:ampere", "vulkan-spirv:rdna3"] {
        assert!(missing(target, &device((8, 8), &all)).starts_with("subgroups of "), "{target}");
    }
    assert!(missing("vulkan-spirv:rdna3", &device((32, 64), &all)).starts_with("subgroups of 32 or 64"));
    let narrow = device((8, 8), &REQUIRED);
    assert!(missing(&own.to_string(), &narrow).starts_with("dot-product, float64, "));
    assert!(missing("vulkan-spirv:llvmpipe", &narrow).contains("int64"));
    let unknown = DeviceDescription::of_driver(DRIVER);
    assert_eq!(missing("vulkan-spirv:llvmpipe", &unknown), "the device's properties");
}

#[test]
fn code_shaped_for_a_maker_is_for_its_devices() {
    let with_maker = |maker| {
        let mut device = device((32, 32), &VulkanCapability::ALL);
        device.vulkan.as_mut().unwrap().maker = maker;
        device
    };
    let backends = CompileBackends::builtin();
    let options = |maker| backends.of_device(&with_maker(maker)).unwrap().options().join(" ");
    assert!(options(0x10de).contains("arch = \"sm_80\""));
    assert!(options(0x10de).contains("max_workgroup_memory_bytes = 49152"));
    assert!(options(0x1002).contains("arch = \"gfx1100\""));
    assert!(options(0).contains("arch = \"\"") && options(0).contains("= 16384"));
    let target = backends.of_device(&with_maker(0x10de)).unwrap();
    assert!(target.to_string().contains(",+nvidia"), "{target}");
    target.check_device(&with_maker(0x10de)).unwrap();
    let error = target.check_device(&with_maker(0x1002)).unwrap_err();
    assert_eq!(error.context("missing"), Some("a GPU of nvidia"));
    let both = format!("{target},+amd").parse().unwrap();
    assert_eq!(backends.resolve(&both).unwrap_err().context("feature"), Some("nvidia"));
}

#[test]
fn addresses_have_64_bits() {
    let options = |capabilities: &[VulkanCapability]| {
        let device = device((8, 8), capabilities);
        CompileBackends::builtin().of_device(&device).unwrap().options().join(" ")
    };
    assert!(options(&VulkanCapability::ALL).contains("vulkan-spirv-bda-v1"));
    assert!(options(&REQUIRED).contains("vulkan-spirv-fb"));
}

#[test]
fn architectures_whose_programs_are_miscompiled_are_refused_by_name() {
    let resolve = |target: &str| CompileBackends::builtin().resolve(&target.parse().unwrap());
    for name in MISCOMPILED {
        let target = format!("{NAME}:{name}");
        let error = resolve(&target).unwrap_err();
        assert_eq!((error.kind(), error.context("target")), (ErrorKind::Unsupported, Some(&*target)));
    }
    let error = resolve("vulkan-spirv:spirv,+float16,+int16,+int8,+storage16,+subgroup8").unwrap_err();
    assert_eq!((error.kind(), error.context("missing")), (ErrorKind::Unsupported, Some("storage8")));
}

#[test]
fn properties_that_do_not_exist_are_refused() {
    for feature in ["+subgroup7", "+subgroup08", "+threads64", "+threads4096", "+warp", "-int8", "+subgroup"]
    {
        let target = format!("{NAME}:{BY_PROPERTIES},+float16,+int16,+storage16,+storage8,{feature}");
        let error = CompileBackends::builtin().resolve(&target.parse().unwrap()).unwrap_err();
        assert_eq!((error.kind(), error.context("feature")), (ErrorKind::InvalidInput, Some(&feature[1..])));
    }
}
