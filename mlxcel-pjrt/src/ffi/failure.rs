//! A plugin's errors, each consumed exactly once, here.

use std::ffi::c_int;
use std::fmt;
use std::slice;

use mlxcel_core::{Error, ErrorKind, Result};

use super::sys;

/// A failure in the plugin's own words; the [source](std::error::Error::source) of the error that reports it.
#[derive(Debug)]
struct PluginFailure {
    words: String,
    code: c_int,
}

impl fmt::Display for PluginFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match name(self.code) {
            Some(name) => write!(f, "{name}: {}", self.words),
            None => write!(f, "code {}: {}", self.code, self.words),
        }
    }
}

impl std::error::Error for PluginFailure {}

/// The names of the codes, which are those of Abseil's statuses.
fn name(code: c_int) -> Option<&'static str> {
    const NAMES: [&str; 17] = [
        "ok",
        "cancelled",
        "unknown",
        "invalid argument",
        "deadline exceeded",
        "not found",
        "already exists",
        "permission denied",
        "resource exhausted",
        "failed precondition",
        "aborted",
        "out of range",
        "unimplemented",
        "internal",
        "unavailable",
        "data loss",
        "unauthenticated",
    ];
    usize::try_from(code).ok().and_then(|code| NAMES.get(code).copied())
}

/// The kind of error that a code is, where the operation has no better idea.
fn kind(code: c_int) -> Option<ErrorKind> {
    Some(match code {
        1 => ErrorKind::Cancelled,
        8 => ErrorKind::ResourceExhausted,
        12 => ErrorKind::Unsupported,
        _ => return None,
    })
}

impl sys::Api {
    /// Turns what a call answered into a result; `otherwise` is the kind of a failure whose code says nothing more precise.
    ///
    /// # Safety
    /// `error` was returned by a call of this plugin, and nobody else consumes it.
    pub(super) unsafe fn check(
        &self,
        error: *mut sys::Error,
        operation: &'static str,
        otherwise: ErrorKind,
    ) -> Result<()> {
        // None is success.
        if error.is_null() {
            return Ok(());
        }
        let mut code = sys::ErrorGetCode { error, ..Default::default() };
        let mut message = sys::ErrorMessage { error, ..Default::default() };
        if let Some(get_code) = self.error_get_code {
            // SAFETY: the error is live by the caller's promise; an error in asking for the code is given back at once.
            unsafe {
                let failure = get_code(&mut code);
                if !failure.is_null() && failure != error {
                    self.destroy(failure);
                }
            }
        }
        let mut words = String::new();
        if let Some(get_message) = self.error_message {
            // SAFETY: the error is live; the words live as long as it and are copied before it is destroyed.
            unsafe {
                get_message(&mut message);
                if !message.message.is_null() {
                    let bytes = slice::from_raw_parts(message.message.cast::<u8>(), message.message_size);
                    words = String::from_utf8_lossy(bytes).trim().to_owned();
                }
            }
        }
        // SAFETY: it is consumed last, and not used again.
        unsafe { self.destroy(error) };
        let kind = kind(code.code).unwrap_or(otherwise);
        Err(Error::new(kind, operation, "the PJRT plugin reported a failure")
            .with_source(PluginFailure { words, code: code.code }))
    }

    /// # Safety
    /// `error` is a live error of this plugin, and not used again.
    unsafe fn destroy(&self, error: *mut sys::Error) {
        if let Some(destroy) = self.error_destroy {
            let mut arguments = sys::ErrorDestroy { error, ..Default::default() };
            // SAFETY: the caller's promise.
            unsafe { destroy(&mut arguments) };
        }
    }
}
