//! `sanitize`: the tests of what talks to C and C++, under the sanitizers of a nightly toolchain.
//!
//! Our C++ and IREE's runtime are instrumented as the Rust code is, by the C compiler's sanitizer of the same kind; generated
//! code, libmlx and the standard libraries are not, but for what they ask of the allocator.

use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::process;
use crate::workspace::Workspace;

/// Where instrumented builds lie, beside the plain ones.
const FOLDER: &str = "target/sanitize";

/// Where the sanitizer's view differs from ours, and why that is no defect.
const OPTIONS: [(&str, &str); 4] = [
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
];

/// Tests of one package.
struct Tests {
    package: &'static str,
    /// What their names contain.
    names: &'static [&'static str],
    /// What is left out of them, and why.
    left_out: &'static [(&'static str, &'static str)],
}

/// What has `unsafe` code below it, in both engines.
const TESTS: [Tests; 2] = [
    Tests {
        package: "mlxcel-iree",
        names: &["ffi::", "engine::"],
        left_out: &[(
            "weights_that_memory_does_not_hold_are_an_error",
            "it takes the address space that the sanitizer keeps its notes in",
        )],
    },
    Tests { package: "mlxcel-mlx", names: &["ffi::", "array::", "kernels::", "worker::"], left_out: &[] },
];

/// Runs the tests under the address and the leak sanitizer; an error if they found something.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let host =
        process::output(Command::new("rustup").args(["run", "nightly", "rustc", "--print", "host-tuple"]));
    let host = host.context("sanitizers need a nightly toolchain: `rustup toolchain install nightly`")?;
    let host = host.trim();
    let mut summary = Vec::new();
    for tests in &TESTS {
        let started = Instant::now();
        // Programs that the build itself starts may leak.
        process::run(
            cargo(workspace, host, tests.package).arg("--no-run").env("ASAN_OPTIONS", "detect_leaks=0"),
        )?;
        let options: Vec<_> = OPTIONS.iter().map(|(option, _)| *option).collect();
        let mut command = cargo(workspace, host, tests.package);
        command.env("ASAN_OPTIONS", options.join(":")).arg("--").args(tests.names);
        for (name, _) in tests.left_out {
            command.args(["--skip", name]);
        }
        let mut passed = 0;
        process::run_watched(&mut command, |line| {
            let count = line
                .strip_prefix("test result: ok. ")
                .and_then(|rest| rest.split(' ').next()?.parse::<u64>().ok());
            passed += count.unwrap_or(0);
        })?;
        if passed == 0 {
            bail!("no test of {} is called any of {:?}", tests.package, tests.names);
        }
        let (names, seconds) = (tests.names.join(", "), started.elapsed().as_secs());
        summary
            .push(format!("{}: {passed} tests of {names} passed, {seconds} s with the build", tests.package));
        summary.extend(tests.left_out.iter().map(|(name, reason)| format!("  left out: {name}: {reason}")));
    }
    summary.extend(OPTIONS.iter().map(|(option, reason)| format!("{option}: {reason}")));
    println!("\naddress and leak sanitizers\n{}", summary.join("\n"));
    Ok(())
}

/// Tests of a package, instrumented. What runs while building is not: it is for the host without a name.
fn cargo(workspace: &Workspace, host: &str, package: &str) -> Command {
    let flags = "-fsanitize=address -fno-omit-frame-pointer -g1";
    let variable = |name: &str| format!("{name}_{}", host.replace('-', "_"));
    let mut command = Command::new("rustup");
    command
        .args([
            "run",
            "nightly",
            "cargo",
            "test",
            "--locked",
            "--lib",
            "--package",
            package,
            "--target",
            host,
        ])
        .arg("--target-dir")
        .arg(workspace.root().join(FOLDER))
        .current_dir(workspace.root())
        .env("RUSTFLAGS", "-Zsanitizer=address")
        .env(variable("CFLAGS"), flags)
        .env(variable("CXXFLAGS"), flags)
        // What the cargo that runs us has set names the other toolchain.
        .env_remove("CARGO")
        .env_remove("RUSTC")
        .env_remove("RUSTUP_TOOLCHAIN");
    command
}
