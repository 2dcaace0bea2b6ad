//! Targets, checkpoints, and scripts in the place of compilers, for tests.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use mlxcel_iree_target::{CompileBackends, ResolvedTarget};
use mlxcel_models::Checkpoint;

/// What programs of this machine are compiled for.
pub(crate) fn host() -> ResolvedTarget {
    resolved("llvm-cpu:host")
}

/// What a target that is written down means.
pub(crate) fn resolved(target: &str) -> ResolvedTarget {
    CompileBackends::builtin().resolve(&target.parse().unwrap()).unwrap()
}

/// The checkpoint of an architecture.
pub(crate) fn checkpoint(name: &str) -> Checkpoint {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/architectures");
    Checkpoint::open(fixtures.join(name)).unwrap()
}

/// Writes an executable script. A process of its own writes it: another test may fork while this process has
/// the file open for writing, and a program that any process has open for writing cannot be started ("text
/// file busy").
pub(crate) fn write_script(path: &Path, text: &str) {
    let mut shell = Command::new("sh");
    shell.args(["-c", "cat > \"$0\" && chmod 755 \"$0\""]).arg(path).stdin(Stdio::piped());
    let mut shell = shell.spawn().unwrap();
    shell.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(shell.wait().unwrap().success());
}

/// Copies a program, by a process of its own; see [`write_script`].
pub(crate) fn copy_program(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg(from).arg(to).status().unwrap().success());
}
