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

/// Converts a status into a result; `operation` names the attempt.
///
/// # Safety
/// `status` was returned by an IREE call, and nothing else consumes it.
pub(super) unsafe fn check(status: sys::iree_status_t, operation: &'static str) -> Result<()> {
    // SAFETY: the caller's promise is this function's.
    unsafe { check_as(status, operation, kind_of_code) }
}

/// Like [`check`], where an argument that IREE finds invalid is a file that is not what it should be.
///
/// # Safety
/// As for [`check`].
pub(super) unsafe fn check_content(status: sys::iree_status_t, operation: &'static str) -> Result<()> {
    let kind_of = |code| match kind_of_code(code) {
        ErrorKind::InvalidInput | ErrorKind::NotFound | ErrorKind::Device => ErrorKind::Corrupt,
        kind => kind,
    };
    // SAFETY: the caller's promise is this function's.
    unsafe { check_as(status, operation, kind_of) }
}

/// # Safety
/// As for [`check`].
unsafe fn check_as(
    status: sys::iree_status_t,
    operation: &'static str,
    kind_of: impl FnOnce(sys::iree_status_code_e) -> ErrorKind,
) -> Result<()> {
    // A null status is success and owns nothing.
    if status.is_null() {
        return Ok(());
    }
    // SAFETY: by the caller's promise the status is live and ours; it is consumed last, and not used again.
    let (words, code) = unsafe { (text(status), sys::iree_status_consume_code(status)) };
    // The code by which drivers report a lost device, and by which nothing else fails.
    let (kind, message) = match code as sys::iree_status_code_e {
        sys::iree_status_code_e_IREE_STATUS_DATA_LOSS => {
            (ErrorKind::Device, "the device was lost: drop the model and load it again")
        }
        code => (kind_of(code), "the IREE runtime reported a failure"),
    };
    Err(Error::new(kind, operation, message).with_source(RuntimeFailure(words)))
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
        _ => ErrorKind::Device,
    }
}

/// The status as IREE prints it: the place in its source, the code, the message.
///
/// # Safety
/// `status` is live.
unsafe fn text(status: sys::iree_status_t) -> String {
    let allocator = sys::host_allocator();
    let mut buffer = ptr::null_mut();
    let mut length = 0usize;
    // SAFETY: the status is live by the caller's promise, the allocator and both outputs outlive the call; on
    // success `buffer` holds `length`
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
