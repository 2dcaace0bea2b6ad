//! The program, run to its end.

#[cfg(any(target_os = "linux", feature = "iree"))]
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

/// The program with these arguments, on an engine of its own choice.
pub(crate) fn mlxcel(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mlxcel"));
    command.args(arguments).env_remove("MLXCEL_BACKEND");
    command
}

/// Starts a command, all of whose streams are pipes.
pub(crate) fn start(command: &mut Command) -> Child {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// How a run ended.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) status: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Run {
    pub(crate) fn of(command: &mut Command) -> Self {
        Self::ended(command.output().unwrap())
    }

    /// With this on standard input.
    pub(crate) fn with_input(command: &mut Command, input: &[u8]) -> Self {
        let mut child = start(command);
        // It may end before it has read all.
        let _ = child.stdin.take().unwrap().write_all(input);
        Self::ended(child.wait_with_output().unwrap())
    }

    pub(crate) fn ended(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Self { status: output.status.code().unwrap(), out: text(output.stdout), err: text(output.stderr) }
    }

    /// What it printed; it has to have succeeded, and noted nothing.
    #[track_caller]
    pub(crate) fn printed(self) -> String {
        assert_eq!((self.status, self.err.as_str()), (0, ""), "{}", self.out);
        self.out
    }

    /// The one object that it printed.
    #[track_caller]
    pub(crate) fn json(self) -> Value {
        serde_json::from_str(&self.printed()).unwrap()
    }

    /// What it says; it has to have failed with this status and one line that has `words`.
    #[track_caller]
    pub(crate) fn refused(self, status: i32, words: &[&str]) -> String {
        assert_eq!((self.status, self.out.as_str()), (status, ""), "{}", self.err);
        let is_line = self.err.starts_with("error: ") && self.err.ends_with('\n');
        assert!(is_line && self.err.lines().count() == 1, "{}", self.err);
        for word in words {
            assert!(self.err.contains(word), "{word:?} is not in: {}", self.err);
        }
        self.err
    }
}

pub(crate) fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures").join(name)
}

/// A copy of the bundled model for a test to spoil.
pub(crate) fn copy_of_storyteller() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    copy_folder(&fixture("../examples/models/storyteller"), folder.path());
    folder
}

/// Copies the files of a folder, and of those in it.
pub(crate) fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let to = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy_folder(&entry.path(), &to),
            false => drop(fs::copy(entry.path(), to).unwrap()),
        }
    }
}

/// Every file below a folder by its path in it, with its content.
#[cfg(any(target_os = "linux", feature = "iree"))]
pub(crate) fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        let name = PathBuf::from(path.file_name().unwrap());
        if path.is_dir() {
            found.extend(files(&path).into_iter().map(|(below, content)| (name.join(below), content)));
        } else {
            found.insert(name, fs::read(path).unwrap());
        }
    }
    found
}
