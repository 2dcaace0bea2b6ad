//! Tests a device by a computation with known results, before weights are copied to it.

use std::sync::{Mutex, PoisonError};

use mlxcel_core::{Error, ErrorKind, Result};
use mlxcel_iree_kernels::device_check::{ENTRY, arguments, results};
use mlxcel_iree_runtime::{Argument, Buffer, Constants, Device, Program};
use sha2::{Digest, Sha256};

const OPERATION: &str = "check the device";

/// Devices by name, and the checksums of programs, that have passed in this process.
static PASSED: Mutex<Vec<(String, [u8; 32])>> = Mutex::new(Vec::new());

/// Runs the program `vmfb` of the computation on `device`, once in a process: what another load would find
/// is known.
///
/// # Errors
/// [`ErrorKind::Device`] if a result is wrong, with the element type; the errors of running a program.
pub(crate) fn check(device: &Device, vmfb: &[u8]) -> Result<()> {
    let key = (device.name().to_owned(), Sha256::digest(vmfb).into());
    let passed = || PASSED.lock().unwrap_or_else(PoisonError::into_inner);
    if passed().contains(&key) {
        return Ok(());
    }
    compute(device, vmfb)?;
    passed().push(key);
    Ok(())
}

fn compute(device: &Device, vmfb: &[u8]) -> Result<()> {
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
