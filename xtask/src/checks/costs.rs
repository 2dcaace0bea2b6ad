//! Costs that cannot hide in noise: the instructions of fixed work, counted by valgrind and compared with a
//! file, as rustls does.
//!
//! The work is that of `mlxcel-session/benches/costs.rs`, compiled as the tests are. A count is the
//! difference between doing it so many times and not at all; it does not depend on how busy the machine is,
//! and hardly on its processor, but on the compiler: the file says which one.

use std::fmt::Write as _;
use std::fs;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use anyhow::{Context, Result, bail};
use cargo_metadata::Message;

use super::Done;
use crate::process;
use crate::workspace::Workspace;

/// The file with the counts, one a line.
const COSTS: &str = "mlxcel-session/benches/costs.txt";
/// How far a count may be from the file, in percent: hash maps are seeded anew in each run, and threads
/// interleave.
const TOLERANCE: u64 = 5;

/// A scenario, and the instructions of doing its work once.
type Cost = (String, u64);

/// Whether so many instructions are more than the tolerance away from those that are kept.
fn differ(kept: u64, instructions: u64) -> bool {
    instructions.abs_diff(kept) * 100 > kept * TOLERANCE
}

pub(super) fn check(workspace: &Workspace) -> Result<Done> {
    if process::output(Command::new("valgrind").arg("--version")).is_err() {
        let missing = "valgrind counts instructions, and is not installed: apt-get install valgrind";
        return Ok(Done::Unchecked(missing.to_owned()));
    }
    let program = build(workspace)?;
    let compiler = process::output(Command::new("rustc").arg("--version"))?;
    let (path, new) = (workspace.root().join(COSTS), workspace.root().join("target/costs.txt"));
    let kept = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let is_comparable = kept.lines().next() == Some(compiler.trim());
    let known = if is_comparable { parse(&kept) } else { Vec::new() };
    let mut counted = Vec::new();
    for line in process::output(&mut Command::new(&program))?.lines() {
        let (times, scenario) = line.split_once(' ').context("a scenario without its times")?;
        let mut instructions = cost(&program, scenario, times)?;
        if known.iter().any(|(known, kept)| known == scenario && differ(*kept, instructions)) {
            // Threads interleave: the middle of three.
            let mut three =
                [instructions, cost(&program, scenario, times)?, cost(&program, scenario, times)?];
            three.sort_unstable();
            instructions = three[1];
        }
        counted.push((scenario.to_owned(), instructions));
    }
    let text = print(compiler.trim(), &counted);
    fs::write(&new, &text).with_context(|| format!("writing {}", new.display()))?;
    if !is_comparable {
        let by = kept.lines().next().unwrap_or_default();
        return Ok(Done::Unchecked(format!("{COSTS} was counted with {by}, not with {}", compiler.trim())));
    }
    let differences = compare(&known, &counted);
    if !differences.is_empty() {
        bail!(
            "costs differ by more than {TOLERANCE} % from {COSTS}: {}. If that is meant: cp {} {COSTS}",
            differences.join("; "),
            new.strip_prefix(workspace.root()).unwrap_or(&new).display()
        );
    }
    Ok(Done::Checked(format!("{} scenarios within {TOLERANCE} %", counted.len())))
}

/// Compiles the scenarios with what the tests were compiled with.
fn build(workspace: &Workspace) -> Result<PathBuf> {
    let mut command = workspace.cargo_with_lints(&["build", "--locked", "--workspace", "--bench", "costs"]);
    command.args(["--features", &workspace.features()?]);
    let mut program = None;
    process::for_each_message(command, |message| {
        if let Message::CompilerArtifact(artifact) = message
            && artifact.target.name == "costs"
        {
            program = artifact.executable;
        }
    })?;
    Ok(program.context("cargo built no program `costs`")?.into())
}

/// The instructions of the work, once.
fn cost(program: &Path, scenario: &str, times: &str) -> Result<u64> {
    let (without, with) = thread::scope(|scope| {
        let without = scope.spawn(|| count(program, scenario, "0"));
        let with = count(program, scenario, times);
        (without.join().unwrap_or_else(|panic| resume_unwind(panic)), with)
    });
    let times: u64 = times.parse().with_context(|| format!("the times of {scenario}"))?;
    Ok(with?.saturating_sub(without?) / times.max(1))
}

/// All instructions of one run.
fn count(program: &Path, scenario: &str, times: &str) -> Result<u64> {
    let mut command = Command::new("valgrind");
    command.args(["--tool=cachegrind", "--cache-sim=no", "--branch-sim=no", "--log-fd=1"]);
    command.arg("--cachegrind-out-file=/dev/null").arg(program).args([scenario, times]);
    let said = process::output(command.env("RUST_BACKTRACE", "0")).with_context(|| scenario.to_owned())?;
    refs(&said).with_context(|| format!("valgrind counted nothing of {scenario}: {said}"))
}

/// The number in valgrind's line `==PID== I refs: 1,234`.
fn refs(said: &str) -> Option<u64> {
    let (_, number) = said.lines().find_map(|line| line.split_once("refs:"))?;
    number.trim().replace(',', "").parse().ok()
}

fn print(compiler: &str, costs: &[Cost]) -> String {
    let mut text = format!("{compiler}\n");
    for (scenario, instructions) in costs {
        let _ = writeln!(text, "{instructions:>12} {scenario}");
    }
    text
}

fn parse(text: &str) -> Vec<Cost> {
    let lines = text.lines().skip(1).filter_map(|line| line.trim_start().split_once(' '));
    lines.filter_map(|(number, scenario)| Some((scenario.to_owned(), number.parse().ok()?))).collect()
}

/// What costs more or less than it did by more than the tolerance, and what only one of the two has.
fn compare(kept: &[Cost], counted: &[Cost]) -> Vec<String> {
    let mut differences = Vec::new();
    for (scenario, instructions) in counted {
        match kept.iter().find(|(kept, _)| kept == scenario) {
            None => differences.push(format!("{scenario} is not in it")),
            Some((_, kept)) if differ(*kept, *instructions) => {
                differences.push(format!("{scenario}: {kept} → {instructions}"));
            }
            Some(_) => {}
        }
    }
    let gone = kept.iter().filter(|(kept, _)| !counted.iter().any(|(scenario, _)| scenario == kept));
    differences.extend(gone.map(|(scenario, _)| format!("{scenario} is no longer counted")));
    differences
}

#[cfg(test)]
mod tests {
    use super::*;

    fn costs(of: &[(&str, u64)]) -> Vec<Cost> {
        of.iter().map(|(scenario, instructions)| ((*scenario).to_owned(), *instructions)).collect()
    }

    #[test]
    fn costs_are_read_as_they_are_printed() {
        let costs = costs(&[("a token", 12), ("a mask, twice", 3_456)]);
        assert_eq!(parse(&print("rustc 1.0", &costs)), costs);
    }

    #[test]
    fn a_count_is_the_instructions_that_valgrind_reports() {
        assert_eq!(refs("==12== \n==12== I   refs:      1,234,567\n"), Some(1_234_567));
        assert_eq!(refs("thread 'main' panicked"), None);
    }

    #[test]
    fn more_and_less_than_the_tolerance_differ_and_so_do_scenarios() {
        let kept = costs(&[("same", 1000), ("more", 1000), ("less", 1000), ("gone", 1)]);
        let counted = costs(&[("same", 1050), ("more", 1051), ("less", 949), ("new", 1)]);
        let differences = compare(&kept, &counted);
        for (name, said) in [("more", true), ("less", true), ("gone", true), ("new", true), ("same", false)] {
            let is_told = differences.iter().any(|line| line.starts_with(name));
            assert_eq!(is_told, said, "{name}: {differences:?}");
        }
    }
}
