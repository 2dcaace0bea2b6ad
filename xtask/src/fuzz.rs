//! `fuzz`: hostile inputs, for as long as one likes.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::workspace::Workspace;
use crate::{process, toolchains};

/// The package with the targets, and its program.
const PACKAGE: &str = "mlxcel-fuzz";

/// Their drivers by libFuzzer.
const GUIDED: &str = "fuzz/libfuzzer";

/// What is fuzzed, and how long.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The targets; defaults to all (`list` says which there are)
    targets: Vec<String>,
    /// How many minutes each is fuzzed
    #[arg(long, default_value_t = 5)]
    minutes: u64,
    /// Run only this input instead of fuzzing
    #[arg(long, conflicts_with = "guided")]
    input: Option<PathBuf>,
    /// Let libFuzzer guide the one target by coverage; needs a nightly toolchain
    #[arg(long)]
    guided: bool,
}

/// Fuzzes until the time is over; an error if something was found.
pub(crate) fn run(workspace: &Workspace, arguments: &Arguments) -> Result<()> {
    let time = Duration::from_secs(60 * arguments.minutes);
    match (&arguments.targets[..], &arguments.input) {
        ([target], _) if arguments.guided => guided(workspace, target, time),
        (_, _) if arguments.guided => bail!("libFuzzer takes one target"),
        ([target], Some(input)) => {
            let input = std::path::absolute(input).context("finding the input")?;
            let mut command = Fuzzer::build(workspace)?.command();
            process::run(command.arg("once").arg(target).arg(input))
        }
        (_, Some(_)) => bail!("an input is for one target"),
        ([list], None) if list == "list" => process::run(Fuzzer::build(workspace)?.command().arg("list")),
        (targets, None) => process::run(&mut Fuzzer::build(workspace)?.run(targets, time)),
    }
}

/// The program that fuzzes, built.
pub(crate) struct Fuzzer(PathBuf);

impl Fuzzer {
    pub(crate) fn build(workspace: &Workspace) -> Result<Self> {
        Ok(Self(workspace.program(PACKAGE, "catching")?.get_program().into()))
    }

    fn command(&self) -> Command {
        Command::new(&self.0)
    }

    /// A command that fuzzes `targets`, or all, each for `time`, as many at once as there are processors.
    pub(crate) fn run(&self, targets: &[String], time: Duration) -> Command {
        let jobs = std::thread::available_parallelism().map_or(1, usize::from);
        let mut command = self.command();
        command.arg("run").args(targets);
        command.args(["--seconds", &time.as_secs().to_string(), "--jobs", &jobs.to_string()]);
        command
    }
}

/// Lets libFuzzer drive a target, from the committed corpus and what it found before.
fn guided(workspace: &Workspace, target: &str, time: Duration) -> Result<()> {
    let folder = workspace.root().join("target/fuzz").join(target);
    let (kept, findings) = (folder.join("corpus"), folder.join("findings"));
    for folder in [&kept, &findings] {
        fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
    }
    // The versions that the workspace is tested with.
    let package = workspace.root().join(GUIDED);
    fs::copy(workspace.root().join("Cargo.lock"), package.join("Cargo.lock"))
        .context("giving it the lock file")?;
    // What cargo-fuzz sets, for coverage and comparisons; without an address sanitizer, since the code is
    // safe.
    let flags = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
                 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
                 -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1 --cfg fuzzing";
    let host = toolchains::nightly_prints("host-tuple")?;
    let mut command = toolchains::cargo("nightly");
    command
        .args(["run", "--release", "--target", &host, "--manifest-path"])
        .arg(package.join("Cargo.toml"))
        .arg("--target-dir")
        .arg(workspace.root().join("target/libfuzzer"))
        .arg("--")
        .arg(&kept)
        .arg(workspace.root().join("fuzz/corpus").join(target))
        .arg(format!("-artifact_prefix={}/", findings.display()))
        .arg(format!("-max_total_time={}", time.as_secs()))
        .args([
            "-timeout=20",
            "-rss_limit_mb=4096",
            "-malloc_limit_mb=1024",
            "-max_len=65536",
            "-print_final_stats=1",
        ])
        .current_dir(workspace.root())
        .env("MLXCEL_FUZZ_TARGET", target)
        .env("RUSTFLAGS", flags);
    process::run(&mut command)
}
