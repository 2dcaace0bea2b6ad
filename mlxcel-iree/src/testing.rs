//! Targets, the cache of compiled programs, and scripts in the place of compilers, for tests.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use mlxcel_iree_target::{CompileBackends, ResolvedTarget};

/// What programs of this machine are compiled for.
pub(crate) fn host() -> ResolvedTarget {
    resolved("llvm-cpu:host")
}

/// What a target that is written down means.
pub(crate) fn resolved(target: &str) -> ResolvedTarget {
    CompileBackends::builtin().resolve(&target.parse().unwrap()).unwrap()
}

/// Where the tests of all packages keep compiled programs, for tests that a warm cache does not weaken.
pub(crate) fn cache_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/tmp/iree-cache")
}

/// Writes an executable script that looks as if it had been there for a minute: a compiler is noted once its
/// files have not changed for a while. A process of its own writes it: another test may fork while this
/// process has the file open for writing, and a program that any process has open for writing cannot be
/// started ("text file busy").
pub(crate) fn write_compiler(path: &Path, text: &str) {
    let mut shell = Command::new("sh");
    shell.args(["-c", "cat > \"$0\" && chmod 755 \"$0\""]).arg(path).stdin(Stdio::piped());
    let mut shell = shell.spawn().unwrap();
    shell.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(shell.wait().unwrap().success());
    let past = SystemTime::now() - Duration::from_secs(60);
    File::open(path).unwrap().set_modified(past).unwrap();
}
