//! Measurements of mlxcel beside other programs: on the same machine, in the same run, in turns.
//!
//! `cargo xtask bench SUITE` provisions what a suite compares with and runs this program.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod bandwidth;
mod checkpoint;
mod machine;
mod mlx;
mod peer;
mod report;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Measurements of mlxcel beside other programs.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    suite: Suite,
}

#[derive(Subcommand)]
enum Suite {
    /// The MLX engine beside mlx-lm
    Mlx(mlx::Arguments),
}

fn main() -> ExitCode {
    let result = match Arguments::parse().suite {
        Suite::Mlx(arguments) => mlx::run(&arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
