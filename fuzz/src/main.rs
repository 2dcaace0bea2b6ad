//! Fuzzes targets on a stable toolchain; see the library.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::io;
use std::panic::resume_unwind;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::Duration;

use cap::Cap;
use clap::{Parser, Subcommand};
use mlxcel_fuzz::run::{self, Budget, Report};
use mlxcel_fuzz::{Target, child};

/// Refuses what a run takes beyond its limit; the run aborts then, unless it can do without.
#[global_allocator]
static ALLOCATOR: Cap<std::alloc::System> = Cap::new(std::alloc::System, usize::MAX);

/// Limits by that allocator.
struct Limit;

impl child::Memory for Limit {
    fn allocated(&self) -> usize {
        ALLOCATOR.allocated()
    }

    fn limit(&self, bytes: usize) {
        // It fails where more is allocated already; the next allocation fails then.
        let _ = ALLOCATOR.set_limit(bytes);
    }
}

/// Fuzz targets of mlxcel.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Say what targets there are
    List,
    /// Fuzz targets, defaults to all
    Run(RunArguments),
    /// Run an input once
    Once {
        /// The target
        target: String,
        /// The file with the input
        input: PathBuf,
    },
    /// Serve inputs on standard input (for `run`)
    #[command(hide = true)]
    Child {
        /// The target
        target: String,
    },
}

#[derive(clap::Args)]
struct RunArguments {
    /// The targets
    targets: Vec<String>,
    /// How long each is fuzzed
    #[arg(long, default_value_t = 20)]
    seconds: u64,
    /// How many are fuzzed at once
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// What the changes depend on; drawn by default
    #[arg(long)]
    seed: Option<u64>,
    /// Where findings and new inputs are written; `target/fuzz` by default
    #[arg(long)]
    folder: Option<PathBuf>,
}

fn main() -> ExitCode {
    match start(Arguments::parse().task) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Does a task; whether all was well.
fn start(task: Task) -> io::Result<bool> {
    match task {
        Task::List => {
            for target in Target::all() {
                println!("{:<16} {}", target.name, target.about);
            }
            Ok(true)
        }
        Task::Child { target } => child::serve(find(&target)?, &Limit).map(|()| true),
        Task::Once { target, input } => {
            let (target, input) = (find(&target)?, std::fs::read(input)?);
            let ended = run::once(target, &input)?;
            match &ended {
                Ok(()) => println!("{}", (target.run)(&input).words()),
                Err(death) => eprintln!("{}: {}", death.kind, death.words),
            }
            Ok(ended.is_ok())
        }
        Task::Run(arguments) => run_all(&arguments),
    }
}

fn find(name: &str) -> io::Result<&'static Target> {
    Target::find(name)
        .ok_or_else(|| io::Error::other(format!("there is no target '{}'", name.escape_debug())))
}

fn run_all(arguments: &RunArguments) -> io::Result<bool> {
    let named = arguments.targets.iter().map(|name| find(name));
    let mut targets: Vec<&'static Target> = named.collect::<io::Result<_>>()?;
    if targets.is_empty() {
        targets.extend(Target::all());
    }
    let budget = Budget {
        time: Duration::from_secs(arguments.seconds),
        seed: arguments.seed.unwrap_or_else(|| fastrand::u64(..)),
        folder: arguments.folder.clone().unwrap_or_else(run::default_folder),
    };
    println!("seed {}", budget.seed);
    let queue = Mutex::new(targets.into_iter());
    let take = || queue.lock().ok()?.next();
    let fuzz = || -> io::Result<(u64, usize)> {
        let (mut runs, mut found) = (0, 0);
        while let Some(target) = take() {
            let report = run::fuzz(target, &budget)?;
            print(target, &report);
            runs += report.runs;
            found += report.findings.len();
        }
        Ok((runs, found))
    };
    let totals: io::Result<Vec<_>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..arguments.jobs.max(1)).map(|_| scope.spawn(fuzz)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
    });
    let (runs, found) = totals?.into_iter().fold((0, 0), |all, total| (all.0 + total.0, all.1 + total.1));
    println!("{runs} inputs, {found} findings");
    Ok(found == 0)
}

fn print(target: &Target, report: &Report) {
    println!(
        "{:<16} {:>8} inputs, {:>7} of them in full, {:>5} outcomes, {:>6.1} s of processor time, {} findings",
        target.name,
        report.runs,
        report.whole,
        report.outcomes,
        report.cpu.as_secs_f64(),
        report.findings.len()
    );
}
