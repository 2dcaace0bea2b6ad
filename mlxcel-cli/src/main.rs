//! `mlxcel`: language models from the command line. Every subcommand is a module of `commands`.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod adapters;
mod bundled;
mod commands;
mod config;
mod connections;
mod engine;
mod input;
mod inspection;
mod interrupt;
mod log;
mod model;
mod numbers;
mod progress;
mod report;
mod sampling;
#[cfg(unix)]
mod signals;
mod speculate;

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{ArgMatches, FromArgMatches};

use commands::Program;
use report::Failure;

fn main() -> ExitCode {
    match commands::definition().try_get_matches() {
        Ok(matches) => report::exit(run(matches)),
        // Help and version are not errors.
        Err(answer) if !answer.use_stderr() => report::exit(answer.print().map_err(Failure::from)),
        Err(error) if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let message = "no subcommand is given; `mlxcel --help` lists them";
            report::exit(Err(Failure::Usage(message.to_owned())))
        }
        Err(error) => report::exit(Err(error.into())),
    }
}

fn run(matches: ArgMatches) -> Result<(), Failure> {
    log::to_stderr()?;
    let Some(defaults) = config::with_defaults(commands::definition(), &matches)? else {
        return Program::from_arg_matches(&matches)?.command.run();
    };
    let matches = defaults.program.clone().try_get_matches()?;
    let ended = Program::from_arg_matches(&matches)?.command.run();
    ended.map_err(|failure| failure.with_origin(|text| defaults.origin(text, &matches)))
}
