//! Device memory.

use std::fmt;
use std::sync::Arc;

use mlxcel_core::{Error, ErrorKind, FaultPoint, Result};

use super::device::Device;
use super::handle::Handle;
use super::program::Loaded;
use super::status::check;
use super::sys;

/// A range of device memory; clones are the same memory.
///
/// Its bytes are moved by the C side only: no Rust reference into the memory exists, so what a program writes
/// while another thread reads makes the bytes that are read unspecified, and nothing else. A caller that
/// needs the bytes keeps the two apart.
#[derive(Clone)]
pub struct Buffer {
    raw: Handle<sys::iree_hal_buffer_t>,
    /// Set for what a program returned: it may point into the program's constants.
    _program: Option<Arc<Loaded>>,
    device: Device,
}

impl Buffer {
    /// A buffer that was just made on `device`.
    pub(super) fn new(raw: Handle<sys::iree_hal_buffer_t>, device: Device) -> Self {
        Self { raw, _program: None, device }
    }

    /// A buffer that a program returned.
    pub(super) fn returned(
        raw: Handle<sys::iree_hal_buffer_t>,
        program: Arc<Loaded>,
        device: Device,
    ) -> Self {
        Self { raw, _program: Some(program), device }
    }

    /// The length in bytes.
    pub fn size(&self) -> usize {
        // SAFETY: the buffer is live; the call reads a field of it.
        unsafe { sys::iree_hal_buffer_byte_length(self.raw.as_ptr()) }
    }

    /// Whether it is memory that must not be written: memory imported in place, and a result that is such an
    /// argument.
    pub fn is_read_only(&self) -> bool {
        // SAFETY: the buffer is live, and nobody changes this field of it.
        let access = unsafe { (*self.raw.as_ptr()).allowed_access };
        let write = sys::iree_hal_memory_access_bits_t_IREE_HAL_MEMORY_ACCESS_WRITE;
        access & write as sys::iree_hal_memory_access_t == 0
    }

    /// The device that it lives on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Whether both lie in one allocation: true of an argument and a result that was computed in its place.
    pub fn shares_storage_with(&self, other: &Self) -> bool {
        self.storage() == other.storage()
    }

    /// Where its first byte lies in its allocation.
    pub(crate) fn storage_offset(&self) -> usize {
        // SAFETY: the buffer is live; the call reads a field of it.
        unsafe { sys::iree_hal_buffer_byte_offset(self.raw.as_ptr()) }
    }

    /// Copies `bytes` to the device, to `offset` bytes behind the beginning.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for a range outside of the buffer and for memory that is
    /// [read-only](Self::is_read_only), [`ErrorKind::Device`].
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        self.expect_writable("write a buffer")?;
        self.expect_range("write a buffer", offset, bytes.len())?;
        self.device.check_fault(FaultPoint::Copy, "write a buffer")?;
        self.device.enter()?;
        // SAFETY: device and buffer are live, the source is readable for the length, and the range was
        // checked. The call returns when the bytes are there, and keeps no pointer to them. The
        // status is that of the call.
        unsafe {
            let status = sys::iree_hal_device_transfer_h2d(
                self.device.as_ptr(),
                bytes.as_ptr().cast(),
                self.raw.as_ptr(),
                offset,
                bytes.len(),
                0,
                sys::infinite_timeout(),
            );
            check(status, "write a buffer")
        }
    }

    /// Copies the bytes at `offset` back to the host.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for a range outside of the buffer, [`ErrorKind::Device`].
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<()> {
        self.expect_range("read a buffer", offset, bytes.len())?;
        self.device.check_fault(FaultPoint::ReadBack, "read a buffer")?;
        self.device.enter()?;
        // SAFETY: device and buffer are live, the target is writable for the length and ours alone, and the
        // range was checked. The call returns when the bytes are there, and keeps no pointer to them.
        // The status is that of the call.
        unsafe {
            let status = sys::iree_hal_device_transfer_d2h(
                self.device.as_ptr(),
                self.raw.as_ptr(),
                offset,
                bytes.as_mut_ptr().cast(),
                bytes.len(),
                0,
                sys::infinite_timeout(),
            );
            check(status, "read a buffer")
        }
    }

    /// Copies `len` bytes to another buffer of the same device, without passing through the host; the ranges
    /// must not overlap.
    ///
    /// # Errors
    /// Those of [`write`](Self::write), and [`ErrorKind::InvalidInput`] for a buffer of another device.
    pub fn copy_to(&self, offset: usize, target: &Self, target_offset: usize, len: usize) -> Result<()> {
        let operation = "copy a buffer";
        target.expect_writable(operation)?;
        self.expect_range(operation, offset, len)?;
        target.expect_range(operation, target_offset, len)?;
        self.device.check_fault(FaultPoint::Copy, operation)?;
        self.device.enter()?;
        if !self.device.is(&target.device) {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                operation,
                "the buffers are on different devices",
            ));
        }
        // SAFETY: device and buffers are live, of one device, and the ranges were checked; the callee refuses
        // overlapping ones. The status is that of the call.
        unsafe {
            let status = sys::iree_hal_device_transfer_d2d(
                self.device.as_ptr(),
                self.raw.as_ptr(),
                offset,
                target.raw.as_ptr(),
                target_offset,
                len,
                0,
                sys::infinite_timeout(),
            );
            check(status, operation)
        }
    }

    /// The part of `len` bytes at `offset`, as IREE sees it: the buffer itself where it is all of it.
    pub(super) fn part(&self, offset: usize, len: usize) -> Result<Handle<sys::iree_hal_buffer_t>> {
        self.expect_range("pass a buffer", offset, len)?;
        if offset == 0 && len == self.size() {
            return Ok(self.raw.clone());
        }
        // SAFETY: the buffer is live and the range was checked; the part retains the buffer and is ours.
        unsafe {
            Handle::create("pass a buffer", |out| {
                sys::iree_hal_buffer_subspan(self.raw.as_ptr(), offset, len, sys::host_allocator(), out)
            })
        }
    }

    fn storage(&self) -> *mut sys::iree_hal_buffer_t {
        // SAFETY: the buffer is live; the call reads a field of it.
        unsafe { sys::iree_hal_buffer_allocated_buffer(self.raw.as_ptr()) }
    }

    fn expect_range(&self, operation: &'static str, offset: usize, len: usize) -> Result<()> {
        match offset.checked_add(len) {
            Some(end) if end <= self.size() => Ok(()),
            _ => Err(Error::new(ErrorKind::InvalidInput, operation, "the range is outside of the buffer")
                .with_context("offset", offset)
                .with_context("length", len)
                .with_context("buffer", self.size())),
        }
    }

    fn expect_writable(&self, operation: &'static str) -> Result<()> {
        if self.is_read_only() {
            return Err(Error::new(ErrorKind::InvalidInput, operation, "imported memory is read-only"));
        }
        Ok(())
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // This may be the last reference to the memory.
        let _ = self.device.enter();
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer")
            .field("len", &self.size())
            .field("read_only", &self.is_read_only())
            .field("device", &self.device)
            .finish()
    }
}
