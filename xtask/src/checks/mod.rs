//! `test`: every check, each timed, all reported at the end.
//!
//! Cheap checks go first. A failed check does not stop the others: one run shows everything. There are two
//! tiers: the checks of a change, and with `--all` those of a night as well.

mod architecture;
mod aside;
mod beside;
mod bundle;
mod compile;
mod costs;
mod dist;
mod external;
mod faults;
mod features;
mod figures;
mod fuzz;
mod imports;
mod licences;
mod links;
pub(crate) mod markdown;
mod missing;
mod msrv;
mod musl;
mod names;
mod newcomer;
mod packages;
mod promises;
mod rig;
mod scripts;
mod semver;
mod server;
mod snippets;
mod soak;
mod test_programs;
mod vulkan;
mod wasm;

pub(crate) use missing::fetched_by_rustup;
pub(crate) use packages::is_published;

use std::panic::resume_unwind;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::ValueEnum;

use crate::workspace::Workspace;
use crate::{aarch64, generate, sanitize, setup};

use aside::Aside;
pub(crate) use compile::Counts;

/// Which checks to run.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Run only this check; may be repeated
    #[arg(long, value_enum)]
    only: Vec<Check>,
    /// Run too what takes long or needs tools that not every machine has: the checks of a night, or with
    /// `--only` the night's part of those named
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    tests: test_programs::Options,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Check {
    /// rustfmt
    Fmt,
    /// Dependencies between the crates, where unsafe code may stand, and links, figures and
    /// programs of the documentation
    Arch,
    /// Whether bindings and headers of mlxcel-iree-sys are up to date
    Generated,
    /// The minimum supported Rust version
    Msrv,
    /// Licences and sources of the dependencies
    Deny,
    /// Semantic versioning against the last release
    Semver,
    /// clippy with warnings as errors
    Lint,
    /// The documentation of libraries and programs, with warnings as errors
    Docs,
    /// Every feature set, and the documentation as docs.rs makes it
    Features,
    /// llama.cpp and another IREE in the same program
    Beside,
    /// A model in a module of WebAssembly, run by Node
    Wasm,
    /// A static program with a bundle, linked with musl
    Musl,
    /// All tests, those in the documentation included, which is made along
    Test,
    /// The instructions of fixed work, against those that a file keeps
    Costs,
    /// The IREE engine on a prebuilt distribution of IREE's runtime
    Dist,
    /// The server, by OpenAI's and Anthropic's clients
    Server,
    /// The server, by LangChain, LlamaIndex, OpenAI's Agents SDK and lm-eval
    Clients,
    /// The server's page, in Chromium
    Page,
    /// `rig-mlxcel`: an agent of rig on a model, with the Rust that rig asks for
    Rig,
    /// A bundle's programs, run by XLA
    Bundle,
    /// The packaged crates, and README's first lines in a new project, with rustc, cargo and cc alone
    Newcomer,
    /// Further new projects: the small applications, IREE with a bundle, MLX, and an engine of a third party
    Projects,
    /// Hostile inputs, each target for a few seconds, for minutes with `--all`
    Fuzz,
    /// Models on a software driver for Vulkan
    Vulkan,
    /// Thousands of sessions on each engine, and programs killed while they write
    Soak,
    /// Programs of which one system call fails, another in each run
    Faults,
    /// The address, leak and thread sanitizers
    Sanitize,
    /// Tests for 64-bit Arm on emulated processors
    Aarch64,
}

/// What came of a check that found no defect, with a remark for the summary.
enum Done {
    /// It was made.
    Checked(String),
    /// It did not run, or not completely, for a reason that is not a defect.
    Unchecked(String),
}

/// Whether this is continuous integration, where nothing may be left out that could be there.
pub(crate) fn in_ci() -> bool {
    std::env::var_os("CI").is_some_and(|value| !value.is_empty() && value != "false")
}

impl Check {
    fn run(self, workspace: &Workspace, arguments: &Arguments) -> Result<Done> {
        let checked = match self {
            Self::Msrv => return msrv::check(workspace),
            Self::Deny => return licences::check(workspace),
            Self::Wasm => return wasm::check(workspace),
            Self::Musl => return musl::check(workspace),
            Self::Vulkan => return vulkan::check(workspace, arguments.all),
            Self::Semver => return semver::check(workspace),
            Self::Costs => return costs::check(workspace),
            Self::Faults => return faults::check(workspace),
            Self::Server => return server::by_official_clients(workspace),
            Self::Clients => return server::by_frameworks(workspace),
            Self::Page => return server::by_page(workspace),
            Self::Rig => return rig::check(workspace),
            Self::Bundle => return bundle::check(workspace),
            Self::Fmt => compile::format(workspace),
            Self::Generated => generate::check(workspace),
            Self::Arch => architecture::check(workspace),
            Self::Lint => compile::lint(workspace),
            Self::Features => features::check(workspace),
            Self::Newcomer => newcomer::check(workspace),
            Self::Projects => newcomer::projects(workspace),
            Self::Docs => compile::document(workspace),
            Self::Beside => beside::check(workspace),
            Self::Test => test_programs::check(workspace, &arguments.tests, arguments.all),
            Self::Dist => dist::check(workspace),
            Self::Fuzz => fuzz::check(workspace, arguments.all),
            Self::Soak => soak::check(workspace),
            Self::Sanitize => {
                sanitize::run(workspace, &sanitize::Arguments::default()).map(|()| String::new())
            }
            Self::Aarch64 => aarch64::run(workspace, &aarch64::Arguments::default()).map(|()| String::new()),
        };
        checked.map(Done::Checked)
    }

    /// Whether it runs only with `--all` or by name: it takes long, or asks for a tool that not every machine
    /// has.
    fn is_nightly(self) -> bool {
        matches!(
            self,
            Self::Generated
                | Self::Msrv
                | Self::Semver
                | Self::Docs
                | Self::Features
                | Self::Dist
                | Self::Clients
                | Self::Page
                | Self::Rig
                | Self::Projects
                | Self::Beside
                | Self::Wasm
                | Self::Musl
                | Self::Vulkan
                | Self::Soak
                | Self::Faults
                | Self::Sanitize
                | Self::Aarch64
        )
    }

    /// Whether it runs tests that are skipped without the downloads of [`set_up_for_ci`].
    fn wants_downloads(self) -> bool {
        matches!(self, Self::Test | Self::Soak | Self::Sanitize)
    }

    fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }
}

struct Outcome {
    check: Check,
    result: Result<Done>,
    time: Duration,
}

/// Sets up, runs the chosen checks in order and prints a summary; an error if one of them failed.
pub(crate) fn run(workspace: &Workspace, arguments: &Arguments) -> Result<()> {
    setup::run(workspace)?;
    let chosen = Check::value_variants().iter().copied().filter(|check| match &arguments.only[..] {
        [] => arguments.all || !check.is_nightly(),
        only => only.contains(check),
    });
    let chosen: Vec<_> = chosen.collect();
    let mut aside = (chosen.len() > 1 && chosen.contains(&Check::Newcomer))
        .then(|| Aside::start(workspace, Check::Newcomer))
        .transpose()?;
    let outcomes = thread::scope(|scope| {
        // Downloaded while the first checks compile.
        let wanted = chosen.iter().any(|check| check.wants_downloads());
        let mut downloads = wanted.then(|| scope.spawn(|| set_up_for_ci(workspace)));
        let mut outcomes = Vec::new();
        for check in chosen {
            if check.wants_downloads()
                && let Some(downloads) = downloads.take()
            {
                downloads.join().unwrap_or_else(|panic| resume_unwind(panic))?;
            }
            eprintln!("\n==== {} ====", check.name());
            let start = Instant::now();
            let result = match aside.take_if(|aside| aside.check == check) {
                Some(aside) => aside.finish(),
                None => check.run(workspace, arguments),
            };
            let outcome = Outcome { check, result, time: start.elapsed() };
            eprintln!("{}", describe(&outcome));
            outcomes.push(outcome);
        }
        anyhow::Ok(outcomes)
    })?;
    report(&outcomes)
}

/// Provides what tests skip elsewhere if it is missing: a PJRT plugin and a published model.
fn set_up_for_ci(workspace: &Workspace) -> Result<()> {
    if in_ci() && cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        setup::pjrt(workspace)?;
    }
    if in_ci()
        && let Err(error) = setup::published(workspace)
    {
        eprintln!("the tests of a published model are skipped: {error:#}");
    }
    Ok(())
}

fn report(outcomes: &[Outcome]) -> Result<()> {
    eprintln!("\n==== summary ====");
    for outcome in outcomes {
        eprintln!("{}", describe(outcome));
    }
    let failed: Vec<_> = outcomes
        .iter()
        .filter(|outcome| outcome.result.is_err())
        .map(|outcome| outcome.check.name())
        .collect();
    let unchecked: Vec<_> = outcomes
        .iter()
        .filter(|outcome| matches!(outcome.result, Ok(Done::Unchecked(_))))
        .map(|outcome| outcome.check.name())
        .collect();
    if !unchecked.is_empty() {
        eprintln!("not run, or not completely: {}", unchecked.join(", "));
    }
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(())
}

/// One line: what, how long, and the remark or the error.
fn describe(outcome: &Outcome) -> String {
    let (mark, remark) = match &outcome.result {
        Ok(Done::Checked(remark)) => ("ok", remark.clone()),
        Ok(Done::Unchecked(remark)) => ("NOT RUN", remark.clone()),
        Err(error) => ("FAILED", format!("{error:#}")),
    };
    format!("{:<9} {mark:<7} {:>6.1} s  {remark}", outcome.check.name(), outcome.time.as_secs_f64())
        .trim_end()
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_check_fails_the_run_and_is_named() {
        let outcome = |check, result| Outcome { check, result, time: Duration::from_secs(1) };
        let done = || Ok(Done::Checked(String::new()));
        assert!(report(&[outcome(Check::Fmt, done())]).is_ok());
        let error = report(&[
            outcome(Check::Fmt, done()),
            outcome(Check::Docs, Err(anyhow::anyhow!("a link is broken"))),
        ])
        .unwrap_err();
        assert_eq!(error.to_string(), "failed: docs");
    }

    #[test]
    fn skipped_checks_are_reported_as_not_run() {
        let unchecked = Done::Unchecked("there is no release".to_owned());
        let outcome = Outcome { check: Check::Semver, result: Ok(unchecked), time: Duration::ZERO };
        assert_eq!(describe(&outcome), "semver    NOT RUN    0.0 s  there is no release");
    }
}
