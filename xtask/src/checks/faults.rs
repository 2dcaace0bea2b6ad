//! A failure at the n-th system call, after SQLite's tests: each program runs again and again, and each time
//! another call fails that reads, writes, maps memory, or starts a thread. It then ends as without the
//! failure, or says in one line what failed; what it was to write is whole or not there.
//!
//! strace makes the calls fail. What happens before `main` is the loader's, and left out.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, bail};

use super::Done;
use super::external::MODEL;
use crate::process;
use crate::workspace::Workspace;

/// Calls, and how they fail.
const CALLS: [(&str, &str); 22] = [
    ("clone3", "EAGAIN"),
    ("copy_file_range", "EIO"),
    ("fallocate", "ENOSPC"),
    ("fdatasync", "EIO"),
    ("flock", "ENOLCK"),
    ("fsync", "EIO"),
    ("ftruncate", "ENOSPC"),
    ("getdents64", "EIO"),
    ("linkat", "EIO"),
    ("lseek", "EIO"),
    ("mkdir", "ENOSPC"),
    ("mmap", "ENOMEM"),
    ("newfstatat", "EIO"),
    ("openat", "EMFILE"),
    ("pread64", "EIO"),
    ("read", "EIO"),
    ("readlink", "EIO"),
    ("rename", "EIO"),
    ("renameat2", "EIO"),
    ("statx", "EIO"),
    ("unlink", "EIO"),
    ("write", "ENOSPC"),
];
/// How many calls of a kind fail in turn, spread over those that a program makes.
const FAILURES: usize = 25;
/// Before the tokens in what `generate` prints; times stand elsewhere.
const TOKENS: &str = "\"tokens\":[";
/// The folder that a program writes, in the folder of its run.
const OUT: &str = "out";

/// A program and where it runs.
struct Subject<'a> {
    program: &'a Path,
    arguments: Vec<&'a str>,
    /// The cache of compiled programs, which is full.
    cache: &'a Path,
}

/// The call of this number, from one, fails with an error.
struct Failure {
    call: &'static str,
    error: &'static str,
    number: usize,
}

/// What a run left behind.
#[derive(PartialEq, Eq)]
struct Left {
    /// The generated tokens.
    said: String,
    files: BTreeMap<PathBuf, Vec<u8>>,
}

pub(super) fn check(workspace: &Workspace) -> Result<Done> {
    if process::output(Command::new("strace").arg("--version")).is_err() {
        let missing = "strace makes calls fail, and is not installed: apt-get install strace";
        return Ok(Done::Unchecked(missing.to_owned()));
    }
    let command = workspace.program("mlxcel", "programs")?;
    let program = Path::new(command.get_program());
    let cache = tempfile::tempdir().context("making a folder for the cache")?;
    let model = workspace.root().join(MODEL).display().to_string();
    let generate = |engine| vec!["generate", "--backend", engine, "--max-tokens", "4", "--json"];
    let subjects = [
        generate("portable"),
        generate("iree"),
        generate("mlx"),
        vec!["inspect", "--model", &model, "--json"],
        vec!["quantize", "--model", &model, "--out", OUT],
        vec!["bundle", "--model", &model, "--out", OUT, "--context", "64"],
    ];
    let (mut made, mut defects) = (0, Vec::new());
    for arguments in subjects {
        let name = arguments.join(" ");
        made +=
            Subject { program, arguments, cache: cache.path() }.sweep(&mut defects).with_context(|| name)?;
    }
    if !defects.is_empty() {
        bail!("{} of {made} failures were not answered:\n{}", defects.len(), defects.join("\n"));
    }
    Ok(Done::Checked(format!("{made} failures answered")))
}

impl Subject<'_> {
    /// Lets calls fail in turn; how many did.
    fn sweep(&self, defects: &mut Vec<String>) -> Result<usize> {
        // Fills the cache.
        let (first, _) = self.run(None)?;
        if !first.status.success() {
            bail!("it fails by itself: {}", String::from_utf8_lossy(&first.stderr).trim());
        }
        let (_, whole) = self.run(None)?;
        let before = self.calls(&["--help"])?;
        let calls = self.calls(&self.arguments)?;
        let mut made = 0;
        for (call, error) in CALLS {
            let (start, end) =
                (before.get(call).copied().unwrap_or(0), calls.get(call).copied().unwrap_or(0));
            for number in (start + 1..=end).step_by((end.saturating_sub(start) / FAILURES).max(1)) {
                let (output, left) = self.run(Some(&Failure { call, error, number }))?;
                made += 1;
                if let Some(defect) = defect(&output, &left, &whole) {
                    defects.push(format!("{}: {call} {number} {error}: {defect}", self.arguments.join(" ")));
                }
            }
        }
        Ok(made)
    }

    /// Runs it, with a failure that strace makes; `None` makes none.
    fn run(&self, failure: Option<&Failure>) -> Result<(Output, Left)> {
        let folder = tempfile::tempdir().context("making a folder for a run")?;
        let mut command = Command::new("strace");
        command.args(["-f", "-qq", "-o", "trace"]);
        match failure {
            Some(Failure { call, error, number }) => {
                command.arg(format!("--trace={call}"));
                command.arg(format!("--inject={call}:error={error}:when={number}"));
            }
            None => drop(command.arg("--trace=none")),
        }
        let output = self.start(&mut command, &self.arguments, folder.path())?;
        let said = String::from_utf8_lossy(&output.stdout);
        let said = said.split_once(TOKENS).and_then(|(_, rest)| rest.split(']').next()).unwrap_or("");
        let left = Left { said: said.to_owned(), files: files(&folder.path().join(OUT))? };
        Ok((output, left))
    }

    /// How often it makes each call.
    fn calls(&self, arguments: &[&str]) -> Result<BTreeMap<String, usize>> {
        let folder = tempfile::tempdir().context("making a folder for a run")?;
        let mut command = Command::new("strace");
        command.args(["-f", "-qq", "-c", "-U", "calls,name", "-o", "trace"]);
        self.start(&mut command, arguments, folder.path())?;
        let text = fs::read_to_string(folder.path().join("trace")).context("reading what strace counted")?;
        let lines = text.lines().filter_map(|line| line.trim().split_once(char::is_whitespace));
        Ok(lines.filter_map(|(calls, name)| Some((name.trim().to_owned(), calls.parse().ok()?))).collect())
    }

    fn start(&self, strace: &mut Command, arguments: &[&str], folder: &Path) -> Result<Output> {
        strace.arg(self.program).args(arguments).current_dir(folder).stdin(Stdio::null());
        strace.env("HOME", folder).env("MLXCEL_CACHE_DIR", self.cache).env("RUST_BACKTRACE", "0");
        strace.output().context("running strace")
    }
}

/// What is wrong with a run in which a call failed, if anything is.
fn defect(output: &Output, left: &Left, whole: &Left) -> Option<String> {
    let errors = String::from_utf8_lossy(&output.stderr);
    let errors = errors.trim();
    if !left.files.is_empty() && left.files != whole.files {
        return Some(format!("it left a part of the folder: {errors}"));
    }
    match output.status.code() {
        Some(0) if left == whole => None,
        Some(0) => Some("another result".to_owned()),
        Some(1 | 2) if errors.lines().count() == 1 => None,
        _ => Some(format!("{}: {errors}", output.status)),
    }
}

/// The files below a folder, which need not be there.
fn files(folder: &Path) -> Result<BTreeMap<PathBuf, Vec<u8>>> {
    let mut files = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        let Ok(entries) = fs::read_dir(&next) else { continue };
        for entry in entries {
            let path = entry.with_context(|| format!("listing {}", next.display()))?.path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(folder).unwrap_or(&path).to_owned();
                files.insert(name, fs::read(&path).with_context(|| format!("reading {}", path.display()))?);
            }
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    use super::*;

    fn output(status: i32, errors: &str) -> Output {
        Output { status: ExitStatus::from_raw(status), stdout: Vec::new(), stderr: errors.into() }
    }

    fn left(said: &str, file: Option<&str>) -> Left {
        let files = file.map(|text| (PathBuf::from("file"), text.as_bytes().to_vec()));
        Left { said: said.to_owned(), files: files.into_iter().collect() }
    }

    #[test]
    fn one_line_or_the_same_result_is_no_defect() {
        let whole = left("tokens", Some("bytes"));
        assert_eq!(defect(&output(0, ""), &left("tokens", Some("bytes")), &whole), None);
        assert_eq!(defect(&output(1 << 8, "error: no space\n"), &left("", None), &whole), None);
        for (status, errors, left) in [
            (0, "", left("others", Some("bytes"))),
            (1 << 8, "error: no space\n", left("", Some("by"))),
            (1 << 8, "", left("", None)),
            (101 << 8, "thread 'main' panicked", left("", None)),
            (11, "", left("", None)),
        ] {
            assert!(defect(&output(status, errors), &left, &whole).is_some(), "{status} {errors}");
        }
    }
}
