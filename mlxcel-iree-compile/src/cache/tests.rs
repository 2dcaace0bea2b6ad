//! Artifacts in the cache, made by a script in the compiler's place that keeps a diary.
#![cfg(unix)]

mod eviction;

use std::fs;
use std::process::{Child, Command, Stdio};
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use mlxcel_core::ErrorKind;
use tempfile::TempDir;

use super::*;
use crate::artifact::{Artifact, Artifacts};
use crate::compiler::{CompileOptions, Compiler, Identity};
use crate::testing::{copy_program, write_script};

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
        write_script(&self.path("iree-compile"), &script);
        self.settle();
    }

    /// Makes the compiler look as if it had been there for a while: what is new may change unnoticed, and is
    /// not noted.
    fn settle(&self) {
        let file = fs::File::open(self.path("iree-compile")).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(60)).unwrap();
    }

    fn cache(&self) -> Cache {
        Cache::open(Some(&self.path("cache"))).unwrap()
    }

    fn compiler(&self) -> Compiler {
        Compiler::locate(Some(&self.path("iree-compile"))).unwrap()
    }

    fn key(&self, program: &str) -> Key {
        let compiler = self.compiler();
        let (revision, checksum) = (compiler.revision(None).unwrap(), compiler.checksum(None).unwrap());
        Key::new(ProgramSum::new(program, &options()), &Identity { revision, checksum })
    }

    fn artifacts(&self) -> Artifacts {
        Artifacts::new(Some(self.path("iree-compile")), self.cache())
    }

    fn get(&self, program: &str) -> Artifact {
        self.artifacts().get(program, &options(), None).unwrap()
    }

    /// A process that gets the program.
    fn another_process(&self) -> Child {
        let mut test = Command::new(env::current_exe().unwrap());
        test.args(["--exact", "cache::tests::in_another_process"]).stdout(Stdio::null());
        test.env("MLXCEL_TEST_BENCH", self.folder.path()).spawn().unwrap()
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
        let mut entries = self.files();
        entries.retain(|path| path.extension().is_some_and(|extension| extension == "vmfb"));
        assert_eq!(entries.len(), 1, "{entries:?}");
        entries.remove(0)
    }

    fn files(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.path("cache")).unwrap();
        entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_file()).collect()
    }
}

fn options() -> CompileOptions {
    CompileOptions::new(crate::testing::host())
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
fn another_program_flag_or_compiler_is_compiled_again() {
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
fn a_corrupt_entry_is_recompiled() {
    let bench = Bench::new();
    let good = bench.get("program").bytes;
    let entry = bench.entry();
    let key = bench.key("program");
    assert!(bench.cache().read(&key).is_some());
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
            assert!(bench.cache().read(&key).is_none(), "damage {index}");
            assert!(!entry.exists());
        }
    }
}

#[test]
fn a_program_with_a_long_label_is_found_again() {
    let bench = Bench::new();
    let options = options().with_label(format!("a{}", "\u{e9}".repeat(40_000)));
    let compiled = || bench.artifacts().get("program", &options, None).unwrap().compiled;
    assert_eq!([compiled(), compiled()], [true, false]);
    assert!(bench.cache().entries().unwrap()[0].program.starts_with("a\u{e9}"));
}

#[test]
fn an_entry_under_the_wrong_key_is_rejected() {
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
    let get = || {
        begin.wait();
        bench.get("program")
    };
    let results: [Artifact; 4] =
        thread::scope(|scope| [(); 4].map(|()| scope.spawn(get)).map(|worker| worker.join().unwrap()));
    assert_eq!(bench.starts("compile"), 1);
    assert_eq!(results.iter().filter(|artifact| artifact.compiled).count(), 1);
    assert!(results.iter().all(|artifact| artifact.bytes == results[0].bytes));
}

/// What tests below start as a process of its own; by itself it has nothing to do.
#[test]
fn in_another_process() {
    let Some(folder) = env::var_os("MLXCEL_TEST_BENCH") else { return };
    let folder = PathBuf::from(folder);
    let artifacts =
        Artifacts::new(Some(folder.join("iree-compile")), Cache::open(Some(&folder.join("cache"))).unwrap());
    let artifact = artifacts.get("program", &options(), None).unwrap();
    assert_eq!(artifact.bytes, b"made by 3.13.0 @ slow of\nprogram");
}

#[test]
fn processes_that_want_the_same_program_compile_it_once() {
    let bench = Bench::new();
    bench.install_compiler("3.13.0 @ slow", "sleep 0.5");
    let mut children = [(); 3].map(|()| bench.another_process());
    assert!(children.iter_mut().all(|child| child.wait().unwrap().success()));
    assert_eq!(bench.starts("compile"), 1);
}

#[test]
fn a_process_killed_while_compiling_does_not_block_others() {
    let bench = Bench::new();
    bench.install_compiler("3.13.0 @ slow", "exec sleep 600");
    let mut child = bench.another_process();
    let deadline = Instant::now() + Duration::from_secs(120);
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
fn waiting_for_another_compilation_can_be_cancelled() {
    let bench = Bench::new();
    let held = bench.cache().reserve(&bench.key("program"), None).unwrap();
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
fn a_failed_compilation_leaves_no_files() {
    let bench = Bench::new();
    bench.install_compiler("3.13.0 @ sick", "echo half > program.vmfb; kill -9 $$");
    let error = bench.artifacts().get("program", &options(), None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Compile);
    assert!(bench.files().iter().all(|path| path.extension().is_some_and(|extension| extension == "lock")));
    bench.install_compiler("3.13.0 @ sick", "");
    assert!(bench.get("program").compiled);
}

#[test]
fn other_users_may_read_entries() {
    use std::os::unix::fs::PermissionsExt as _;
    let bench = Bench::new();
    bench.get("program");
    fs::write(bench.path("plain"), "").unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o444;
    let note = fs::read_dir(bench.path("cache/compilers")).unwrap().next().unwrap().unwrap();
    for written in [bench.entry(), note.path()] {
        assert_eq!(mode(&written), mode(&bench.path("plain")), "{}", written.display());
    }
}

#[test]
fn a_configured_cache_folder_must_be_writable() {
    let bench = Bench::new();
    // A folder cannot be created below a file, for any user.
    let folder = bench.path("iree-compile").join("cache");
    let artifacts = Artifacts::new(Some(bench.path("iree-compile")), Cache::open(Some(&folder)).unwrap());
    let error = artifacts.get("program", &options(), None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
    assert_eq!(error.context("path"), folder.to_str());
    assert_eq!(bench.starts("compile"), 0, "said before anything is compiled");
}

#[test]
fn without_a_usable_cache_folder_programs_are_compiled_and_not_stored() {
    let bench = Bench::new();
    for folder in [None, Some(bench.path("iree-compile").join("cache"))] {
        let artifacts =
            Artifacts::new(Some(bench.path("iree-compile")), Cache { folder, named: false, limit: 0 });
        for _ in 0..2 {
            assert!(artifacts.get("program", &options(), None).unwrap().compiled);
        }
    }
}

#[test]
fn without_a_compiler_cached_programs_still_run() {
    let bench = Bench::new();
    let made = bench.get("program").bytes;
    let cache = bench.cache();
    let any = |program| cache.read_any(&ProgramSum::new(program, &options())).unwrap();
    assert_eq!(any("program"), Some(made));
    assert_eq!(any("another"), None);
    fs::write(bench.entry(), "damaged").unwrap();
    assert_eq!(any("program"), None);
}

#[test]
fn without_a_compiler_an_entry_under_the_wrong_key_is_not_run() {
    let bench = Bench::new();
    bench.get("program");
    let another = ProgramSum::new("another", &options());
    let name = format!("{}-{}.vmfb", another.stem(), "0".repeat(16));
    fs::copy(bench.entry(), bench.path("cache").join(&name)).unwrap();
    assert_eq!(bench.cache().read_any(&another).unwrap(), None);
    assert!(!bench.path("cache").join(name).exists());
}

#[test]
fn pipes_in_the_cache_do_not_block() {
    let bench = Bench::new();
    let good = bench.get("program").bytes;
    let (entry, key) = (bench.entry(), bench.key("program"));
    let pipe = |path: &Path| {
        let _ = fs::remove_file(path);
        rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    };
    pipe(&entry);
    let error = bench.cache().read_any(key.program()).unwrap_err();
    assert_eq!(error.context("path"), entry.to_str());
    assert_eq!(bench.get("program").bytes, good, "it is replaced by what is compiled");

    let key = bench.key("another");
    let lock = bench.path("cache").join(format!("{}.lock", key.name()));
    pipe(&lock);
    let error = bench.artifacts().get("another", &options(), None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
    for note in fs::read_dir(bench.path("cache/compilers")).unwrap() {
        pipe(&note.unwrap().path());
    }
    bench.get("program");
}

#[test]
fn a_full_cache_folder_is_reported() {
    let bench = Bench::new();
    let reservation = bench.cache().reserve(&bench.key("program"), None).unwrap().unwrap();
    // Nothing can be written there any more.
    fs::remove_dir_all(bench.path("cache")).unwrap();
    let error = reservation.store(&Label::default(), b"artifact").unwrap_err();
    assert!(
        error.context("path").is_some_and(|path| path.starts_with(bench.path("cache").to_str().unwrap()))
    );
}

#[test]
fn the_recorded_compiler_identity_expires_with_the_compiler() {
    let bench = Bench::new();
    let cache = bench.cache();
    assert_eq!(cache.known_identity(&bench.compiler()), None);
    bench.get("program");
    let known = cache.known_identity(&bench.compiler()).unwrap();
    assert_eq!(known.revision.as_str(), "3.13.0 @ one");
    assert_eq!(known.checksum, bench.compiler().checksum(None).unwrap());

    // As long as before, and of the same time.
    bench.install_compiler("3.13.0 @ two", "");
    assert_eq!(cache.known_identity(&bench.compiler()), None);
    assert!(bench.get("program").compiled);
    assert_ne!(cache.known_identity(&bench.compiler()).unwrap().checksum, known.checksum);

    // Its library is as much the compiler as its program.
    fs::write(bench.path("libIREECompiler.so"), "code").unwrap();
    assert_eq!(cache.known_identity(&bench.compiler()), None);
    assert!(bench.get("program").compiled);
    assert_eq!(
        cache.known_identity(&bench.compiler()),
        None,
        "a library that is this new is not relied upon"
    );
    assert!(!bench.get("program").compiled, "but what it made is found");
}

#[test]
fn a_copied_compiler_has_the_same_identity() {
    let (one, other) = (Bench::new(), Bench::new());
    copy_program(&one.path("iree-compile"), &other.path("iree-compile"));
    assert_eq!(one.key("program"), other.key("program"));
    let made = one.get("program");
    fs::rename(one.path("cache"), other.path("cache")).unwrap();
    let found = other.get("program");
    assert!(!found.compiled, "a cache may be moved");
    assert_eq!(found.bytes, made.bytes);
    for file in other.files() {
        let bytes = fs::read(&file).unwrap();
        let path = one.folder.path().to_str().unwrap().as_bytes();
        assert!(!bytes.windows(path.len()).any(|window| window == path), "{}", file.display());
    }
}

#[test]
fn an_implausibly_long_entry_is_not_read() {
    let bench = Bench::new();
    let good = bench.get("program").bytes;
    let entry = bench.entry();
    let whole = fs::read(&entry).unwrap();
    let length = 20_u64 << 30;
    // One whose header knows nothing of its length, one whose header states it, and one of zeros.
    let mut stated = whole.clone();
    let artifact_length = 8 + 32 + 64 + 8;
    let label = whole.len() as u64 - good.len() as u64;
    stated[artifact_length..artifact_length + 8].copy_from_slice(&(length - label).to_le_bytes());
    for begin in [&whole, &stated, &vec![]] {
        fs::write(&entry, begin).unwrap();
        // It takes no space on disk; to read it would take minutes.
        fs::File::options().write(true).open(&entry).unwrap().set_len(length).unwrap();
        let repaired = bench.get("program");
        assert!(repaired.compiled);
        assert_eq!((repaired.bytes, fs::read(&entry).unwrap().len()), (good.clone(), whole.len()));
    }
}

#[test]
fn a_folder_in_the_place_of_an_entry_is_a_miss() {
    let bench = Bench::new();
    let good = bench.get("program").bytes;
    let entry = bench.entry();
    fs::remove_file(&entry).unwrap();
    for place in [entry.with_extension("lock"), entry.clone()] {
        fs::create_dir_all(place.join("of somebody")).unwrap();
        let artifact = bench.get("program");
        assert!(artifact.compiled);
        assert_eq!(artifact.bytes, good);
        assert!(place.join("of somebody").is_dir());
        fs::remove_dir_all(place).unwrap();
    }
}
