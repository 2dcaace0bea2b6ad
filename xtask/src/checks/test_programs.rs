//! All tests: compiled once, and then run by as many test programs at a time as there are cores. The
//! documentation of the libraries is made where its tests are run.
//!
//! Cargo runs one test program after the other, so at the end of each a single long test keeps the other
//! cores idle; and a test that waits for the IREE compiler leaves its own core idle too.
//!
//! There are two tiers of tests: those in modules named `nightly`, and further checkpoints for engines that
//! compile, run with `--all`.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::Mutex;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use cargo_metadata::Message;

use super::compile::Counts;
use super::scripts::documenting_rustdoc;
use crate::process;
use crate::workspace::{Workspace, cargo_program};

/// Test programs that take longest, longest first: started first, they do not run alone at the end.
const LONGEST: &[&str] =
    &["tests/suite", "mlxcel-iree/mlxcel_iree", "mlxcel-pjrt/mlxcel_pjrt", "mlxcel-mlx/suite"];

/// Which tests to run, and what to report.
#[derive(clap::Args, Default)]
pub(crate) struct Options {
    /// With the check `test`: report the time of each test program and of this many slowest tests
    #[arg(long, value_name = "COUNT")]
    slowest: Option<usize>,
}

/// Tests of a night have this in their paths.
pub(super) const NIGHTLY: &str = "nightly::";
/// Which tests of the programs run.
enum Tier {
    /// Those of a change.
    Change,
    /// All.
    Night,
}

/// Runs the tests of a change, or all tests.
pub(super) fn check(workspace: &Workspace, options: &Options, all: bool) -> Result<String> {
    let features = workspace.features()?;
    let selection = ["--locked", "--workspace", "--features", &features];
    let started = Instant::now();
    let programs = build(workspace, &selection)?;
    let compiled = started.elapsed();

    let tier = if all { Tier::Night } else { Tier::Change };
    let mut total = Counts::default();
    let started = Instant::now();
    let finished = run_all(programs, options, &tier, &mut total)?;
    let ran = started.elapsed();
    if let Some(count) = options.slowest {
        report(&finished, count);
    }

    // Those in the documentation are compiled when they run, and it is made along.
    let started = Instant::now();
    let mut command = workspace.cargo_with_lints(&["test", "--doc", "--no-fail-fast"]);
    command.envs(documenting_rustdoc(workspace)?.iter().map(|script| ("RUSTDOC", script)));
    let documented = process::run_watched(command.args(selection), |line| total.add(line));
    let failed: Vec<_> = finished.iter().filter(|run| !run.passed).map(|run| run.name.as_str()).collect();
    if !failed.is_empty() {
        bail!("{total}: failed: {}", failed.join(", "));
    }
    if let Err(error) = documented {
        bail!("{total}: {error:#}");
    }
    if total.passed == 0 {
        bail!("no test ran");
    }
    let seconds = |time: Duration| time.as_secs();
    let [compiled, ran, documented] = [compiled, ran, started.elapsed()].map(seconds);
    Ok(format!("{total}; compiled in {compiled} s, ran in {ran} s, documentation {documented} s"))
}

/// A compiled program with tests.
struct Program {
    /// The folder of its package, and its target.
    name: String,
    path: PathBuf,
    /// The folder of its package, in which cargo runs it.
    folder: PathBuf,
}

/// Compiles all test programs; in the order in which they are to be run.
fn build(workspace: &Workspace, selection: &[&str]) -> Result<Vec<Program>> {
    let mut command = workspace.cargo_with_lints(&["test", "--no-run"]);
    command.args(selection);
    let mut programs = Vec::new();
    process::for_each_message(command, |message| {
        let Message::CompilerArtifact(artifact) = message else { return };
        if let (true, Some(path), Some(folder)) =
            (artifact.profile.test, artifact.executable, artifact.manifest_path.parent())
        {
            let name = format!("{}/{}", folder.file_name().unwrap_or_default(), artifact.target.name);
            programs.push(Program { name, path: path.into(), folder: folder.into() });
        }
    })?;
    let rank = |program: &Program| LONGEST.iter().position(|name| *name == program.name);
    programs.sort_by_key(|program| rank(program).unwrap_or(LONGEST.len()));
    Ok(programs)
}

/// A program that has run.
struct Finished {
    name: String,
    passed: bool,
    time: Duration,
    /// Each test with its time, if that was asked for.
    tests: Vec<(String, Duration)>,
}

/// Runs the programs, several at a time, and prints the output of each when it has ended.
fn run_all(
    programs: Vec<Program>,
    options: &Options,
    tier: &Tier,
    total: &mut Counts,
) -> Result<Vec<Finished>> {
    let queue = Mutex::new(VecDeque::from(programs));
    let next = || queue.lock().ok()?.pop_front();
    let workers = thread::available_parallelism().map_or(2, usize::from);
    thread::scope(|scope| {
        let (send, receive) = mpsc::channel();
        for _ in 0..workers {
            let (send, next) = (send.clone(), &next);
            scope.spawn(move || {
                while let Some(program) = next() {
                    let started = Instant::now();
                    let output = run(&program, options, tier);
                    // Nobody listens any more if another program could not be started.
                    if send.send((program, output, started.elapsed())).is_err() {
                        return;
                    }
                }
            });
        }
        drop(send);
        let mut finished = Vec::new();
        for (program, output, time) in receive {
            let output = output.with_context(|| format!("running {}", program.path.display()))?;
            let said = String::from_utf8_lossy(&output.stdout);
            println!("\n{} ({:.1} s)\n{said}", program.path.display(), time.as_secs_f64());
            eprint!("{}", String::from_utf8_lossy(&output.stderr));
            said.lines().for_each(|line| total.add(line));
            let tests = said.lines().filter_map(timed).collect();
            finished.push(Finished { name: program.name, passed: output.status.success(), time, tests });
        }
        Ok(finished)
    })
}

fn run(program: &Program, options: &Options, tier: &Tier) -> std::io::Result<Output> {
    let mut command = Command::new(&program.path);
    // What cargo sets for tests, as far as tests read it while they run.
    command
        .current_dir(&program.folder)
        .env("CARGO_MANIFEST_DIR", &program.folder)
        .env("CARGO", cargo_program());
    match tier {
        Tier::Night => {
            command.env("MLXCEL_TEST_ALL_FOLDERS", "1");
        }
        Tier::Change => {
            command.args(["--skip", NIGHTLY]);
            // XLA's own optimization takes half the time of PJRT's tests, and is not what they test.
            command.env("XLA_FLAGS", "--xla_backend_optimization_level=0");
        }
    }
    if options.slowest.is_some() {
        // The harness of the stable toolchain has the times too, behind this variable.
        command.args(["-Z", "unstable-options", "--report-time"]).env("RUSTC_BOOTSTRAP", "1");
    }
    command.stdin(Stdio::null()).output()
}

/// The test and its time in a line such as `test a::b ... ok <0.012s>`.
fn timed(line: &str) -> Option<(String, Duration)> {
    let (name, rest) = line.strip_prefix("test ")?.split_once(" ... ")?;
    let (_, time) = rest.split_once('<')?;
    let seconds = time.strip_suffix("s>")?.parse().ok()?;
    Some((name.to_owned(), Duration::try_from_secs_f64(seconds).ok()?))
}

/// Prints the time of each program, and the slowest tests.
fn report(finished: &[Finished], count: usize) {
    let mut text = String::from("\n| test program | s |\n|---|---|\n");
    let mut programs: Vec<_> = finished.iter().collect();
    programs.sort_by_key(|program| std::cmp::Reverse(program.time));
    // Writing into a string does not fail.
    for program in programs {
        let _ = writeln!(text, "| {} | {:.1} |", program.name, program.time.as_secs_f64());
    }
    text.push_str("\n| test | s |\n|---|---|\n");
    let mut tests: Vec<_> = finished
        .iter()
        .flat_map(|program| program.tests.iter().map(move |(test, time)| (time, &program.name, test)))
        .collect();
    tests.sort();
    for (time, program, test) in tests.iter().rev().take(count) {
        let _ = writeln!(text, "| {program} {test} | {:.1} |", time.as_secs_f64());
    }
    println!("{text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_tests_are_read() {
        assert_eq!(timed("test a::b ... ok <0.250s>"), Some(("a::b".to_owned(), Duration::from_millis(250))));
        assert_eq!(timed("test a::b ... ok"), None);
        assert_eq!(timed("running 3 tests"), None);
    }
}
