//! A plugin: a shared library that exports `GetPjrtApi`.

use std::collections::BTreeMap;
use std::fmt;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

use libloading::Library;
use mlxcel_core::{Error, ErrorKind, Result};

use super::{named, sys};
use crate::options::OptionValue;

const OPERATION: &str = "load PJRT plugin";

/// A loaded plugin. It stays loaded until the process ends: compilers and drivers cannot be unloaded.
#[derive(Clone)]
pub(crate) struct Plugin(pub(super) Arc<Inner>);

pub(super) struct Inner {
    /// A copy of the plugin's table, with nothing where the plugin's is shorter.
    pub(super) api: sys::Api,
    pub(super) path: PathBuf,
}

// SAFETY: the table is never written to after it was made, and PJRT's functions may be called from any
// thread.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

/// The plugins of this process by path: each is initialized once.
pub(super) static LOADED: Mutex<BTreeMap<PathBuf, Plugin>> = Mutex::new(BTreeMap::new());

impl Plugin {
    /// Loads the library at `path`, which runs its code: naming it is trusting it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] where there is no such file, [`ErrorKind::Toolchain`] where it is no plugin or
    /// one of another major version of the API, and what the plugin says of its initialization.
    pub(crate) fn load(path: &Path) -> Result<Self> {
        let full = path.canonicalize().map_err(|error| Error::io(OPERATION, path, error))?;
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(plugin) = loaded.get(&full) {
            return Ok(plugin.clone());
        }
        let plugin = Self::open(&full).map_err(|error| error.with_context("path", full.display()))?;
        loaded.insert(full, plugin.clone());
        Ok(plugin)
    }

    fn open(path: &Path) -> Result<Self> {
        // SAFETY: initializers of the library run here; the caller chose it.
        let library = unsafe { Library::new(path) }.map_err(|error| {
            let message = "this is not a loadable shared library; name a PJRT plugin for this machine";
            Error::new(ErrorKind::Toolchain, OPERATION, message).with_source(error)
        })?;
        // Not unloaded, whatever becomes of it: it may have started threads.
        let library = ManuallyDrop::new(library);
        // SAFETY: the type is that of the function of this name in PJRT's header.
        let get_api = unsafe { library.get::<sys::GetApi>(b"GetPjrtApi\0") }.map_err(|error| {
            let message = "the library does not export GetPjrtApi: it is not a PJRT plugin";
            Error::new(ErrorKind::Toolchain, OPERATION, message).with_source(error)
        })?;
        // SAFETY: it takes nothing and gives a table that lives as long as the library.
        let api = unsafe { copy_table(get_api()) }?;
        let plugin = Self(Arc::new(Inner { api, path: path.to_owned() }));
        plugin.call(api.plugin_initialize, sys::PluginInitialize::default(), OPERATION)?;
        Ok(plugin)
    }

    /// Where it was loaded from.
    pub(crate) fn path(&self) -> &Path {
        &self.0.path
    }

    /// The version of the API that it implements.
    pub(crate) fn version(&self) -> (i32, i32) {
        (self.0.api.version.major, self.0.api.version.minor)
    }

    /// What it says of itself, such as `stablehlo_current_version`.
    pub(crate) fn attributes(&self) -> Result<Vec<(String, OptionValue)>> {
        let arguments = sys::PluginAttributes::default();
        match self.call(self.api().plugin_attributes, arguments, "describe plugin") {
            // SAFETY: attributes live as long as the process.
            Ok(found) => Ok(unsafe { named::from_plugin(found.attributes, found.count) }),
            Err(error) if error.kind() == ErrorKind::Unsupported => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    pub(super) fn api(&self) -> &sys::Api {
        &self.0.api
    }

    /// Calls one of its functions and returns its arguments with the results in them; a failure is of kind
    /// `Device` unless the plugin says something more precise.
    pub(super) fn call<A>(&self, function: sys::Call<A>, arguments: A, operation: &'static str) -> Result<A> {
        self.call_as(function, arguments, operation, ErrorKind::Device)
    }

    /// The same, with another kind of failure.
    pub(super) fn call_as<A>(
        &self,
        function: sys::Call<A>,
        mut arguments: A,
        operation: &'static str,
        otherwise: ErrorKind,
    ) -> Result<A> {
        let function = function.ok_or_else(|| {
            let (message, (major, minor)) =
                ("the PJRT plugin lacks a required function; use a newer plugin", self.version());
            Error::unsupported(operation, message)
                .with_context("plugin", self.path().display())
                .with_context("api_version", format_args!("{major}.{minor}"))
        })?;
        // SAFETY: the function is the plugin's of this type; its arguments are filled in by this module,
        // which keeps what they point to alive for the call. The error that it answers is consumed by
        // `check`.
        unsafe { self.api().check(function(&mut arguments), operation, otherwise) }?;
        Ok(arguments)
    }

    /// Frees what the plugin gave; where that fails there is nothing to be done about it.
    pub(super) fn free<A>(&self, function: sys::Call<A>, arguments: A, operation: &'static str) {
        if let Err(error) = self.call(function, arguments, operation) {
            tracing::warn!(%error, "the PJRT plugin failed to free an object");
        }
    }

    /// Waits for an event, and destroys it.
    ///
    /// # Safety
    /// `event` is null, or an event of this plugin that is not used elsewhere.
    pub(super) unsafe fn wait(&self, event: *mut sys::Event, operation: &'static str) -> Result<()> {
        if event.is_null() {
            return Ok(());
        }
        let arguments = sys::EventAwait { event, ..Default::default() };
        let waited = self.call(self.api().event_await, arguments, operation);
        let arguments = sys::EventDestroy { event, ..Default::default() };
        let destroyed = self.call(self.api().event_destroy, arguments, operation);
        waited.and(destroyed.map(drop))
    }
}

impl fmt::Debug for Plugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor) = self.version();
        write!(f, "Plugin({}, {major}.{minor})", self.path().display())
    }
}

/// A copy of a plugin's table, as far as it goes.
///
/// # Safety
/// `table` is null, or points to a table of as many bytes as it says first.
unsafe fn copy_table(table: *const sys::Api) -> Result<sys::Api> {
    let wrong = |message: &'static str| Error::new(ErrorKind::Toolchain, OPERATION, message);
    if table.is_null() {
        return Err(wrong("the plugin returned no function table"));
    }
    // SAFETY: the size stands first, whatever the version.
    let size = unsafe { (&raw const (*table).struct_size).read() };
    if size < sys::Api::LEAST {
        return Err(
            wrong("the plugin's function table is shorter than in any version").with_context("bytes", size)
        );
    }
    let mut copy = MaybeUninit::<sys::Api>::zeroed();
    // SAFETY: the plugin's table has `size` bytes, ours `size_of`; functions that are not copied stay zero,
    // which is none.
    let api = unsafe {
        ptr::copy_nonoverlapping(
            table.cast::<u8>(),
            copy.as_mut_ptr().cast::<u8>(),
            size.min(size_of::<sys::Api>()),
        );
        copy.assume_init()
    };
    if api.version.major != sys::MAJOR {
        return Err(wrong("the plugin has another major version of PJRT's API than this engine")
            .with_context("plugin", format_args!("{}.{}", api.version.major, api.version.minor))
            .with_context("engine", format_args!("{}.{}", sys::MAJOR, sys::MINOR)));
    }
    Ok(api)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_api_table_is_read_up_to_its_size_and_checked_by_major_version() {
        let table = |size: usize, major: i32| {
            // SAFETY: zeros are a valid table.
            let mut api: sys::Api = unsafe { std::mem::zeroed() };
            api.struct_size = size;
            api.version.major = major;
            // Never called: any function will do.
            api.buffer_unsafe_pointer = Some(never);
            api
        };
        unsafe extern "C" fn never(_: *mut sys::BufferPointer) -> *mut sys::Error {
            ptr::null_mut()
        }
        let whole = size_of::<sys::Api>();
        // SAFETY: all these tables are as long as they say, or shorter ones are refused first.
        unsafe {
            assert!(copy_table(&table(whole, 0)).unwrap().buffer_unsafe_pointer.is_some());
            assert!(copy_table(&table(whole - 8, 0)).unwrap().buffer_unsafe_pointer.is_none());
            for (size, major, told) in [(whole, 1, "major version"), (16, 0, "shorter")] {
                let error = copy_table(&table(size, major)).err().unwrap();
                assert_eq!(error.kind(), ErrorKind::Toolchain);
                assert!(error.message().contains(told), "{error}");
            }
            assert!(copy_table(ptr::null()).is_err());
        }
    }
}
