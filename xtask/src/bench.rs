//! `bench`: measurements beside other programs. Not a part of `test`: they take minutes and want a quiet machine.

use anyhow::{Context, Result};
use clap::{Subcommand, ValueEnum};

use crate::setup::{Packages, find_python};
use crate::workspace::Workspace;
use crate::{process, setup};

/// Which suite to run, and its own arguments.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    suite: Suite,
}

#[derive(Subcommand)]
enum Suite {
    /// The MLX engine beside mlx-lm
    Mlx(MlxArguments),
}

#[derive(clap::Args)]
struct MlxArguments {
    /// What the engine is compared with; mlx-lm is installed into .toolchain/mlx-lm for it
    #[arg(long, value_enum, default_value_t = Peers::MlxLm)]
    peers: Peers,
    /// Further arguments of the suite; `-- --help` lists them
    #[arg(last = true)]
    suite: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Peers {
    MlxLm,
    None,
}

/// Sets up, installs what a suite compares with, and runs it.
pub(crate) fn run(workspace: &Workspace, arguments: &Arguments) -> Result<()> {
    setup::run(workspace)?;
    let Suite::Mlx(arguments) = &arguments.suite;
    let mut command =
        workspace.cargo(&["run", "--locked", "--release", "--package", "mlxcel-benches", "--", "mlx"]);
    command.arg("--folder").arg(workspace.root().join("target/bench"));
    if arguments.peers == Peers::MlxLm {
        let name = "mlx-lm";
        let packages = Packages {
            name,
            requirements: "benches/mlx-lm/requirements.txt",
            wheels_for: None,
            what: "mlx-lm and what it imports (about 110 MB)",
        };
        packages.install(workspace, find_python).context(
            "pip could not install mlx-lm: it needs the network or an index that has it, and Linux (glibc 2.35 or \
             newer, x86-64 or aarch64) with Python 3.11, 3.12 or 3.13",
        )?;
        command.arg("--packages").arg(workspace.toolchain().join(name)).arg("--python").arg(find_python()?);
    }
    process::run(command.args(&arguments.suite))
}
