//! The demonstration: the bundled model tells a story through the IREE engine.

use anyhow::Result;

use crate::workspace::Workspace;
use crate::{process, setup};

/// What to tell a story about, and how.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// What to ask the model
    #[arg(default_value = "Tell me a story about a fox named Pip.")]
    prompt: String,
    /// Further arguments of the program `generate`
    #[arg(last = true)]
    generate: Vec<String>,
}

/// Sets up, builds the example `generate` and runs it on the bundled model.
pub(crate) fn run(workspace: &Workspace, arguments: &Arguments) -> Result<()> {
    setup::run(workspace)?;
    let mut command = workspace.cargo(&[
        "run",
        "--locked",
        "--release",
        "--package",
        "mlxcel-examples",
        "--bin",
        "generate",
        "--",
        "--backend",
        "iree",
        "--prompt",
    ]);
    command.arg(&arguments.prompt).args(&arguments.generate);
    process::run(&mut command)
}
