//! Measurements of mlxcel and other programs: on the same machine, in the same run, in turns.
//!
//! `cargo xtask bench SUITE` provisions the other programs of a suite and runs this program.
#![deny(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod adapters;
mod bandwidth;
mod checkpoint;
mod cpu;
mod embed;
mod gguf;
mod gpu;
mod machine;
mod oracles;
mod packed;
mod peak;
mod peers;
mod pjrt;
mod profile;
mod report;
mod requests;
mod safetensors;
mod serve;
mod shapes;
mod speculation;
mod spread;
mod worker;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Measurements of mlxcel and other programs.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    suite: Suite,
}

#[derive(Subcommand)]
enum Suite {
    /// The IREE and the MLX engine on CPUs, llama.cpp, ik_llama.cpp, OpenVINO GenAI, candle, mistral.rs and
    /// mlx-lm
    Cpu(Box<cpu::Arguments>),
    /// The PJRT engine and the same network in jax, on the same plugin
    Pjrt(pjrt::Arguments),
    /// Many concurrent requests on one engine, and one at a time
    Requests(requests::Arguments),
    /// The time of each kernel of the IREE engine, and what bounds it
    Profile(profile::Arguments),
    /// Passes over several tokens, and speculation, compared with plain decoding
    Speculation(speculation::Arguments),
    /// The cost of adapters, on the IREE engine
    Adapters(adapters::Arguments),
    /// Embeddings of many texts on the IREE engine, sentence-transformers and onnxruntime
    Embed(embed::Arguments),
    /// Our engines on a GPU, and jax on the same plugin: exactness, then speed
    Gpu(gpu::Arguments),
    /// One of our engines, measured on request from standard input
    #[command(hide = true)]
    Serve(serve::Arguments),
    /// One of our engines, compared with the oracles of checkpoints
    #[command(hide = true)]
    Oracles(oracles::Arguments),
}

fn main() -> ExitCode {
    let result = match Arguments::parse().suite {
        Suite::Cpu(arguments) => cpu::run(&arguments),
        Suite::Pjrt(arguments) => pjrt::run(&arguments),
        Suite::Requests(arguments) => requests::run(&arguments),
        Suite::Profile(arguments) => profile::run(&arguments),
        Suite::Speculation(arguments) => speculation::run(&arguments),
        Suite::Adapters(arguments) => adapters::run(&arguments),
        Suite::Embed(arguments) => embed::run(&arguments),
        Suite::Gpu(arguments) => gpu::run(&arguments),
        Suite::Oracles(arguments) => oracles::run(&arguments),
        Suite::Serve(arguments) => serve::run(&arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
