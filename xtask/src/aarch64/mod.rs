//! `aarch64`: tests that depend on the instruction set, built for 64-bit Arm and run on emulated processors.
//!
//! Kernels depend on the processor's features, so their tests run on several processors. Tests start this
//! machine's IREE compiler, which runs natively; tests that start programs built for 64-bit Arm are not
//! included.

mod toolchain;

use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::checks::Counts;
use crate::workspace::Workspace;
use crate::{process, setup};
use toolchain::Toolchain;

/// Which tests to run.
#[derive(clap::Args, Default)]
pub(crate) struct Arguments {
    /// Run only these tests; may be repeated
    #[arg(long, value_enum)]
    only: Vec<Selection>,
    /// The emulated processor, from the list of `qemu-aarch64 -cpu help`, instead of the default ones; may
    /// be repeated
    #[arg(long)]
    cpu: Vec<String>,
}

/// A part of the tests.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Selection {
    /// The library tests of core, stablehlo and portable
    Libraries,
    /// The kernels of the IREE engine
    Kernels,
    /// Recorded outputs of transformers, on the portable and the IREE engine
    Oracles,
}

/// Has int8 dot products, int8 matrix products and bfloat16.
const MOST: &str = "max,pauth-impdef=on";

/// Has int8 dot products.
const DOT_PRODUCTS: &str = "neoverse-n1";

/// Has only NEON.
const LEAST: &str = "cortex-a72";

impl Selection {
    const ALL: [Self; 3] = [Self::Libraries, Self::Kernels, Self::Oracles];

    /// The cargo arguments that select the tests.
    fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Libraries => {
                &["--package=mlxcel-core", "--package=mlxcel-stablehlo", "--package=mlxcel-portable", "--lib"]
            }
            Self::Kernels => &["--package=mlxcel-iree", "--lib"],
            Self::Oracles => &["--package=mlxcel-tests", "--test=suite"],
        }
    }

    /// Prefixes of test names; all tests if empty.
    fn names(self) -> &'static [&'static str] {
        match self {
            Self::Libraries => &[],
            Self::Kernels => &["kernel_tests::"],
            Self::Oracles => &["oracles::llama_", "oracles::mistral_", "oracles::quantized_"],
        }
    }

    /// The processors to run these tests on.
    fn cpus(self) -> &'static [&'static str] {
        match self {
            Self::Libraries | Self::Oracles => &[MOST],
            Self::Kernels => &[MOST, DOT_PRODUCTS, LEAST],
        }
    }
}

/// Builds and runs the tests; an error if one of them failed.
pub(crate) fn run(workspace: &Workspace, arguments: &Arguments) -> Result<()> {
    setup::run(workspace)?;
    let toolchain = Toolchain::provision(workspace)?;
    let mut summary = Vec::new();
    let mut failed = false;
    for selection in Selection::ALL {
        if !arguments.only.is_empty() && !arguments.only.contains(&selection) {
            continue;
        }
        let mut build = toolchain.test(workspace, selection.arguments(), MOST);
        let started = Instant::now();
        process::run(build.arg("--no-run"))?;
        summary.push(format!("{selection:?}: built in {} s", started.elapsed().as_secs()));
        let given: Vec<&str> = arguments.cpu.iter().map(String::as_str).collect();
        for cpu in if given.is_empty() { selection.cpus() } else { &given } {
            eprintln!("\n==== {selection:?} on {cpu} ====");
            let started = Instant::now();
            let mut counts = Counts::default();
            let mut tests = toolchain.test(workspace, selection.arguments(), cpu);
            tests.arg("--no-fail-fast").arg("--").args(selection.names());
            let result = process::run_watched(&mut tests, |line| counts.add(line));
            if result.is_ok() && counts.passed == 0 {
                bail!("no test of {selection:?} ran");
            }
            failed |= result.is_err();
            summary.push(format!("{selection:?} on {cpu}: {counts}, {} s", started.elapsed().as_secs()));
        }
    }
    eprintln!("\n64-bit Arm, emulated\n{}", summary.join("\n"));
    if failed { Err(anyhow::anyhow!("tests failed")).context("64-bit Arm") } else { Ok(()) }
}
