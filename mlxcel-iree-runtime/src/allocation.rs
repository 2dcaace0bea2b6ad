//! New buffers.
//!
//! The processor computes in host memory, so there a buffer is memory of ours that IREE is shown. Other
//! devices have memory of their own, which is allocated by their driver and reached by transfers.

use std::any::Any;
use std::ffi::c_void;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use mlxcel_core::{Error, ErrorKind, FaultPoint, Result};

use super::buffer::Buffer;
use super::device::Device;
use super::handle::Handle;
use super::memory::{self, ALIGNMENT, HostMemory};
use super::sys;

/// Up to this size an upload to a Vulkan device goes to memory of it that the host can write, where there is
/// some: it takes no command of the device and no waiting, as the inputs of every step do otherwise.
const WRITTEN_BY_HOST: usize = 64 << 10;

const ALLOCATE: &str = "allocate a buffer";

/// How much goes to a device's own memory in one transfer, for which its driver may need as much memory
/// again.
const TRANSFER_BYTES: usize = 32 << 20;

impl Device {
    /// `len` zeroed bytes; in host memory large buffers take it page by page as they are written.
    ///
    /// # Errors
    /// [`ErrorKind::ResourceExhausted`] if there is too little memory, [`ErrorKind::Device`].
    pub fn allocate(&self, len: usize) -> Result<Buffer> {
        if self.is_in_host_memory() {
            return self.adopt(HostMemory::for_growing(len)?);
        }
        let buffer = self.allocate_apart(len)?;
        let zeros = vec![0; len.min(TRANSFER_BYTES)];
        for start in (0..len).step_by(TRANSFER_BYTES) {
            buffer.write(start, &zeros[..TRANSFER_BYTES.min(len - start)])?;
        }
        Ok(buffer)
    }

    /// The pages in which a buffer that [`allocate`](Self::allocate) made of `len` bytes takes memory as it
    /// is written; none where it takes all of it at once.
    pub fn page_of(&self, len: usize) -> Option<usize> {
        self.is_in_host_memory().then(|| memory::page_of(len)).flatten()
    }

    /// `len` bytes that `fill` writes, in host memory where they stay; they are zero until it does.
    pub(crate) fn create(&self, len: usize, fill: impl FnOnce(&mut [u8]) -> Result<()>) -> Result<Buffer> {
        let mut memory = HostMemory::for_filling(len)?;
        fill(memory.as_mut_slice())?;
        if self.is_in_host_memory() { self.adopt(memory) } else { self.upload(memory.as_mut_slice()) }
    }

    /// A copy of `bytes` on the device.
    ///
    /// # Errors
    /// Those of [`allocate`](Self::allocate).
    pub fn upload(&self, bytes: &[u8]) -> Result<Buffer> {
        if !self.is_in_host_memory() {
            let buffer = self.allocate_for_upload(bytes.len())?;
            for (index, part) in bytes.chunks(TRANSFER_BYTES).enumerate() {
                buffer.write(index * TRANSFER_BYTES, part)?;
            }
            return Ok(buffer);
        }
        self.create(bytes.len(), |target| memory::copy(target, bytes))
    }

    /// The bytes of `source` in `range`: where they are if the device computes in host memory and their
    /// address is aligned to [`ALIGNMENT`], else a copy.
    ///
    /// Memory that is used in place is held until no buffer and no program needs it. It is read-only
    /// ([`Buffer::is_read_only`]): it cannot be written, and a program takes it as a constant argument only.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for a range outside of the source, and those of
    /// [`allocate`](Self::allocate).
    pub fn import<T>(&self, source: &Arc<T>, range: Range<usize>) -> Result<Buffer>
    where
        T: AsRef<[u8]> + Send + Sync + ?Sized + 'static,
        Arc<T>: Send,
    {
        let whole = (**source).as_ref();
        let bytes = whole.get(range.clone()).ok_or_else(|| {
            Error::new(ErrorKind::InvalidInput, "import memory", "the range is outside of the memory")
                .with_context("range", format_args!("{}..{}", range.start, range.end))
                .with_context("bytes", whole.len())
        })?;
        let aligned = bytes.as_ptr().addr().is_multiple_of(ALIGNMENT);
        if !aligned || bytes.is_empty() || !self.is_in_host_memory() {
            return self.upload(bytes);
        }
        let (address, len) = (bytes.as_ptr().cast_mut(), bytes.len());
        // SAFETY: the memory is `len` bytes long and aligned. It is borrowed of a shared owner, which is not
        // changed as long as the clone that goes with the buffer exists, so it stays where it is as
        // long as that borrow could last; the clone may be dropped on any thread, since the owner is
        // `Send` and `Sync`. It is not written through this buffer: `Buffer` refuses to, and `invoke` takes
        // a read-only buffer only among the constant arguments, which by the contract of `Constants` the
        // program does not update.
        unsafe { self.wrap(address, len, Box::new(Arc::clone(source)), true) }
    }

    /// `len` bytes of the device's own memory, to be written once.
    fn allocate_for_upload(&self, len: usize) -> Result<Buffer> {
        if !self.is_vulkan() || len > WRITTEN_BY_HOST {
            return self.allocate_apart(len);
        }
        self.check_fault(FaultPoint::Allocation, ALLOCATE)?;
        let kind = sys::iree_hal_memory_type_bits_t_IREE_HAL_MEMORY_TYPE_HOST_VISIBLE;
        let usage = sys::iree_hal_buffer_usage_bits_t_IREE_HAL_BUFFER_USAGE_MAPPING;
        self.allocate_with(len, kind, usage).or_else(|_| self.allocate_with(len, 0, 0))
    }

    /// `len` bytes of the device's own memory, of no particular content.
    fn allocate_apart(&self, len: usize) -> Result<Buffer> {
        self.check_fault(FaultPoint::Allocation, ALLOCATE)?;
        self.allocate_with(len, 0, 0)
    }

    /// `len` bytes of the device's own memory that is of another kind and for another usage as well.
    fn allocate_with(
        &self,
        len: usize,
        kind: sys::iree_hal_memory_type_t,
        usage: sys::iree_hal_buffer_usage_t,
    ) -> Result<Buffer> {
        self.enter()?;
        let params = sys::iree_hal_buffer_params_t {
            usage: sys::iree_hal_buffer_usage_bits_t_IREE_HAL_BUFFER_USAGE_DEFAULT | usage,
            access: sys::iree_hal_memory_access_bits_t_IREE_HAL_MEMORY_ACCESS_ALL
                as sys::iree_hal_memory_access_t,
            type_: sys::iree_hal_memory_type_bits_t_IREE_HAL_MEMORY_TYPE_DEVICE_LOCAL | kind,
            ..Default::default()
        };
        // SAFETY: device and allocator are live, and a buffer that is allocated is ours. Drivers have no
        // buffers of no bytes, so one of one byte is used and shortened.
        let raw = unsafe {
            Handle::create(ALLOCATE, |out| {
                sys::iree_hal_allocator_allocate_buffer(
                    sys::iree_hal_device_allocator(self.as_ptr()),
                    params,
                    len.max(1),
                    out,
                )
            })
        };
        let raw = raw.map_err(|error| error.with_context("bytes", len))?;
        let buffer = Buffer::new(raw, self.clone());
        if len > 0 { Ok(buffer) } else { Ok(Buffer::new(buffer.part(0, 0)?, self.clone())) }
    }

    /// Makes host memory a buffer of this device.
    fn adopt(&self, memory: HostMemory) -> Result<Buffer> {
        self.check_fault(FaultPoint::Allocation, ALLOCATE)?;
        let mut owner = Box::new(memory);
        let bytes = owner.as_mut_slice();
        let (address, len) = (bytes.as_mut_ptr(), bytes.len());
        // SAFETY: the memory is `len` bytes long, aligned by construction, stays where it is when its owner
        // moves (on the heap or in a mapping), and is reached through this pointer only from here on,
        // until the owner is dropped.
        unsafe { self.wrap(address, len, owner, false) }
    }

    /// A buffer over memory that `owner` keeps alive.
    ///
    /// # Safety
    /// `address` is aligned to [`ALIGNMENT`] and valid for `len` bytes until `owner` is dropped; for writes
    /// too, unless `read_only`.
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
        // SAFETY: device and allocator are live; the description is read during the call; the memory is valid
        // by this function's contract until the callback runs, which is once, when the last reference
        // to the buffer goes, and not at all where no buffer is made. The callback may run on any
        // thread: the owner is `Send`.
        let raw = unsafe {
            Handle::create(ALLOCATE, |out| {
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
            Ok(raw) => Ok(Buffer::new(raw, self.clone())),
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
