//! Writing that is interrupted: the process is killed, the disk is full or read-only. The target is unchanged
//! or complete, and the next run removes leftovers.
#![cfg(target_os = "linux")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::program::{Run, files};
use crate::support::{Fixture, cache_dir};

const PROGRAM: &str = env!("CARGO_BIN_EXE_mlxcel");

/// A subcommand that writes a folder.
struct Writer {
    arguments: Vec<String>,
    /// Whether it replaces what it wrote before.
    replaces: bool,
}

/// A subcommand of the story teller.
fn writer(arguments: &[&str], replaces: bool) -> Writer {
    let model = Fixture::storyteller().path;
    let arguments = [arguments, &["--model", model.to_str().unwrap(), "--out"]].concat();
    Writer { arguments: arguments.into_iter().map(str::to_owned).collect(), replaces }
}

fn quantize() -> Writer {
    writer(&["quantize"], false)
}

/// `bundle` as text, since compiling is not what is interrupted here; once there it is replaced.
#[cfg(feature = "iree")]
fn bundle() -> Writer {
    writer(&["bundle", "--target", "stablehlo", "--context", "100", "--force"], true)
}

impl Writer {
    fn command(&self, out: &Path) -> Command {
        let mut command = Command::new(PROGRAM);
        command.args(&self.arguments).arg(out).env("MLXCEL_CACHE_DIR", cache_dir());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    /// What it writes, and how long that takes.
    fn whole(&self) -> (BTreeMap<PathBuf, Vec<u8>>, Duration) {
        let place = tempfile::tempdir().unwrap();
        let out = place.path().join("out");
        assert!(self.command(&out).status().unwrap().success());
        if !self.replaces {
            fs::remove_dir_all(&out).unwrap();
        }
        let started = Instant::now();
        assert!(self.command(&out).status().unwrap().success());
        (files(&out), started.elapsed())
    }
}

/// Moments that look random.
struct Moments(u64);

impl Moments {
    fn within(&mut self, time: Duration) -> Duration {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        time.mul_f64((self.0 % 10_000) as f64 / 10_000.0)
    }
}

/// Kills `writer` at `kills` moments over its whole time, and a little after.
fn is_killed(writer: &Writer, kills: usize) {
    let (whole, time) = writer.whole();
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("out");
    let (mut moments, mut left, mut finished) = (Moments(u64::from(std::process::id()) | 1 << 40), 0, 0);
    let mut was_there = false;
    for number in 0..kills {
        let mut child = writer.command(&out).spawn().unwrap();
        thread::sleep(moments.within(time.mul_f64(1.2)));
        child.kill().unwrap();
        child.wait().unwrap();
        let is_there = out.exists();
        assert!(is_there || !was_there, "kill {number}: what stood there is gone");
        assert!(!is_there || files(&out) == whole, "kill {number}: what stands there is not whole");
        finished += usize::from(is_there && !was_there);
        left += usize::from(fs::read_dir(place.path()).unwrap().count() > usize::from(is_there));
        was_there = is_there && writer.replaces;
        if is_there && !was_there {
            fs::remove_dir_all(&out).unwrap();
        }
    }
    println!(
        "{kills} kills within {time:?}: {finished} times it was there, {left} times something was left behind"
    );
    assert!(writer.command(&out).status().unwrap().success());
    assert!(files(&out) == whole);
    let left = fs::read_dir(place.path()).unwrap().count();
    assert_eq!(left, 1, "what was left behind is removed by the next run");
}

#[test]
fn killed_quantization_leaves_no_partial_checkpoint() {
    is_killed(&quantize(), 10);
}

#[cfg(feature = "iree")]
#[test]
fn a_killed_bundle_writer_leaves_the_previous_or_the_complete_bundle() {
    is_killed(&bundle(), 10);
}

/// `cargo test --release -p mlxcel-cli --test interrupted -- --ignored --nocapture`
#[test]
#[ignore = "takes minutes"]
fn two_hundred_kills() {
    is_killed(&quantize(), 200);
    #[cfg(feature = "iree")]
    is_killed(&bundle(), 200);
}

/// Runs `script` with `$0` the writer's program, `$1` a folder, and the writer's arguments behind, where it
/// may mount; none where nobody but root may.
fn mounted(writer: &Writer, script: &str) -> Option<Run> {
    let tried = Command::new("unshare").args(["-rm", "mount", "-t", "tmpfs", "none", "/mnt"]).output();
    if !tried.is_ok_and(|output| output.status.success()) {
        eprintln!("not run: this system lets nobody mount");
        return None;
    }
    let place = tempfile::tempdir().unwrap();
    let mut command = Command::new("unshare");
    command.args(["-rm", "sh", "-c", script, PROGRAM]).arg(place.path()).args(&writer.arguments);
    Some(Run::of(command.env("MLXCEL_CACHE_DIR", cache_dir())))
}

fn writers() -> Vec<Writer> {
    vec![
        quantize(),
        #[cfg(feature = "iree")]
        bundle(),
    ]
}

#[test]
fn a_full_disk_at_any_point_is_reported_and_leaves_no_files() {
    for writer in writers() {
        let size: usize = writer.whole().0.values().map(Vec::len).sum();
        // From a disk without room for the first file to one that is a little too small.
        for part in [0.001, 0.3, 0.7, 0.97] {
            let bytes = (size as f64 * part) as usize / 4096 * 4096 + 4096;
            let script = format!(
                "mount -t tmpfs -o size={bytes} none \"$1\" && at=$1 && shift && \"$0\" \"$@\" \"$at/out\" >/dev/null; \
                 code=$?; ls -A \"$at\"; exit $code"
            );
            let Some(output) = mounted(&writer, &script) else { return };
            output.refused(1, &["the disk is full"]);
        }
    }
}

#[test]
fn a_file_size_limit_is_reported_and_leaves_no_files() {
    for writer in writers() {
        let place = tempfile::tempdir().unwrap();
        let script = "ulimit -f 100; at=$1; shift; \"$0\" \"$@\" \"$at/out\" >/dev/null; code=$?; ls -A \"$at\"; exit $code";
        let mut command = Command::new("sh");
        command.args(["-c", script, PROGRAM]).arg(place.path()).args(&writer.arguments);
        Run::of(command.env("MLXCEL_CACHE_DIR", cache_dir())).refused(1, &["too large"]);
    }
}

#[test]
fn a_read_only_disk_is_reported() {
    for writer in writers() {
        let script = "mount -t tmpfs -o ro none \"$1\" && at=$1 && shift && \"$0\" \"$@\" \"$at/out\" >/dev/null; \
                      code=$?; ls -A \"$at\"; exit $code";
        let Some(output) = mounted(&writer, script) else { return };
        output.refused(1, &[]);
    }
}
