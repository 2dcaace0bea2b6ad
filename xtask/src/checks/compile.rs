//! What cargo itself checks. All of it with the same features and flags, so that dependencies compile once.

use anyhow::{Result, ensure};
use cargo_metadata::Message;
use cargo_metadata::diagnostic::DiagnosticLevel;

use super::{beside, musl, newcomer, wasm};
use crate::process;
use crate::workspace::Workspace;

pub(super) fn format(workspace: &Workspace) -> Result<String> {
    process::run(&mut workspace.cargo(&["fmt", "--all", "--check"]))?;
    let external = [newcomer::MY_BACKEND, newcomer::APPLICATIONS, wasm::PACKAGE, musl::PACKAGE].into_iter();
    let external = external.chain(beside::PACKAGES.map(|(name, _)| name));
    let external = external.map(|name| format!("tests-external/{name}/Cargo.toml"));
    let others = ["fuzz/libfuzzer", super::rig::PACKAGE].map(|folder| format!("{folder}/Cargo.toml"));
    for manifest in external.chain(others) {
        process::run(&mut workspace.cargo(&["fmt", "--check", "--manifest-path", &manifest]))?;
    }
    Ok(String::new())
}

/// Compiles all that tests run; what clippy warns of is an error at the end.
pub(super) fn lint(workspace: &Workspace) -> Result<String> {
    let features = workspace.features()?;
    let arguments = ["build", "--locked", "--workspace", "--all-targets", "--features", &features];
    let mut clean = true;
    process::for_each_message(workspace.cargo_with_lints(&arguments), |message| {
        let Message::CompilerMessage(message) = message else { return };
        clean &= !matches!(message.message.level, DiagnosticLevel::Warning | DiagnosticLevel::Error);
    })?;
    ensure!(clean, "the warnings above are errors");
    Ok(String::new())
}

pub(super) fn document(workspace: &Workspace) -> Result<String> {
    let features = workspace.features()?;
    let mut command = workspace
        .cargo(&["doc", "--locked", "--workspace", "--no-deps", "--features", &features, "--lib", "--bins"]);
    process::run(command.env("RUSTDOCFLAGS", "-D warnings"))?;
    Ok(String::new())
}

/// The sum of what the test programs report.
#[derive(Default, PartialEq, Eq, Debug)]
pub(crate) struct Counts {
    pub(crate) passed: u64,
    failed: u64,
    ignored: u64,
}

impl Counts {
    /// Adds a line such as `test result: ok. 5 passed; 0 failed; 1 ignored; 0 measured; …`; other lines say
    /// nothing.
    pub(crate) fn add(&mut self, line: &str) {
        let Some(result) = line.strip_prefix("test result: ") else { return };
        for part in result.split(['.', ';']) {
            let mut words = part.split_whitespace();
            let (Some(Ok(count)), Some(what)) = (words.next().map(str::parse::<u64>), words.next()) else {
                continue;
            };
            match what {
                "passed" => self.passed += count,
                "failed" => self.failed += count,
                "ignored" => self.ignored += count,
                _ => {}
            }
        }
    }
}

impl std::fmt::Display for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} passed, {} failed, {} ignored", self.passed, self.failed, self.ignored)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_test_programs_add_up() {
        let mut total = Counts::default();
        total.add("running 6 tests");
        total.add(
            "test result: ok. 5 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.02s",
        );
        total.add(
            "test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 3 filtered out; finished in 1.50s",
        );
        assert_eq!(total, Counts { passed: 6, failed: 2, ignored: 1 });
    }
}
