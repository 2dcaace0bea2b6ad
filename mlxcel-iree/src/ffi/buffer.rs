//! Device memory.

use std::any::Any;
use std::ffi::c_void;
use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use mlxcel_core::{Error, ErrorKind, Result};

use super::device::Device;
use super::handle::Handle;
use super::memory::{self, ALIGNMENT, HostMemory};
use super::program::Loaded;
use super::status::check;
use super::sys;

/// A range of device memory; clones are the same memory.
///
/// Its bytes are moved by the C side only: no Rust reference into the memory exists, so what a program writes while
/// another thread reads makes the bytes that are read unspecified, and nothing else. Whoever needs the bytes keeps the
/// two apart.
#[derive(Clone)]
pub(crate) struct Buffer {
    raw: Handle<sys::iree_hal_buffer_t>,
    /// Set for what a program returned: it may point into the program's constants.
    _program: Option<Arc<Loaded>>,
    device: Device,
    read_only: bool,
}

impl Device {
    /// `len` zeroed bytes; large buffers take memory page by page as they are written.
    pub(crate) fn allocate(&self, len: usize) -> Result<Buffer> {
        self.adopt(HostMemory::zeroed(len)?)
    }

    /// `len` bytes that `fill` writes where they stay, without a copy; they are zero until it does.
    pub(crate) fn create(&self, len: usize, fill: impl FnOnce(&mut [u8]) -> Result<()>) -> Result<Buffer> {
        let mut memory = HostMemory::for_filling(len)?;
        fill(memory.as_mut_slice())?;
        self.adopt(memory)
    }

    /// A copy of `bytes` on the device.
    pub(crate) fn upload(&self, bytes: &[u8]) -> Result<Buffer> {
        self.create(bytes.len(), |target| {
            memory::copy(target, bytes);
            Ok(())
        })
    }

    /// The bytes of `source` in `range`, where they are if their address is aligned to [`ALIGNMENT`], else a copy.
    ///
    /// Memory that is used in place is held until no buffer and no program needs it. It is read-only
    /// ([`Buffer::is_read_only`]): it cannot be written, and a program takes it as a constant argument only.
    pub(crate) fn import<T>(&self, source: &Arc<T>, range: Range<usize>) -> Result<Buffer>
    where
        T: AsRef<[u8]> + Send + Sync + ?Sized + 'static,
        Arc<T>: Send,
    {
        let whole = (**source).as_ref();
        let bytes = whole.get(range.clone()).ok_or_else(|| {
            Error::new(ErrorKind::InvalidInput, "import memory", "the range is not inside the memory")
                .with_context("range", format_args!("{}..{}", range.start, range.end))
                .with_context("bytes", whole.len())
        })?;
        if !bytes.as_ptr().addr().is_multiple_of(ALIGNMENT) || bytes.is_empty() {
            return self.upload(bytes);
        }
        let (address, len) = (bytes.as_ptr().cast_mut(), bytes.len());
        // SAFETY: the memory is `len` bytes long and aligned. A shared owner cannot move or free what it has lent, so the
        // memory lives as long as the clone of the owner that goes with it. It is not written through this buffer: `Buffer` refuses to, and `invoke` takes a read-only buffer only
        // among the constant arguments, which by the contract of `Constants` the program does not update.
        unsafe { self.wrap(address, len, Box::new(Arc::clone(source)), true) }
    }

    /// Makes host memory a buffer of this device.
    fn adopt(&self, memory: HostMemory) -> Result<Buffer> {
        let mut owner = Box::new(memory);
        let bytes = owner.as_mut_slice();
        let (address, len) = (bytes.as_mut_ptr(), bytes.len());
        // SAFETY: the memory is `len` bytes long, aligned by construction, stays where it is when its owner moves, and
        // is reached through this pointer only from here on, until the owner is dropped.
        unsafe { self.wrap(address, len, owner, false) }
    }

    /// A buffer over memory that `owner` keeps alive.
    ///
    /// # Safety
    /// `address` is aligned to [`ALIGNMENT`] and valid for `len` bytes until `owner` is dropped; for writes too,
    /// unless `read_only`.
    unsafe fn wrap(
        &self,
        address: *mut u8,
        len: usize,
        owner: Box<dyn Any + Send>,
        read_only: bool,
    ) -> Result<Buffer> {
        // A thin pointer for the callback to carry.
        let owner = Box::into_raw(Box::new(owner));
        let access = if read_only {
            sys::iree_hal_memory_access_bits_t_IREE_HAL_MEMORY_ACCESS_READ
        } else {
            sys::iree_hal_memory_access_bits_t_IREE_HAL_MEMORY_ACCESS_ALL
        };
        let params = sys::iree_hal_buffer_params_t {
            usage: sys::iree_hal_buffer_usage_bits_t_IREE_HAL_BUFFER_USAGE_DEFAULT
                | sys::iree_hal_buffer_usage_bits_t_IREE_HAL_BUFFER_USAGE_MAPPING,
            access: access as sys::iree_hal_memory_access_t,
            type_: sys::iree_hal_memory_type_bits_t_IREE_HAL_MEMORY_TYPE_DEVICE_LOCAL
                | sys::iree_hal_memory_type_bits_t_IREE_HAL_MEMORY_TYPE_HOST_VISIBLE
                | sys::iree_hal_memory_type_bits_t_IREE_HAL_MEMORY_TYPE_HOST_COHERENT,
            ..Default::default()
        };
        let mut external = sys::iree_hal_external_buffer_t {
            type_: sys::iree_hal_external_buffer_type_e_IREE_HAL_EXTERNAL_BUFFER_TYPE_HOST_ALLOCATION,
            size: len,
            ..Default::default()
        };
        external.handle.host_allocation.ptr = address.cast();
        let on_release =
            sys::iree_hal_buffer_release_callback_t { fn_: Some(release_owner), user_data: owner.cast() };
        // SAFETY: device and allocator are live; the description is read during the call; the memory is valid by this
        // function's contract until the callback runs, which is once, when the last reference to the buffer goes.
        let raw = unsafe {
            Handle::create("allocate a buffer", |out| {
                sys::iree_hal_allocator_import_buffer(
                    sys::iree_hal_device_allocator(self.as_ptr()),
                    params,
                    &mut external,
                    on_release,
                    out,
                )
            })
        };
        match raw {
            Ok(raw) => Ok(Buffer { raw, _program: None, device: self.clone(), read_only }),
            Err(error) => {
                // SAFETY: no buffer was made, so the callback will not run and the owner is still ours.
                drop(unsafe { Box::from_raw(owner) });
                Err(error)
            }
        }
    }
}

/// Drops what kept a buffer's memory alive; IREE calls it on whichever thread gives the last reference back.
unsafe extern "C" fn release_owner(owner: *mut c_void, _buffer: *mut sys::iree_hal_buffer_t) {
    // SAFETY: `owner` is the box that `wrap` leaked for this one call.
    let owner = unsafe { Box::from_raw(owner.cast::<Box<dyn Any + Send>>()) };
    // A panic must not unwind into C. There is nobody to report it to but the panic hook, which has seen it.
    let _ = catch_unwind(AssertUnwindSafe(move || drop(owner)));
}

impl Buffer {
    /// A buffer that a program returned.
    pub(super) fn returned(
        raw: Handle<sys::iree_hal_buffer_t>,
        program: Arc<Loaded>,
        device: Device,
    ) -> Self {
        Self { raw, _program: Some(program), device, read_only: false }
    }

    /// The length in bytes.
    pub(crate) fn len(&self) -> usize {
        // SAFETY: the buffer is live; the call reads a field of it.
        unsafe { sys::iree_hal_buffer_byte_length(self.raw.as_ptr()) }
    }

    /// Whether it is memory that was imported in place, which must not be written.
    pub(crate) fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// The device that it lives on.
    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// Whether both lie in one allocation: true of an argument and a result that was computed in its place.
    pub(crate) fn shares_storage_with(&self, other: &Self) -> bool {
        self.storage() == other.storage()
    }

    /// Where its first byte lies in its allocation.
    pub(crate) fn storage_offset(&self) -> usize {
        // SAFETY: the buffer is live; the call reads a field of it.
        unsafe { sys::iree_hal_buffer_byte_offset(self.raw.as_ptr()) }
    }

    /// Copies `bytes` to the device.
    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        self.expect_writable("write a buffer")?;
        self.expect_range("write a buffer", offset, bytes.len())?;
        // SAFETY: device and buffer are live, the source is readable for the length, and the range was checked.
        let status = unsafe {
            sys::iree_hal_device_transfer_h2d(
                self.device.as_ptr(),
                bytes.as_ptr().cast(),
                self.raw.as_ptr(),
                offset,
                bytes.len(),
                0,
                sys::infinite_timeout(),
            )
        };
        check(status, "write a buffer")
    }

    /// Copies bytes back to the host.
    pub(crate) fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<()> {
        self.expect_range("read a buffer", offset, bytes.len())?;
        // SAFETY: device and buffer are live, the target is writable for the length, and the range was checked.
        let status = unsafe {
            sys::iree_hal_device_transfer_d2h(
                self.device.as_ptr(),
                self.raw.as_ptr(),
                offset,
                bytes.as_mut_ptr().cast(),
                bytes.len(),
                0,
                sys::infinite_timeout(),
            )
        };
        check(status, "read a buffer")
    }

    /// Copies `len` bytes to another buffer of the same device, without passing through the host; the ranges must not
    /// overlap.
    pub(crate) fn copy_to(
        &self,
        offset: usize,
        target: &Self,
        target_offset: usize,
        len: usize,
    ) -> Result<()> {
        let operation = "copy a buffer";
        target.expect_writable(operation)?;
        self.expect_range(operation, offset, len)?;
        target.expect_range(operation, target_offset, len)?;
        if !self.device.is(&target.device) {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                operation,
                "the buffers are on different devices",
            ));
        }
        // SAFETY: device and buffers are live, and the ranges were checked; the callee refuses overlapping ones.
        let status = unsafe {
            sys::iree_hal_device_transfer_d2d(
                self.device.as_ptr(),
                self.raw.as_ptr(),
                offset,
                target.raw.as_ptr(),
                target_offset,
                len,
                0,
                sys::infinite_timeout(),
            )
        };
        check(status, operation)
    }

    /// The part of `len` bytes at `offset`, as IREE sees it: the buffer itself where it is all of it.
    pub(super) fn part(&self, offset: usize, len: usize) -> Result<Handle<sys::iree_hal_buffer_t>> {
        self.expect_range("pass a buffer", offset, len)?;
        if offset == 0 && len == self.len() {
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
            Some(end) if end <= self.len() => Ok(()),
            _ => Err(Error::new(ErrorKind::InvalidInput, operation, "the range is not inside the buffer")
                .with_context("offset", offset)
                .with_context("length", len)
                .with_context("buffer", self.len())),
        }
    }

    fn expect_writable(&self, operation: &'static str) -> Result<()> {
        if self.read_only {
            return Err(Error::new(ErrorKind::InvalidInput, operation, "imported memory is read-only"));
        }
        Ok(())
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer")
            .field("len", &self.len())
            .field("read_only", &self.read_only)
            .field("device", &self.device)
            .finish()
    }
}
