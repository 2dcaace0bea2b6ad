//! The tasks of this repository, run as `cargo xtask TASK`.
//!
//! `setup` provisions the native toolchain, `demo` lets the bundled model tell a story, `bench` measures,
//! `fuzz` searches for inputs that break readers, `sanitize` runs sanitizers, `aarch64` runs tests on
//! emulated processors, `generate` regenerates bindings, `size` measures binary size, `release-notes` checks
//! a tag, and `test` runs every check of continuous integration. They need only Rust, a C++ compiler and
//! Python 3 with pip.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod aarch64;
mod bench;
mod checks;
mod demo;
mod fuzz;
mod generate;
mod process;
mod release;
mod sanitize;
mod setup;
mod size;
mod toolchains;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::workspace::Workspace;

/// The tasks of this repository.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Unpack the sources of IREE's runtime, and provision the IREE compiler and MLX into .toolchain/
    Setup(setup::Arguments),
    /// Generate a story with the bundled model and the IREE engine
    Demo(demo::Arguments),
    /// Compare engines with other programs
    Bench(bench::Arguments),
    /// Fuzz everything that reads untrusted files
    Fuzz(fuzz::Arguments),
    /// Run the tests of what talks to C and C++ under the address and the leak sanitizer, and those of many
    /// threads under the thread sanitizer
    Sanitize(sanitize::Arguments),
    /// Run tests for 64-bit Arm on emulated processors
    Aarch64(aarch64::Arguments),
    /// Regenerate the bindings and headers of mlxcel-iree-sys
    Generate,
    /// Build a program with each feature set and print how large it is
    Size(size::Arguments),
    /// Check that a tag, the manifests and the changelog agree, and print the changelog's text for it
    ReleaseNotes(release::Arguments),
    /// Run every check: format, architecture, licences, lints, documentation and all tests
    Test(checks::Arguments),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let result = Workspace::locate().and_then(|workspace| match arguments.task {
        Task::Setup(arguments) => setup::run_with(&workspace, &arguments),
        Task::Demo(arguments) => demo::run(&workspace, &arguments),
        Task::Bench(arguments) => bench::run(&workspace, &arguments),
        Task::Fuzz(arguments) => fuzz::run(&workspace, &arguments),
        Task::Sanitize(arguments) => sanitize::run(&workspace, &arguments),
        Task::Aarch64(arguments) => aarch64::run(&workspace, &arguments),
        Task::Generate => generate::run(&workspace),
        Task::Size(arguments) => size::run(&workspace, &arguments),
        Task::ReleaseNotes(arguments) => release::run(&workspace, &arguments),
        Task::Test(arguments) => checks::run(&workspace, &arguments),
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::markdown::{lines, pages, prose};

    /// What follows `cargo xtask` in the blocks of a page and in the code of its prose.
    fn tasks(text: &str) -> Vec<Vec<String>> {
        let prose = prose(text).collect::<Vec<_>>().join(" ");
        let named = prose.split("`cargo xtask ").skip(1).filter_map(|rest| rest.split('`').next());
        let blocks = lines(text).filter(|(language, _)| language.is_some());
        let typed = blocks.filter_map(|(_, line)| line.split(" #").next()?.split_once("cargo xtask "));
        typed.map(|(_, task)| task).chain(named).map(words).collect()
    }

    fn words(task: &str) -> Vec<String> {
        let quoted = |(index, part): (usize, &str)| -> Vec<String> {
            match index % 2 {
                0 => part.split_whitespace().filter(|word| *word != "\\").map(str::to_owned).collect(),
                _ => vec![part.to_owned()],
            }
        };
        task.split('"').enumerate().flat_map(quoted).collect()
    }

    #[test]
    fn tasks_in_the_documentation_are_valid_arguments() {
        let mut count = 0;
        for (page, text) in pages(&Workspace::locate().unwrap()).unwrap() {
            for mut task in tasks(&text) {
                count += 1;
                // A word such as `TARGET` stands for a value.
                if task.iter().any(|word| word.bytes().all(|letter| letter.is_ascii_uppercase())) {
                    task = vec![task.swap_remove(0), "--help".to_owned()];
                }
                let task = std::iter::once("cargo xtask".to_owned()).chain(task);
                if let Err(error) = Arguments::try_parse_from(task)
                    && error.use_stderr()
                {
                    panic!("{page}: {error}");
                }
            }
        }
        assert!(count > 50, "{count} tasks");
    }
}
