//! One owner per reference: a [`Handle`] holds one count of an IREE object and gives it back when dropped.

use std::ptr::{self, NonNull};

use mlxcel_core::Result;

use super::status;
use super::sys;

/// An IREE object with an atomic reference count.
pub(super) trait Object {
    /// Adds a reference.
    ///
    /// # Safety
    /// `this` points to a live object.
    unsafe fn retain(this: *mut Self);

    /// Gives a reference back.
    ///
    /// # Safety
    /// `this` points to a live object, and the caller owns the reference.
    unsafe fn release(this: *mut Self);
}

macro_rules! objects {
    ($($object:ident: $retain:ident, $release:ident;)*) => {$(
        impl Object for sys::$object {
            unsafe fn retain(this: *mut Self) {
                // SAFETY: the caller's promise is this function's.
                unsafe { sys::$retain(this) }
            }

            unsafe fn release(this: *mut Self) {
                // SAFETY: the caller's promise is this function's.
                unsafe { sys::$release(this) }
            }
        }
    )*};
}

objects! {
    iree_vm_instance_t: iree_vm_instance_retain, iree_vm_instance_release;
    iree_vm_module_t: iree_vm_module_retain, iree_vm_module_release;
    iree_vm_context_t: iree_vm_context_retain, iree_vm_context_release;
    iree_vm_list_t: iree_vm_list_retain, iree_vm_list_release;
    iree_hal_device_t: iree_hal_device_retain, iree_hal_device_release;
    iree_hal_driver_t: iree_hal_driver_retain, iree_hal_driver_release;
    iree_hal_device_group_t: iree_hal_device_group_retain, iree_hal_device_group_release;
    iree_hal_allocator_t: iree_hal_allocator_retain, iree_hal_allocator_release;
    iree_hal_buffer_t: iree_hal_buffer_retain, iree_hal_buffer_release;
    iree_hal_buffer_view_t: iree_hal_buffer_view_retain, iree_hal_buffer_view_release;
    iree_hal_executable_loader_t: iree_hal_executable_loader_retain, iree_hal_executable_loader_release;
    iree_hal_profile_sink_t: iree_hal_profile_sink_retain, iree_hal_profile_sink_release;
    iree_hal_semaphore_t: iree_hal_semaphore_retain, iree_hal_semaphore_release;
    iree_async_proactor_pool_t: iree_async_proactor_pool_retain, iree_async_proactor_pool_release;
    iree_async_frontier_tracker_t: iree_async_frontier_tracker_retain, iree_async_frontier_tracker_release;
    iree_task_executor_t: iree_task_executor_retain, iree_task_executor_release;
}

/// One owned reference to an IREE object.
pub(super) struct Handle<T: Object>(NonNull<T>);

// SAFETY: IREE counts references atomically, so a reference may be given back on any thread. What else may be
// done with the object from several threads is decided by each use; the wrappers above keep what IREE calls
// thread-compatible (contexts, lists) to one thread at a time.
unsafe impl<T: Object> Send for Handle<T> {}
// SAFETY: a shared handle counts a reference more, which is atomic, or yields the pointer; each use has to
// make sound.
unsafe impl<T: Object> Sync for Handle<T> {}

impl<T: Object> Handle<T> {
    /// Runs a constructor of the C interface, which writes a new reference to its argument or returns a
    /// failure.
    ///
    /// # Safety
    /// `create` returns a status that is the caller's; when that is success, what `create` wrote is null or a
    /// reference that now belongs to the caller.
    pub(super) unsafe fn create(
        operation: &'static str,
        create: impl FnOnce(*mut *mut T) -> sys::iree_status_t,
    ) -> Result<Self> {
        // SAFETY: the caller's promises are this function's, that of the status included.
        unsafe { Self::create_with(operation, |status, operation| status::check(status, operation), create) }
    }

    /// [`create`](Self::create) with a say in which kind of error a status is, which `check` consumes.
    ///
    /// # Safety
    /// As for [`create`](Self::create).
    pub(super) unsafe fn create_with(
        operation: &'static str,
        check: impl FnOnce(sys::iree_status_t, &'static str) -> Result<()>,
        create: impl FnOnce(*mut *mut T) -> sys::iree_status_t,
    ) -> Result<Self> {
        let mut out = ptr::null_mut();
        check(create(&mut out), operation)?;
        // SAFETY: success means that `out` is ours, or null.
        unsafe { Self::from_owned(out) }.ok_or_else(|| missing(operation))
    }

    /// Takes over a reference; `None` for a null pointer.
    ///
    /// # Safety
    /// `object` is null or a reference that the caller owns and gives away.
    pub(super) unsafe fn from_owned(object: *mut T) -> Option<Self> {
        NonNull::new(object).map(Self)
    }

    /// Adds a reference to an object with another owner; `None` for a null pointer.
    ///
    /// # Safety
    /// `object` is null or live.
    pub(super) unsafe fn from_borrowed(object: *mut T) -> Option<Self> {
        let object = NonNull::new(object)?;
        // SAFETY: the object is live, and the new reference is owned by the handle.
        unsafe { T::retain(object.as_ptr()) };
        Some(Self(object))
    }

    /// The pointer, live as long as the handle.
    pub(super) fn as_ptr(&self) -> *mut T {
        self.0.as_ptr()
    }
}

impl<T: Object> Clone for Handle<T> {
    fn clone(&self) -> Self {
        // SAFETY: the object is live, and the new reference is owned by the new handle.
        unsafe { T::retain(self.0.as_ptr()) };
        Self(self.0)
    }
}

impl<T: Object> Drop for Handle<T> {
    fn drop(&mut self) {
        // SAFETY: the handle owns exactly this reference and ends here.
        unsafe { T::release(self.0.as_ptr()) }
    }
}

/// What a C function owes after it reported success, and did not give.
pub(super) fn missing(operation: &'static str) -> mlxcel_core::Error {
    mlxcel_core::Error::new(
        mlxcel_core::ErrorKind::Internal,
        operation,
        "the IREE runtime reported success and returned nothing",
    )
}
