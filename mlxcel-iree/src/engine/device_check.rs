//! Tests a device by a computation with known results, before weights are copied to it.

use mlxcel_core::{Error, ErrorKind, Result};
use mlxcel_iree_kernels::device_check::{ENTRY, arguments, results};

use crate::ffi::{Argument, Buffer, Constants, Device, Program};

const OPERATION: &str = "check the device";

/// Runs the program `vmfb` of the computation on `device`.
///
/// # Errors
/// [`ErrorKind::Device`] if a result is wrong, with the element type; the errors of running a program.
pub(crate) fn check(device: &Device, vmfb: &[u8]) -> Result<()> {
    let function = Program::load(device, vmfb)?.function(ENTRY)?;
    let arguments = arguments();
    let buffers = arguments.iter().map(|(_, bytes)| device.upload(bytes)).collect::<Result<Vec<Buffer>>>()?;
    let passed: Vec<_> = arguments
        .iter()
        .zip(&buffers)
        .map(|((ty, _), buffer)| Argument::new(buffer, &ty.shape, ty.element))
        .collect();
    let outputs = function.invoke(&Constants::default(), &passed)?;
    for ((element, expected), output) in results().into_iter().zip(outputs) {
        let mut bytes = vec![0; expected.len() * size_of::<f32>()];
        output.buffer.read(0, &mut bytes)?;
        let found = bytes.as_chunks::<4>().0.iter().map(|&bytes| f32::from_le_bytes(bytes));
        if let Some((expected, found)) =
            expected.iter().zip(found).find(|(expected, found)| **expected != *found)
        {
            let message = "the device computes wrong numbers with programs for its target: update its driver, or use \
                           another device";
            return Err(Error::new(ErrorKind::Device, OPERATION, message)
                .with_context("device", device.name())
                .with_context("element_type", element.mlir())
                .with_context("expected", expected)
                .with_context("found", found));
        }
    }
    Ok(())
}

#[cfg(all(test, feature = "compile", feature = "vulkan"))]
mod tests {
    use mlxcel_core::ErrorKind;
    use mlxcel_iree_compile::Artifacts;
    use mlxcel_iree_compile::cache::Cache;
    use mlxcel_iree_compile::compiler::CompileOptions;
    use mlxcel_iree_kernels::{Hardware, device_check};
    use mlxcel_iree_target::CompileBackends;

    use super::*;
    use crate::devices;
    use crate::ffi::{DeviceOptions, Driver};
    use crate::testing::{cache_dir, resolved};

    #[test]
    fn programs_that_compute_wrong_numbers_are_noticed() {
        let options = DeviceOptions { driver: Driver::Vulkan, ..Default::default() };
        let device = match devices::open(&options) {
            Ok(device) => device,
            // `cargo xtask test --only vulkan` has a driver.
            Err(error) => return assert_eq!(error.kind(), ErrorKind::NotFound, "{error}"),
        };
        let artifacts = Artifacts::new(None, Cache::open(Some(&cache_dir())).unwrap());
        let text = device_check::program(Hardware::Spirv).unwrap();
        let outcome = |target| {
            let program = artifacts.get(&text, &CompileOptions::new(target), None).unwrap();
            check(&device, &program.bytes)
        };
        let own = CompileBackends::builtin().of_device(device.description()).unwrap();
        outcome(own.clone()).unwrap();
        // Sums over as many invocations as the device does not have.
        let sizes = device.description().vulkan.as_ref().unwrap().subgroup_sizes;
        let size = if sizes.1 <= 16 { 32 } else { 4 };
        let other = own.to_string().replace(&format!("subgroup{}", sizes.1), &format!("subgroup{size}"));
        let error = outcome(resolved(&other)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Device, "{error}");
        assert!(error.context("element_type").is_some(), "{error}");
    }
}
