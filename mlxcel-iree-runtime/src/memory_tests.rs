//! Memory that the C side is not given, at every one of its allocations by turns.

use std::cell::Cell;
use std::ffi::c_void;

use mlxcel_core::{ErrorKind, Result};
use mlxcel_stablehlo::ElementType::{F32, I32};

use super::sys;
use super::tests::vmfb;
use super::{Argument, Constants, Device, DeviceOptions, Driver, Program};

thread_local! {
    /// How many allocations of this thread go well before one fails; of other threads none does.
    static GOOD: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Whether the allocation that is about to be made on this thread is the one to fail.
fn fails() -> bool {
    GOOD.with(|good| {
        let left = good.get();
        good.set(left.and_then(|left| left.checked_sub(1)));
        left == Some(0)
    })
}

/// IREE's allocator over the C library's heap, which fails when a test told it to.
pub(super) unsafe extern "C" fn ctl(
    this: *mut c_void,
    command: sys::iree_allocator_command_t,
    params: *const c_void,
    inout: *mut *mut c_void,
) -> sys::iree_status_t {
    let frees =
        command == sys::iree_allocator_command_e_IREE_ALLOCATOR_COMMAND_FREE as sys::iree_allocator_command_t;
    if !frees && fails() {
        // A status is a pointer whose low bits are the code, and which is nothing else where it has no
        // message.
        let code = sys::iree_status_code_e_IREE_STATUS_RESOURCE_EXHAUSTED as usize;
        return std::ptr::without_provenance_mut(code);
    }
    // SAFETY: the caller's promises are passed on.
    unsafe { sys::iree_allocator_libc_ctl(this, command, params, inout) }
}

/// Opens a device, loads a program, and calls it.
fn compute(driver: Driver) -> Result<Vec<f32>> {
    let device = Device::open(&DeviceOptions { driver, threads: None, ..Default::default() })?;
    let function = Program::load(&device, vmfb())?.function("add")?;
    let a = device.upload(bytemuck::cast_slice(&[1f32, 2.0, 3.0, 4.0]))?;
    let arguments = [Argument::new(&a, &[4], F32), Argument::new(&a, &[4], F32)];
    let outputs = function.invoke(&Constants::default(), &arguments)?;
    let mut values = vec![0f32; 4];
    outputs[0].buffer.read(0, bytemuck::cast_slice_mut(&mut values))?;
    Ok(values)
}

#[test]
fn an_allocation_that_fails_in_the_runtime_is_an_error_and_the_next_try_computes() {
    for driver in [Driver::LocalSync, Driver::LocalTask] {
        assert_eq!(compute(driver).unwrap(), [2.0, 4.0, 6.0, 8.0]);
        let mut failed = 0;
        for number in 0.. {
            GOOD.set(Some(number));
            let result = compute(driver);
            let over = GOOD.replace(None).is_some();
            match result {
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::ResourceExhausted, "{driver}, {number}: {error:?}");
                    failed += 1;
                }
                // Some failures the runtime makes up for.
                Ok(values) => assert_eq!(values, [2.0, 4.0, 6.0, 8.0], "{driver}, allocation {number}"),
            }
            assert_eq!(compute(driver).unwrap(), [2.0, 4.0, 6.0, 8.0], "{driver}, after {number}");
            if over {
                break;
            }
        }
        println!("{driver}: {failed} allocations failed by turns");
        assert!(failed > 20, "{driver}: {failed}");
    }
}

#[test]
fn an_allocation_that_fails_before_a_call_begins_leaves_its_arguments_as_they_were() {
    let device = Device::open(&DeviceOptions { driver: Driver::LocalSync, ..Default::default() }).unwrap();
    let update = Program::load(&device, vmfb()).unwrap().function("update").unwrap();
    let cache = device.allocate(1024 * 64 * 4).unwrap();
    let row = device.upload(bytemuck::cast_slice(&[1f32; 64])).unwrap();
    let at = device.upload(&0i32.to_le_bytes()).unwrap();
    let arguments = [
        Argument::new(&cache, &[1024, 64], F32),
        Argument::new(&row, &[1, 64], F32),
        Argument::new(&at, &[], I32),
    ];
    let mut value = [1u8; 4];
    let mut before = 0;
    for number in 0.. {
        GOOD.set(Some(number));
        let result = update.invoke(&Constants::default(), &arguments);
        GOOD.set(None);
        let Err(error) = result else { break };
        if error.begun {
            break;
        }
        assert_eq!(error.error.kind(), ErrorKind::ResourceExhausted, "{number}: {error:?}");
        before += 1;
        cache.read(0, &mut value).unwrap();
        assert_eq!(value, [0; 4], "allocation {number}");
    }
    // A list of inputs, a view of each, a list of results.
    assert!(before >= 5, "{before}");
    update.invoke(&Constants::default(), &arguments).unwrap();
    cache.read(0, &mut value).unwrap();
    assert_eq!(value, 1f32.to_le_bytes());
}
