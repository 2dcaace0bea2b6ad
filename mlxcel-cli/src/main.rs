//! `mlxcel`: language models from the command line. Every subcommand is a module of `commands`.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod adapters;
mod bundled;
mod commands;
mod connections;
mod engine;
mod input;
mod inspection;
mod interrupt;
mod model;
mod progress;
mod report;
mod sampling;
#[cfg(unix)]
mod signals;

use std::process::ExitCode;

use clap::FromArgMatches;

use commands::Program;

fn main() -> ExitCode {
    let matches = commands::definition().try_get_matches();
    match matches.and_then(|matches| Program::from_arg_matches(&matches)) {
        Ok(program) => report::exit(program.command.run()),
        // Help and version are not errors.
        Err(answer) if !answer.use_stderr() => report::exit(answer.print().map_err(report::Failure::from)),
        Err(error) => report::exit(Err(error.into())),
    }
}
