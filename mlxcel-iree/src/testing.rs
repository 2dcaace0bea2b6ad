//! Targets, the compiler, the cache of compiled programs, scripts in the place of compilers, and calls of
//! programs, for tests.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use mlxcel_iree_compile::compiler::{CompileOptions, Compiler};
use mlxcel_iree_runtime::{Argument, Constants, Device, Function};
use mlxcel_iree_target::ResolvedTarget;
use mlxcel_stablehlo::TensorType;

#[path = "../../mlxcel-iree-compile/src/testing.rs"]
#[allow(dead_code)]
mod shared;

pub(crate) use shared::{host, resolved};

/// The compiler of the tests.
pub(crate) fn compiler() -> Compiler {
    Compiler::locate(None).expect("no IREE compiler: run `cargo xtask setup`")
}

/// The program of `text` for `target`.
pub(crate) fn compiled(text: &str, target: &ResolvedTarget) -> Vec<u8> {
    compiler().compile(text, &CompileOptions::new(target.clone()), None).unwrap()
}

/// A result of a program.
pub(crate) struct Returned {
    pub(crate) ty: TensorType,
    pub(crate) bytes: Vec<u8>,
    /// Whether it is in the storage of an argument.
    pub(crate) in_place: bool,
}

/// What `function` returns for arguments of these types and bytes.
pub(crate) fn call<'a>(
    device: &Device,
    function: &Function,
    arguments: impl IntoIterator<Item = (&'a TensorType, &'a [u8])>,
) -> Vec<Returned> {
    let buffers: Vec<_> =
        arguments.into_iter().map(|(ty, bytes)| (ty, device.upload(bytes).unwrap())).collect();
    let arguments: Vec<_> =
        buffers.iter().map(|(ty, buffer)| Argument::new(buffer, &ty.shape, ty.element)).collect();
    let results = function.invoke(&Constants::default(), &arguments).unwrap();
    let returned = results.into_iter().map(|result| {
        let mut bytes = vec![0; result.buffer.size()];
        result.buffer.read(0, &mut bytes).unwrap();
        let in_place = buffers.iter().any(|(_, buffer)| result.buffer.shares_storage_with(buffer));
        Returned { ty: result.ty, bytes, in_place }
    });
    returned.collect()
}

/// Where the tests of all packages keep compiled programs, for tests that a warm cache does not weaken.
pub(crate) fn cache_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/tmp/iree-cache")
}

/// Writes an executable script that looks as if it had been there for a minute: a compiler is noted once its
/// files have not changed for a while.
pub(crate) fn write_compiler(path: &Path, text: &str) {
    shared::write_script(path, text);
    let past = SystemTime::now() - Duration::from_secs(60);
    File::open(path).unwrap().set_modified(past).unwrap();
}
