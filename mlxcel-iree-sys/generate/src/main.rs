//! What `mlxcel-iree-sys` has of IREE's sources in generated form, and a distribution of the runtime for
//! tests.
//!
//! `cargo xtask generate` runs it, with libclang and IREE's sources in place; a build of the crate takes what
//! lies in the repository.
//!
//! ```text
//! generated/include/    readers and verifiers of flatbuffers, by flatcc; the table of the VM's instructions
//! generated/names.h     gives every function of the archive a name of its own
//! generated/layout.c    refuses a C compiler that lays types out in another way than the bindings
//! src/bindings.rs       types and functions for Rust, by bindgen
//! ```
#![forbid(unsafe_code)]
#![allow(clippy::print_stderr)]

mod bindings;
mod distribution;
mod headers;
mod layout;
mod library;
mod names;

// The files and flags of the crate's own build script.
#[path = "../../build/compile.rs"]
mod compile;
#[path = "../../build/sources.rs"]
mod sources;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};

/// Generates what mlxcel-iree-sys has of IREE's sources.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Write headers, names and bindings
    Bindings {
        /// All of IREE's sources, as the package has them that `cargo xtask setup` takes the crate's from
        upstream: PathBuf,
        /// The folder of the crate, or one to compare with it
        out: PathBuf,
    },
    /// Write a distribution of the runtime, as IREE's own build installs one
    Distribution {
        /// Its folder
        out: PathBuf,
    },
}

fn main() -> ExitCode {
    let result = match Arguments::parse().task {
        Task::Bindings { upstream, out } => generate(&upstream, &out),
        Task::Distribution { out } => distribution::write(&root(), &out),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The folder of `mlxcel-iree-sys`.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn generate(upstream: &Path, out: &Path) -> Result<()> {
    let root = root();
    let generated = out.join("generated");
    headers::write(upstream, &generated.join("include"))?;
    let names = names::of_archive(&root)?;
    write(&generated.join("names.h"), &names::header(&names))?;
    let bindings = bindings::generate(&root, &names)?;
    write(&generated.join("layout.c"), &layout::checks(&bindings))?;
    write(&out.join("src/bindings.rs"), &bindings)
}

/// Writes a file; an unchanged one keeps its modification time, so that builds do not repeat.
fn write(file: &Path, text: &str) -> Result<()> {
    if fs::read_to_string(file).is_ok_and(|found| found == text) {
        return Ok(());
    }
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
    }
    fs::write(file, text).with_context(|| format!("writing {}", file.display()))
}
