//! CUDA's context. IREE's driver calls CUDA on the thread that it is called on, and CUDA wants the device's
//! context to be current there; IREE makes it so on the thread that opens the device, and on its own.

use std::ffi::{c_int, c_void};

use libloading::Library;
use mlxcel_core::{Error, ErrorKind, Result};

use super::super::handle::Handle;
use super::super::sys;

const OPERATION: &str = "use a CUDA device";

unsafe extern "C" {
    // The bindings are generated without CUDA's headers, which this one's declaration includes.
    fn iree_hal_cuda_device_context(device: *mut sys::iree_hal_device_t) -> *mut c_void;
}

/// The context of an open device, which outlives this.
pub(super) struct Context {
    context: *mut c_void,
    set_current: unsafe extern "C" fn(*mut c_void) -> c_int,
    _driver: Library,
}

// SAFETY: a context of CUDA may be current on any number of threads at once; the pointer is only passed on.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    pub(super) fn of(device: &Handle<sys::iree_hal_device_t>) -> Result<Self> {
        let name = if cfg!(windows) { "nvcuda.dll" } else { "libcuda.so.1" };
        let missing = |error: libloading::Error| {
            Error::new(ErrorKind::NotFound, OPERATION, "NVIDIA's driver cannot be opened")
                .with_context("library", name)
                .with_source(error)
        };
        // SAFETY: the library is the one that IREE's driver has open, so nothing of it runs here; the function
        // has this signature in every version of it; the device is live and one of CUDA's.
        unsafe {
            let driver = Library::new(name).map_err(missing)?;
            let set_current = *driver.get(b"cuCtxSetCurrent\0").map_err(missing)?;
            Ok(Self { context: iree_hal_cuda_device_context(device.as_ptr()), set_current, _driver: driver })
        }
    }

    /// Makes the context that of the calling thread.
    pub(super) fn enter(&self) -> Result<()> {
        // SAFETY: the context is that of a live device.
        match unsafe { (self.set_current)(self.context) } {
            0 => Ok(()),
            code => Err(Error::new(ErrorKind::Internal, OPERATION, "CUDA refuses the device's context")
                .with_context("code", code)),
        }
    }
}
