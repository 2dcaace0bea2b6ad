//! Writers that are killed at random moments, and readers that check what they see.
#![cfg(unix)]

use std::env;
use std::fs;
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use mlxcel_iree_target::Revision;

use super::entry::{self, Wanted};
use super::key::ProgramSum;
use super::{Cache, Key, Label, entry_path};
use crate::compiler::{CompileOptions, Identity};
use crate::testing::resolved;

/// Few, so that writers meet on the same entries.
const KEYS: usize = 8;
const WRITERS: usize = 4;
const WRITES: usize = 200;

fn key(number: usize) -> Key {
    let options = CompileOptions::new(resolved("llvm-cpu:x86-64-v3"));
    let compiler = Identity { revision: Revision::recorded("3.13.0").unwrap(), checksum: [7; 32] };
    Key::new(ProgramSum::new(&number.to_string(), &options), &compiler)
}

/// What is filed under a number: large enough that writing it takes a while.
fn artifact(number: usize) -> Vec<u8> {
    let length = 100_000 + 37_111 * number;
    (0..length).map(|at| (at.wrapping_mul(number + 3) >> 3) as u8).collect()
}

/// Numbers that look random.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// What the test below starts as processes of their own; by itself it has nothing to do.
#[test]
fn writer() {
    let Some(folder) = env::var_os("MLXCEL_TEST_WRITER").map(PathBuf::from) else { return };
    let cache = Cache::open(Some(&folder.join("cache"))).unwrap();
    let mut begun = fs::File::options().append(true).open(folder.join("begun")).unwrap();
    let mut random = Random((u64::from(std::process::id()) * 0x9e37_79b9) | 1);
    loop {
        let number = random.below(KEYS as u64) as usize;
        let reservation = cache.reserve(&key(number), None).unwrap().unwrap();
        begun.write_all(b".").unwrap();
        reservation.store(&Label::default(), &artifact(number)).unwrap();
    }
}

fn start_writer(folder: &Path) -> Child {
    Command::new(env::current_exe().unwrap())
        .args(["--exact", "cache::kill_tests::writer"])
        .env("MLXCEL_TEST_WRITER", folder)
        .env_remove("MLXCEL_CACHE_SIZE")
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn readers_never_see_a_corrupt_entry_after_writers_are_killed() {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("cache");
    fs::create_dir(&cache).unwrap();
    fs::write(folder.path().join("begun"), "").unwrap();
    let begun = || fs::metadata(folder.path().join("begun")).unwrap().len() as usize;
    let artifacts: Vec<Vec<u8>> = (0..KEYS).map(artifact).collect();
    let paths: Vec<PathBuf> = (0..KEYS).map(|number| entry_path(&cache, &key(number))).collect();
    let (over, seen) = (AtomicBool::new(false), AtomicUsize::new(0));
    let check = |number: usize| match entry::read(&paths[number], Wanted::Key(&key(number))) {
        Ok(Ok(bytes)) => {
            assert!(bytes == artifacts[number], "entry {number} holds something else");
            seen.fetch_add(1, Ordering::Relaxed);
        }
        Ok(Err(reason)) => panic!("entry {number}: {reason}"),
        Err(error) => assert_eq!(error.kind(), ErrorKind::NotFound, "entry {number}: {error}"),
    };

    let mut killed = 0;
    thread::scope(|scope| {
        let readers: Vec<_> = (0..2)
            .map(|reader| {
                let (over, check) = (&over, &check);
                scope.spawn(move || {
                    let mut random = Random(reader + 1);
                    while !over.load(Ordering::Relaxed) {
                        check(random.below(KEYS as u64) as usize);
                    }
                })
            })
            .collect();
        let mut random = Random(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64 | 1);
        let mut writers: Vec<Child> = (0..WRITERS).map(|_| start_writer(folder.path())).collect();
        let deadline = Instant::now() + Duration::from_secs(60);
        while begun() < WRITES
            && Instant::now() < deadline
            && !readers.iter().any(|reader| reader.is_finished())
        {
            thread::sleep(Duration::from_micros(random.below(40_000)));
            let victim = &mut writers[random.below(WRITERS as u64) as usize];
            victim.kill().unwrap();
            victim.wait().unwrap();
            killed += 1;
            *victim = start_writer(folder.path());
        }
        for mut writer in writers {
            writer.kill().unwrap();
            writer.wait().unwrap();
        }
        over.store(true, Ordering::Relaxed);
    });
    println!("{killed} writers killed in {} writes, {} readings", begun(), seen.load(Ordering::Relaxed));
    assert!(begun() >= WRITES, "only {} writes were begun", begun());
    (0..KEYS).for_each(check);
    assert!(seen.into_inner() > KEYS, "readers saw entries");
    assert!(killed > WRITERS, "writers were killed");
}
