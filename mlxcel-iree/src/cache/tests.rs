//! Artifacts in the cache, made by a script in the compiler's place that keeps a diary.
#![cfg(unix)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use mlxcel_core::ErrorKind;
use tempfile::TempDir;

use super::*;
use crate::artifact::{Artifact, Artifacts};
use crate::compiler::CompileOptions;

/// A folder with a compiler that writes down each start, and a cache.
struct Bench {
    folder: TempDir,
}

impl Bench {
    fn new() -> Self {
        let bench = Self { folder: tempfile::tempdir().unwrap() };
        bench.install_compiler("3.13.0 @ one", "");
        bench
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A compiler that reports `revision`, and does `before` it compiles.
    fn install_compiler(&self, revision: &str, before: &str) {
        let diary = self.path("diary");
        let script = format!(
            "#!/bin/sh\n[ \"$1\" = --version ] && {{ echo version >> {0}; echo '  IREE compiler version {revision}'; exit; }}\n\
             echo compile >> {0}\n{before}\necho 'made by {revision} of' > program.vmfb; cat program.mlir >> program.vmfb\n",
            diary.display()
        );
        fs::write(self.path("iree-compile"), script).unwrap();
        fs::set_permissions(self.path("iree-compile"), fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn artifacts(&self) -> Artifacts {
        Artifacts::new(Some(self.path("iree-compile")), Cache::open(Some(&self.path("cache"))))
    }

    fn get(&self, program: &str) -> Artifact {
        self.artifacts().get(program, &options(), None).unwrap()
    }

    /// How often the compiler was started for `what`.
    fn starts(&self, what: &str) -> usize {
        fs::read_to_string(self.path("diary"))
            .unwrap_or_default()
            .lines()
            .filter(|line| *line == what)
            .count()
    }

    /// The only entry of the cache.
    fn entry(&self) -> PathBuf {
        let mut entries: Vec<PathBuf> = self
            .files()
            .into_iter()
            .filter(|path| path.extension().is_some_and(|extension| extension == "vmfb"))
            .collect();
        assert_eq!(entries.len(), 1, "{entries:?}");
        entries.remove(0)
    }

    fn files(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.path("cache")).unwrap();
        entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_file()).collect()
    }
}

fn options() -> CompileOptions {
    CompileOptions::new(crate::backend::host())
}

#[test]
fn a_second_start_does_not_start_the_compiler() {
    let bench = Bench::new();
    let first = bench.get("program");
    assert!(first.compiled);
    assert_eq!(first.bytes, b"made by 3.13.0 @ one of\nprogram");
    let _ = fs::remove_file(bench.path("diary"));
    let second = bench.get("program");
    assert!(!second.compiled);
    assert_eq!(second.bytes, first.bytes);
    assert_eq!((bench.starts("compile"), bench.starts("version")), (0, 0), "not even for its version");
    assert_eq!(bench.files(), [bench.entry()], "no lock and no part is left behind");
}

#[test]
fn another_program_flag_or_compiler_is_compiled_anew() {
    let bench = Bench::new();
    assert!(bench.get("program").compiled);
    assert!(bench.get("another").compiled);
    let mut flags = options();
    flags.flags.push("--more".to_owned());
    assert!(bench.artifacts().get("program", &flags, None).unwrap().compiled);

    bench.install_compiler("3.13.0 @ another", "");
    let rebuilt = bench.get("program");
    assert!(rebuilt.compiled);
    assert_eq!(rebuilt.bytes, b"made by 3.13.0 @ another of\nprogram");
}

#[test]
fn a_damaged_entry_is_made_again_and_not_trusted() {
    let bench = Bench::new();
    let good = bench.get("program").bytes;
    let entry = bench.entry();
    let key = Key::new(ProgramSum::new("program", &options()), &Revision::recorded("3.13.0 @ one").unwrap());
    assert!(read_or_remove(&entry, Some(key.sum())).is_some());
    let whole = fs::read(&entry).unwrap();
    let mut damages: Vec<Vec<u8>> =
        vec![vec![], b"mlxcart".to_vec(), whole[..whole.len() - 1].to_vec(), [&whole[..], b"x"].concat()];
    for at in 0..whole.len() {
        let mut flipped = whole.clone();
        flipped[at] ^= 1;
        damages.push(flipped);
    }
    for (index, damage) in damages.iter().enumerate() {
        // Each is noticed; a few are repaired as well, which starts the compiler.
        fs::write(&entry, damage).unwrap();
        if index % 16 == 0 {
            let repaired = bench.get("program");
            assert!(repaired.compiled, "damage {index}");
            assert_eq!(repaired.bytes, good);
            assert_eq!(fs::read(&entry).unwrap(), whole);
        } else {
            assert!(read_or_remove(&entry, Some(key.sum())).is_none(), "damage {index}");
            assert!(!entry.exists());
        }
    }
}

#[test]
fn an_entry_under_another_name_is_not_mistaken() {
    let bench = Bench::new();
    bench.get("program");
    let entry = bench.entry();
    let stolen = fs::read(&entry).unwrap();
    fs::remove_file(&entry).unwrap();
    bench.get("another");
    fs::write(bench.entry(), stolen).unwrap();
    let another = bench.get("another");
    assert!(another.compiled);
    assert_eq!(another.bytes, b"made by 3.13.0 @ one of\nanother");
}

#[test]
fn threads_that_want_the_same_program_compile_it_once() {
    let bench = Bench::new();
    bench.install_compiler("3.13.0 @ slow", "sleep 0.5");
    let begin = Barrier::new(4);
    let results: Vec<Artifact> = thread::scope(|scope| {
        let workers: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    begin.wait();
                    bench.get("program")
                })
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    });
    assert_eq!(bench.starts("compile"), 1);
    assert_eq!(results.iter().filter(|artifact| artifact.compiled).count(), 1);
    assert!(results.iter().all(|artifact| artifact.bytes == results[0].bytes));
}

/// What the test below starts as a process of its own; by itself it has nothing to do.
#[test]
fn in_another_process() {
    let Some(folder) = env::var_os("MLXCEL_TEST_BENCH") else { return };
    let folder = PathBuf::from(folder);
    let artifacts =
        Artifacts::new(Some(folder.join("iree-compile")), Cache::open(Some(&folder.join("cache"))));
    let artifact = artifacts.get("program", &options(), None).unwrap();
    assert_eq!(artifact.bytes, b"made by 3.13.0 @ slow of\nprogram");
}

#[test]
fn processes_that_want_the_same_program_compile_it_once() {
    let bench = Bench::new();
    bench.install_compiler("3.13.0 @ slow", "sleep 0.5");
    let mut children: Vec<_> = (0..3)
        .map(|_| {
            Command::new(env::current_exe().unwrap())
                .args(["--exact", "cache::tests::in_another_process"])
                .env("MLXCEL_TEST_BENCH", bench.folder.path())
                .stdout(std::process::Stdio::null())
                .spawn()
                .unwrap()
        })
        .collect();
    for child in &mut children {
        assert!(child.wait().unwrap().success());
    }
    assert_eq!(bench.starts("compile"), 1);
}

#[test]
fn a_process_that_dies_while_compiling_blocks_nobody() {
    let bench = Bench::new();
    bench.install_compiler("3.13.0 @ slow", "exec sleep 600");
    let mut child = Command::new(env::current_exe().unwrap())
        .args(["--exact", "cache::tests::in_another_process"])
        .env("MLXCEL_TEST_BENCH", bench.folder.path())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + Duration::from_secs(30);
    while bench.starts("compile") == 0 {
        assert!(Instant::now() < deadline);
        thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    bench.install_compiler("3.13.0 @ slow", "");
    assert!(bench.get("program").compiled);
}

#[test]
fn waiting_for_somebody_else_can_be_cancelled() {
    let bench = Bench::new();
    let sum = ProgramSum::new("program", &options());
    let key = Key::new(sum, &Revision::recorded("3.13.0 @ one").unwrap());
    let cache = Cache::open(Some(&bench.path("cache")));
    let held = cache.reserve(&key, None).unwrap();
    let cancel = CancelToken::new();
    let waiting = thread::spawn({
        let (artifacts, cancel) = (bench.artifacts(), cancel.clone());
        move || artifacts.get("program", &options(), Some(&cancel)).unwrap_err()
    });
    thread::sleep(Duration::from_millis(100));
    cancel.cancel();
    assert_eq!(waiting.join().unwrap().kind(), ErrorKind::Cancelled);
    drop(held);
    assert!(bench.get("program").compiled, "whoever reserved it did not make it");
}

#[test]
fn a_failed_compilation_leaves_nothing_behind() {
    let bench = Bench::new();
    bench.install_compiler("3.13.0 @ sick", "echo half > program.vmfb; kill -9 $$");
    let error = bench.artifacts().get("program", &options(), None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Compile);
    assert!(bench.files().iter().all(|path| path.extension().is_some_and(|extension| extension == "lock")));
    bench.install_compiler("3.13.0 @ sick", "");
    assert!(bench.get("program").compiled);
}

#[test]
fn a_named_folder_has_to_be_writable() {
    let bench = Bench::new();
    // A folder cannot be made under a file, whoever asks.
    let folder = bench.path("iree-compile").join("cache");
    let artifacts = Artifacts::new(Some(bench.path("iree-compile")), Cache::open(Some(&folder)));
    let error = artifacts.get("program", &options(), None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
    assert_eq!(error.context("path"), folder.to_str());
    assert_eq!(bench.starts("compile"), 0, "said before anything is compiled");
}

#[test]
fn without_a_usable_folder_of_the_users_programs_are_compiled_and_not_stored() {
    let bench = Bench::new();
    for folder in [None, Some(bench.path("iree-compile").join("cache"))] {
        let artifacts = Artifacts::new(Some(bench.path("iree-compile")), Cache { folder, named: false });
        for _ in 0..2 {
            assert!(artifacts.get("program", &options(), None).unwrap().compiled);
        }
    }
}

#[test]
fn without_a_compiler_what_is_there_will_do() {
    let bench = Bench::new();
    let made = bench.get("program").bytes;
    let cache = Cache::open(Some(&bench.path("cache")));
    assert_eq!(cache.read_any(&ProgramSum::new("program", &options())), Some(made));
    assert_eq!(cache.read_any(&ProgramSum::new("another", &options())), None);
    fs::write(bench.entry(), "damaged").unwrap();
    assert_eq!(cache.read_any(&ProgramSum::new("program", &options())), None);
}

#[test]
fn the_compilers_note_does_not_outlive_the_compiler() {
    let bench = Bench::new();
    let cache = Cache::open(Some(&bench.path("cache")));
    let compiler = bench.path("iree-compile");
    assert_eq!(cache.known_revision(&compiler), None);
    let revision = Revision::recorded("3.13.0 @ one").unwrap();
    cache.note_revision(&compiler, &revision);
    assert_eq!(cache.known_revision(&compiler), Some(revision));
    bench.install_compiler("3.13.0 @ two, which is longer", "");
    assert_eq!(cache.known_revision(&compiler), None);
    assert_eq!(cache.known_revision(Path::new("/nowhere")), None);
}
