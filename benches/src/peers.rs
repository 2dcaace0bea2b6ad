//! Commands of other programs.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// A file of this package: beside this program if it was carried to another machine.
fn script(name: &str) -> PathBuf {
    let program = std::env::current_exe().unwrap_or_default();
    let carried = program.parent().unwrap_or(Path::new("")).join(name);
    if carried.is_file() { carried } else { Path::new(env!("CARGO_MANIFEST_DIR")).join(name) }
}

/// mlx-lm with `checkpoint` in the type `kind`; `python` imports it from `packages`.
pub(crate) fn mlx_lm(python: &str, packages: &Path, checkpoint: &Path, kind: &str) -> Command {
    let mut command = Command::new(python);
    command
        .arg(script("mlx-lm/worker.py"))
        .arg(checkpoint)
        .arg(kind)
        .env("PYTHONPATH", packages)
        .env("PYTHONNOUSERSITE", "1");
    command
}

/// jax with `checkpoint` in the type `kind` on the PJRT plugin at `plugin`, with a KV cache of this many
/// positions; `python` imports it from `packages`.
pub(crate) fn jax(
    python: &str,
    packages: &Path,
    plugin: &Path,
    checkpoint: &Path,
    kind: &str,
    cache: usize,
) -> Command {
    let mut command = Command::new(python);
    command
        .arg(script("jax/worker.py"))
        .arg(checkpoint)
        .args([kind, &cache.to_string()])
        .env("PYTHONPATH", packages)
        .env("PYTHONNOUSERSITE", "1")
        .env("JAX_PLATFORMS", "mlxcel")
        .env("PJRT_NAMES_AND_LIBRARY_PATHS", format!("mlxcel:{}", plugin.display()));
    command
}

/// The same on the GPU of jax's own plugin, whose memory it shares with others.
pub(crate) fn jax_on_gpu(
    python: &str,
    packages: Option<&Path>,
    checkpoint: &Path,
    kind: &str,
    cache: usize,
) -> Command {
    let nowhere = Path::new("");
    let mut command = jax(python, packages.unwrap_or(nowhere), nowhere, checkpoint, kind, cache);
    command
        .env_remove("PJRT_NAMES_AND_LIBRARY_PATHS")
        .env("JAX_PLATFORMS", "cuda")
        .env("XLA_PYTHON_CLIENT_PREALLOCATE", "false");
    if packages.is_none() {
        command.env_remove("PYTHONPATH");
    }
    command
}

/// candle or mistral.rs, as `program`, with `checkpoint` in the type `kind`.
pub(crate) fn rayon(program: &Path, checkpoint: &Path, kind: &str, threads: usize) -> Command {
    let mut command = Command::new(program);
    command.arg(checkpoint).arg(kind).env("RAYON_NUM_THREADS", threads.to_string());
    command
}

/// llama.cpp with the file `model` and sequences of at most `capacity` tokens.
pub(crate) fn llama_cpp(program: &Path, model: &Path, threads: usize, capacity: usize) -> Command {
    let mut command = Command::new(program);
    command.arg("serve").arg(model).args([threads.to_string(), capacity.to_string()]);
    command
}

/// Has llama.cpp convert the file `from` to `to`, in the type `kind`, if missing.
pub(crate) fn quantize_gguf(
    program: &Path,
    from: &Path,
    to: &Path,
    kind: &str,
    threads: usize,
) -> Result<()> {
    if to.is_file() {
        return Ok(());
    }
    eprintln!("writing {}", to.display());
    // Renamed once complete.
    let incoming = to.with_extension("incoming");
    let status = Command::new(program)
        .arg("quantize")
        .args([from, incoming.as_path()])
        .args([kind, &threads.to_string()])
        .status()
        .with_context(|| format!("starting {}", program.display()))?;
    if !status.success() {
        bail!("llama.cpp did not quantize {} to {kind} ({status})", from.display());
    }
    std::fs::rename(&incoming, to).with_context(|| format!("naming {}", to.display()))
}
