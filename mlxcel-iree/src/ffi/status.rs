//! IREE's statuses as errors. A status owns memory and is consumed exactly once, here.

use std::fmt;
use std::ptr;

use mlxcel_core::{Error, ErrorKind, Result};

use super::sys;

/// A failure in IREE's own words; the [source](std::error::Error::source) of the error that reports it.
#[derive(Debug)]
struct RuntimeFailure(String);

impl fmt::Display for RuntimeFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for RuntimeFailure {}

/// Turns a status into a result; `operation` says what was attempted.
pub(super) fn check(status: sys::iree_status_t, operation: &'static str) -> Result<()> {
    check_as(status, operation, kind_of_code)
}

/// Like [`check`], where an argument that IREE finds invalid is a file that is not what it should be.
pub(super) fn check_content(status: sys::iree_status_t, operation: &'static str) -> Result<()> {
    check_as(status, operation, |code| match kind_of_code(code) {
        ErrorKind::InvalidInput | ErrorKind::NotFound | ErrorKind::Device => ErrorKind::Corrupt,
        kind => kind,
    })
}

fn check_as(
    status: sys::iree_status_t,
    operation: &'static str,
    kind_of: impl FnOnce(sys::iree_status_code_e) -> ErrorKind,
) -> Result<()> {
    // A null status is success and owns nothing.
    if status.is_null() {
        return Ok(());
    }
    let words = text(status);
    // SAFETY: the status came from an IREE call that gave it to us, and nobody has consumed it yet; this frees it and
    // it is not used again.
    let code = unsafe { sys::iree_status_consume_code(status) };
    let kind = kind_of(code as sys::iree_status_code_e);
    Err(Error::new(kind, operation, "the IREE runtime reported a failure").with_source(RuntimeFailure(words)))
}

/// What kind of error a status code is, where the call has no better idea.
fn kind_of_code(code: sys::iree_status_code_e) -> ErrorKind {
    match code {
        sys::iree_status_code_e_IREE_STATUS_RESOURCE_EXHAUSTED => ErrorKind::ResourceExhausted,
        sys::iree_status_code_e_IREE_STATUS_INVALID_ARGUMENT
        | sys::iree_status_code_e_IREE_STATUS_OUT_OF_RANGE => ErrorKind::InvalidInput,
        sys::iree_status_code_e_IREE_STATUS_NOT_FOUND => ErrorKind::NotFound,
        sys::iree_status_code_e_IREE_STATUS_UNIMPLEMENTED
        | sys::iree_status_code_e_IREE_STATUS_INCOMPATIBLE => ErrorKind::Unsupported,
        sys::iree_status_code_e_IREE_STATUS_DATA_LOSS => ErrorKind::Corrupt,
        _ => ErrorKind::Device,
    }
}

/// The status as IREE prints it: the place in its source, the code, the message.
fn text(status: sys::iree_status_t) -> String {
    let allocator = sys::host_allocator();
    let mut buffer = ptr::null_mut();
    let mut length = 0usize;
    // SAFETY: the status is live, the allocator and both outputs outlive the call; on success `buffer` holds `length`
    // bytes allocated by `allocator`, which are copied and then freed with it.
    unsafe {
        if !sys::iree_status_to_string(status, &allocator, &mut buffer, &mut length) || buffer.is_null() {
            return "no description is available".to_owned();
        }
        let bytes = std::slice::from_raw_parts(buffer.cast::<u8>(), length);
        let words = String::from_utf8_lossy(bytes).trim_end_matches('\0').trim().to_owned();
        sys::iree_allocator_free(allocator, buffer.cast());
        words
    }
}
