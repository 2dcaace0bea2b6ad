//! A plugin's errors, each consumed exactly once, here.

use std::ffi::c_int;

use mlxcel_core::{Error, ErrorKind, Result};

use super::{named, sys};

/// The kind of error that a code is, one of Abseil's statuses, where the operation has no better idea.
fn kind(code: c_int) -> Option<ErrorKind> {
    Some(match code {
        1 => ErrorKind::Cancelled,
        8 => ErrorKind::ResourceExhausted,
        12 => ErrorKind::Unsupported,
        _ => return None,
    })
}

impl sys::Api {
    /// Turns what a call answered into a result; `otherwise` is the kind of a failure whose code says nothing
    /// more precise. The plugin's own words are the source of the error.
    ///
    /// # Safety
    /// `error` was returned by a call of this plugin, and nothing else consumes it.
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
        if let Some(get_code) = self.error_get_code {
            // SAFETY: the error is live by the caller's promise; an error in asking for the code is released
            // at once.
            unsafe {
                let failure = get_code(&mut code);
                if !failure.is_null() && failure != error {
                    self.destroy(failure);
                }
            }
        }
        let mut message = sys::ErrorMessage { error, ..Default::default() };
        // SAFETY: the error is live; the words live as long as it and are copied before it is destroyed,
        // last.
        let words = unsafe {
            if let Some(get_message) = self.error_message {
                get_message(&mut message);
            }
            let words = named::text(message.message, message.message_size);
            self.destroy(error);
            words
        };
        let kind = kind(code.code).unwrap_or(otherwise);
        Err(Error::new(kind, operation, "the PJRT plugin reported a failure")
            .with_source(format!("{words} (code {})", code.code)))
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
