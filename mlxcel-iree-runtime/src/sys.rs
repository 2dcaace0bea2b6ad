//! The raw C interface, and in Rust what it has as inline functions.

use std::ffi::c_char;

pub(super) use mlxcel_iree_sys::*;

/// IREE's allocator over the C library's heap.
pub(super) fn host_allocator() -> iree_allocator_t {
    #[cfg(not(test))]
    let ctl = iree_allocator_libc_ctl;
    #[cfg(test)]
    let ctl = super::memory_tests::ctl;
    iree_allocator_t { self_: std::ptr::null_mut(), ctl: Some(ctl) }
}

/// An allocator that never frees: for memory that has another owner.
pub(super) fn null_allocator() -> iree_allocator_t {
    iree_allocator_t { self_: std::ptr::null_mut(), ctl: None }
}

/// A view of `text` for the duration of a call.
pub(super) fn string_view(text: &str) -> iree_string_view_t {
    iree_string_view_t { data: text.as_ptr().cast::<c_char>(), size: text.len() }
}

/// To wait without a limit: `iree_infinite_timeout()`, an inline function.
pub(super) fn infinite_timeout() -> iree_timeout_t {
    iree_timeout_t {
        type_: iree_timeout_type_e_IREE_TIMEOUT_ABSOLUTE as iree_timeout_type_t,
        nanos: i64::MAX,
    }
}
