//! A plugin that fails when a test says so, in a plugin's own way: through what its functions answer.

use std::ffi::c_char;
use std::path::Path;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, OnceLock};

use super::plugin::{Inner, LOADED, Plugin};
use super::sys;

/// A function of the plugin that can be made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Point {
    Compile,
    Upload,
    Execute,
    ReadBack,
    /// The event of a transfer to the device, which is ready and reports a failure.
    Await,
}

/// Which function fails the next time that it is called, as a number; none where it is negative.
static NEXT: AtomicI32 = AtomicI32::new(-1);
/// The functions behind ours.
static INNER: OnceLock<Table> = OnceLock::new();

struct Table(sys::Api);

// SAFETY: a table is not written to, and PJRT's functions may be called from any thread.
unsafe impl Send for Table {}
// SAFETY: as above.
unsafe impl Sync for Table {}

fn inner() -> &'static sys::Api {
    &INNER.get().unwrap().0
}

/// What the error of ours points to, which is none of the plugin's.
static OURS: u8 = 0;
const WORDS: &str = "the test's device is gone";
/// Abseil's `UNAVAILABLE`.
const CODE: i32 = 14;

fn ours() -> *mut sys::Error {
    (&raw const OURS).cast_mut().cast()
}

/// Has the next call of one function fail.
pub(crate) fn fail_next(point: Point) {
    NEXT.store(point as i32, Ordering::SeqCst);
}

/// Whether that failure has happened.
pub(crate) fn has_failed() -> bool {
    NEXT.load(Ordering::SeqCst) < 0
}

fn fails(point: Point) -> bool {
    NEXT.compare_exchange(point as i32, -1, Ordering::SeqCst, Ordering::SeqCst).is_ok()
}

/// Functions that fail, or do what the plugin's do.
macro_rules! failing {
    ($($name:ident: $point:expr, $field:ident, $arguments:ty;)*) => {
        $(unsafe extern "C" fn $name(arguments: *mut $arguments) -> *mut sys::Error {
            if fails($point) {
                return ours();
            }
            // SAFETY: the arguments are the caller's for this very function.
            unsafe { inner().$field.unwrap()(arguments) }
        })*
    };
}

failing! {
    compile: Point::Compile, client_compile, sys::ClientCompile;
    upload: Point::Upload, client_buffer_from_host, sys::BufferFromHost;
    execute: Point::Execute, loaded_execute, sys::Execute;
    read_back: Point::ReadBack, buffer_to_host, sys::BufferToHost;
}

unsafe extern "C" fn wait(arguments: *mut sys::EventAwait) -> *mut sys::Error {
    // SAFETY: the arguments are the caller's for this very function. It is waited for in any case: memory is
    // in use until then.
    let waited = unsafe { inner().event_await.unwrap()(arguments) };
    if waited.is_null() && fails(Point::Await) { ours() } else { waited }
}

unsafe extern "C" fn error_destroy(arguments: *mut sys::ErrorDestroy) {
    // SAFETY: the arguments are the caller's; an error of the plugin's goes to the plugin.
    unsafe {
        if (*arguments).error != ours() {
            inner().error_destroy.unwrap()(arguments);
        }
    }
}

unsafe extern "C" fn error_message(arguments: *mut sys::ErrorMessage) {
    // SAFETY: as above.
    unsafe {
        if (*arguments).error == ours().cast_const() {
            (*arguments).message = WORDS.as_ptr().cast::<c_char>();
            (*arguments).message_size = WORDS.len();
        } else {
            inner().error_message.unwrap()(arguments);
        }
    }
}

unsafe extern "C" fn error_get_code(arguments: *mut sys::ErrorGetCode) -> *mut sys::Error {
    // SAFETY: as above.
    unsafe {
        if (*arguments).error == ours().cast_const() {
            (*arguments).code = CODE;
            return std::ptr::null_mut();
        }
        inner().error_get_code.unwrap()(arguments)
    }
}

/// Makes loading the existing file at `path` return `plugin` with failing functions.
pub(crate) fn register(plugin: &Plugin, path: &Path) {
    let mut api = INNER.get_or_init(|| Table(*plugin.api())).0;
    api.client_compile = Some(compile);
    api.client_buffer_from_host = Some(upload);
    api.loaded_execute = Some(execute);
    api.buffer_to_host = Some(read_back);
    api.event_await = Some(wait);
    api.error_destroy = Some(error_destroy);
    api.error_message = Some(error_message);
    api.error_get_code = Some(error_get_code);
    let path = path.canonicalize().unwrap();
    let plugin = Plugin(Arc::new(Inner { api, path: path.clone() }));
    LOADED.lock().unwrap().insert(path, plugin);
}
