//! `sanitize`: the tests of what talks to C and C++, and those of many threads, under the sanitizers of a
//! nightly toolchain.
//!
//! Our C++ and IREE's runtime are instrumented as the Rust code is, by the C compiler's sanitizer of the same
//! kind; generated code and libmlx are not, but for what they ask of the allocator and of the system's
//! threads. For the thread sanitizer the standard library is instrumented too, since it would else see none
//! of its synchronization.

use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

use crate::checks::Counts;
use crate::workspace::Workspace;
use crate::{process, toolchains};

/// What to look for.
#[derive(clap::Args, Default)]
pub(crate) struct Arguments {
    /// Look with this sanitizer alone
    #[arg(long, value_enum)]
    only: Option<Kind>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// Invalid memory accesses, and leaks
    Address,
    /// Memory that two threads use at once without agreeing
    Thread,
}

/// What one sanitizer takes.
struct Sanitizer {
    kind: Kind,
    /// What compilers call it.
    flag: &'static str,
    /// The variable with its options at run time.
    variable: &'static str,
    /// Where the sanitizer's view differs from ours, and why that is no defect.
    options: &'static [(&'static str, &'static str)],
    tests: &'static [Tests],
}

/// Tests of one package.
struct Tests {
    package: &'static str,
    /// What of the package: its library, or a file of tests.
    target: &'static [&'static str],
    /// What their names contain; all where there are none.
    names: &'static [&'static str],
    /// What is left out of them, and why.
    left_out: &'static [(&'static str, &'static str)],
}

const LIBRARY: &[&str] = &["--lib"];

/// IREE's runtime.
const IREE_RUNTIME: Tests =
    Tests { package: "mlxcel-iree-runtime", target: LIBRARY, names: &[], left_out: &[] };

/// The IREE engine, which has both C below it and threads of its own.
const IREE: Tests =
    Tests { package: "mlxcel-iree", target: LIBRARY, names: &["engine::"], left_out: &[ADDRESS_SPACE] };

const ADDRESS_SPACE: (&str, &str) = (
    "weights_larger_than_memory_are_an_error",
    "it takes the address space that the sanitizer keeps its notes in",
);

/// What has `unsafe` code below it, in both engines.
const ADDRESS: Sanitizer = Sanitizer {
    kind: Kind::Address,
    flag: "address",
    variable: "ASAN_OPTIONS",
    options: &[
        (
            "detect_odr_violation=0",
            "the C compiler gives equal constants of one file the same address, which is taken for one variable defined twice",
        ),
        (
            "detect_stack_use_after_return=0",
            "gcc before 12.4 aligns such frames to 32 bytes and writes vectors of 64 to them (its bug 110027)",
        ),
        (
            "allocator_may_return_null=1",
            "tests ask for more memory than there is, and expect an error and no abort",
        ),
        ("detect_leaks=1", "what a test leaves behind is a defect"),
    ],
    tests: &[
        IREE_RUNTIME,
        IREE,
        Tests {
            package: "mlxcel-mlx",
            target: LIBRARY,
            names: &["ffi::", "array::", "kernels::", "worker::"],
            left_out: &[],
        },
    ],
};

/// What has threads of its own, but for MLX, whose library synchronizes by atomics that are not instrumented.
const THREAD: Sanitizer = Sanitizer {
    kind: Kind::Thread,
    flag: "thread",
    variable: "TSAN_OPTIONS",
    options: &[(
        "allocator_may_return_null=1",
        "tests ask for more memory than there is, and expect an error and no abort",
    )],
    tests: &[
        IREE_RUNTIME,
        Tests {
            package: "mlxcel-session",
            target: &["--test", "suite"],
            names: &["engine::"],
            left_out: &[],
        },
        Tests {
            package: "mlxcel-quantize",
            target: &["--test", "suite"],
            names: &["quantize::"],
            left_out: &[],
        },
        Tests {
            left_out: &[
                ADDRESS_SPACE,
                (
                    "bundle_weights_are_mapped_not_copied",
                    "it counts the memory of the process, of which the sanitizer takes several times as much",
                ),
            ],
            ..IREE
        },
    ],
};

/// Runs the tests under the sanitizers; an error if one of them found something.
pub(crate) fn run(workspace: &Workspace, arguments: &Arguments) -> Result<()> {
    let nightly = Nightly::find()?;
    let chosen = |sanitizer: &&Sanitizer| arguments.only.is_none_or(|only| only == sanitizer.kind);
    let chosen: Vec<&Sanitizer> = [&ADDRESS, &THREAD].into_iter().filter(chosen).collect();
    // Before the first of them builds for minutes.
    chosen.iter().try_for_each(|sanitizer| nightly.suffices(sanitizer.kind))?;
    let mut summary = Vec::new();
    for sanitizer in chosen {
        summary.push(format!("\nsanitizer: {}", sanitizer.flag));
        for tests in sanitizer.tests {
            let (count, seconds) = nightly.run(workspace, sanitizer, tests)?;
            let names = if tests.names.is_empty() { "all".to_owned() } else { tests.names.join(", ") };
            let what = tests.target.join(" ");
            let package = tests.package;
            summary.push(format!(
                "{package} {what} ({names}): {count} tests passed, {seconds} s with the build"
            ));
            let left_out = tests.left_out.iter();
            summary.extend(left_out.map(|(name, reason)| format!("  left out: {name}: {reason}")));
        }
        summary.extend(sanitizer.options.iter().map(|(option, reason)| format!("{option}: {reason}")));
    }
    println!("{}", summary.join("\n"));
    Ok(())
}

struct Nightly {
    /// The default target.
    host: String,
}

impl Nightly {
    fn find() -> Result<Self> {
        let host = toolchains::nightly_prints("host-tuple")
            .context("sanitizers need a nightly toolchain: `rustup toolchain install nightly`")?;
        Ok(Self { host })
    }

    /// Fails unless the toolchain has what the sanitizer takes.
    fn suffices(&self, kind: Kind) -> Result<()> {
        if kind == Kind::Thread && !toolchains::nightly_has_sources()? {
            bail!(
                "the thread sanitizer needs the sources of the standard library: `rustup component add rust-src --toolchain \
                 nightly`; without them, `cargo xtask sanitize --only address`"
            );
        }
        Ok(())
    }

    /// Runs tests under a sanitizer, and answers how many passed, and in how many seconds.
    fn run(&self, workspace: &Workspace, sanitizer: &Sanitizer, tests: &Tests) -> Result<(u64, u64)> {
        let started = Instant::now();
        // Programs that the build itself starts may leak.
        let mut build = self.cargo(workspace, sanitizer, tests);
        process::run(build.arg("--no-run").env("ASAN_OPTIONS", "detect_leaks=0"))?;
        let options: Vec<_> = sanitizer.options.iter().map(|(option, _)| *option).collect();
        let mut command = self.cargo(workspace, sanitizer, tests);
        command.env(sanitizer.variable, options.join(":")).arg("--").args(tests.names);
        for (name, _) in tests.left_out {
            command.args(["--skip", name]);
        }
        let mut counts = Counts::default();
        process::run_watched(&mut command, |line| counts.add(line))?;
        if counts.passed == 0 {
            bail!(
                "no test of {} {} is called any of {:?}",
                tests.package,
                tests.target.join(" "),
                tests.names
            );
        }
        Ok((counts.passed, started.elapsed().as_secs()))
    }

    /// Tests of a package, instrumented. What runs while building is not: it is for the host without a name.
    fn cargo(&self, workspace: &Workspace, sanitizer: &Sanitizer, tests: &Tests) -> Command {
        let flags = format!("-fsanitize={} -fno-omit-frame-pointer -g1", sanitizer.flag);
        let variable = |name: &str| format!("{name}_{}", self.host.replace('-', "_"));
        let mut command = toolchains::cargo("nightly");
        command.args(["test", "--locked", "--package", tests.package]);
        command.args(tests.target).args(["--target", &self.host]);
        if sanitizer.kind == Kind::Thread {
            command.arg("-Zbuild-std");
        }
        command.arg("--target-dir").arg(workspace.root().join(FOLDER).join(sanitizer.flag));
        command.current_dir(workspace.root()).env("RUSTFLAGS", format!("-Zsanitizer={}", sanitizer.flag));
        // Reports name lines.
        command.env("CARGO_PROFILE_DEV_DEBUG", "line-tables-only");
        command.env(variable("CFLAGS"), &flags).env(variable("CXXFLAGS"), &flags);
        command
    }
}

/// Where instrumented builds lie, beside the plain ones.
const FOLDER: &str = "target/sanitize";
