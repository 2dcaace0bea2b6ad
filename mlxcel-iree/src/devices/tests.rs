//! Which device a name means. Without a device.

use super::*;

fn listed(path: &str, kind: &str, features: &str) -> ListedDevice {
    let report =
        format!("type: {kind}\nfeatures: {features}\nsubgroup: size=8 minSubgroupSize=8 maxSubgroupSize=8\n");
    ListedDevice::for_tests(path, &report)
}

const ALL: &str = "shaderFloat16=yes shaderInt8=yes storageBuffer8BitAccess=yes storageBuffer16BitAccess=yes";

fn chosen(name: &str, listed: &[ListedDevice]) -> Result<usize> {
    let (driver, device) =
        name.split_once(':').map_or((name, None), |(driver, device)| (driver, Some(device)));
    assert_eq!(driver, "vulkan");
    choose(&DeviceName { driver: Driver::Vulkan, device: device.map(str::to_owned) }, listed)
}

#[test]
fn a_driver_means_its_best_usable_device() {
    let software = listed("GPU-a", "cpu", ALL);
    let old =
        listed("GPU-b", "discrete-gpu", "shaderFloat16=yes shaderInt8=yes storageBuffer16BitAccess=yes");
    let integrated = listed("GPU-c", "integrated-gpu", ALL);
    let (first, second) = (listed("GPU-d", "discrete-gpu", ALL), listed("GPU-e", "discrete-gpu", ALL));
    assert_eq!(chosen("vulkan", &[software.clone(), old.clone(), integrated.clone()]).unwrap(), 2);
    assert_eq!(chosen("vulkan", &[software.clone(), integrated, first.clone(), second.clone()]).unwrap(), 2);
    assert_eq!(chosen("vulkan", &[software, old.clone()]).unwrap(), 0);
    let error = chosen("vulkan", &[old]).unwrap_err();
    assert_eq!((error.kind(), error.context("missing")), (ErrorKind::Unsupported, Some("storage8")));
    assert_eq!(chosen("vulkan", &[]).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn two_equal_devices_are_told_apart_by_number_and_path() {
    let devices = [listed("GPU-d", "discrete-gpu", ALL), listed("GPU-e", "discrete-gpu", ALL)];
    for (name, index) in [("vulkan", 0), ("vulkan:1", 1), ("vulkan:GPU-E", 1), ("vulkan:GPU-d", 0)] {
        assert_eq!(chosen(name, &devices).unwrap(), index, "{name}");
    }
    let error = chosen("vulkan:2", &devices).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert_eq!(error.context("known"), Some("vulkan:GPU-d, vulkan:GPU-e"));
}

#[test]
fn malformed_names_are_invalid() {
    for name in ["local-task:0", "tpu", "tpu:1", ""] {
        assert_eq!(name.parse::<DeviceName>().unwrap_err().kind(), ErrorKind::InvalidInput, "{name}");
    }
    assert_eq!("local-sync".parse::<DeviceName>().unwrap().to_string(), "local-sync");
}

#[test]
fn every_driver_is_listed_with_a_device_or_the_reason() {
    let devices = list();
    for driver in Driver::KNOWN {
        let mut of_driver =
            devices.iter().filter(|info| info.device.split(':').next() == Some(driver.name()));
        assert!(of_driver.all(|info| info.target.is_some() != info.unusable.is_some()), "{devices:?}");
    }
    assert!(devices.len() >= Driver::KNOWN.len());
    assert!(
        devices.iter().any(|info| info.device == "local-task" && info.is_default && info.unusable.is_none())
    );
}

#[test]
fn a_missing_device_error_says_what_it_requires() {
    for driver in [Driver::Cuda, Driver::Vulkan] {
        // Where one is there, it opens.
        let Err(error) = open(&DeviceOptions { driver, ..Default::default() }) else { continue };
        assert_eq!(error.context("device"), Some(driver.name()));
        let built_in = driver.is_built_in();
        assert_eq!(
            error.kind(),
            if built_in { ErrorKind::NotFound } else { ErrorKind::Unsupported },
            "{error}"
        );
    }
    for driver in [Driver::Cuda, Driver::Vulkan] {
        let error = open(&DeviceOptions { driver, threads: Some(2), ..Default::default() }).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    }
}
