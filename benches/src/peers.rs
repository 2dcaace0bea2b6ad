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

/// The worker of a program for Python; `python` imports that program from `packages`.
fn worker(python: &str, packages: &Path, name: &str) -> Command {
    let mut command = own_worker(python, name);
    command.env("PYTHONPATH", packages).env("PYTHONNOUSERSITE", "1");
    command
}

/// The same of a program that `python` has.
fn own_worker(python: &str, name: &str) -> Command {
    let mut command = Command::new(python);
    command.arg(script(&format!("{name}/worker.py")));
    command
}

/// mlx-lm with `checkpoint` in the type `kind`.
pub(crate) fn mlx_lm(python: &str, packages: &Path, checkpoint: &Path, kind: &str) -> Command {
    let mut command = worker(python, packages, "mlx-lm");
    command.arg(checkpoint).arg(kind);
    command
}

/// ik_llama.cpp with the file `model` and sequences of at most `capacity` tokens.
pub(crate) fn ik_llama_cpp(
    python: &str,
    packages: &Path,
    model: &Path,
    threads: usize,
    capacity: usize,
) -> Command {
    let mut command = worker(python, packages, "ik-llama-cpp");
    command.arg(model).args([threads.to_string(), capacity.to_string()]);
    command
}

/// OpenVINO GenAI with the OpenVINO model in `folder`.
pub(crate) fn openvino(python: &str, packages: &Path, folder: &Path, threads: usize) -> Command {
    let mut command = worker(python, packages, "openvino");
    command.arg("serve").arg(folder).arg(threads.to_string());
    command
}

/// Has OpenVINO GenAI convert the GGUF file `from` to an OpenVINO model in the folder `to`, if missing.
pub(crate) fn convert_to_openvino(python: &str, packages: &Path, from: &Path, to: &Path) -> Result<()> {
    converted("OpenVINO GenAI", worker(python, packages, "openvino"), from, to)
}

/// ONNX Runtime GenAI with the model in `folder`.
pub(crate) fn onnxruntime(python: &str, folder: &Path, threads: usize) -> Command {
    let mut command = own_worker(python, "onnxruntime-genai");
    command.arg("serve").arg(folder).arg(threads.to_string());
    command
}

/// Has ONNX Runtime GenAI build a model of `checkpoint` in the folder `to`, if missing.
pub(crate) fn convert_to_onnxruntime(python: &str, checkpoint: &Path, to: &Path) -> Result<()> {
    converted("ONNX Runtime GenAI", own_worker(python, "onnxruntime-genai"), checkpoint, to)
}

/// Has `program`, by its worker, convert `from` to a model in the folder `to`, if missing.
fn converted(program: &str, mut worker: Command, from: &Path, to: &Path) -> Result<()> {
    if to.is_dir() {
        return Ok(());
    }
    eprintln!("writing {}", to.display());
    // Renamed once complete.
    let incoming = to.with_extension("incoming");
    std::fs::create_dir_all(&incoming).with_context(|| format!("creating {}", incoming.display()))?;
    worker.arg("convert").args([from, incoming.as_path()]);
    let output = worker.output().with_context(|| format!("starting {}", worker.get_program().display()))?;
    if !output.status.success() {
        std::fs::remove_dir_all(&incoming).with_context(|| format!("removing {}", incoming.display()))?;
        let said = String::from_utf8_lossy(&output.stderr);
        let reason = said.trim_end().lines().next_back().unwrap_or_default();
        bail!("{program} did not read {}: {reason}", from.display());
    }
    std::fs::rename(&incoming, to).with_context(|| format!("naming {}", to.display()))
}

/// jax with `checkpoint` in the type `kind` on the PJRT plugin at `plugin`, with a KV cache of this many
/// positions.
pub(crate) fn jax(
    python: &str,
    packages: &Path,
    plugin: &Path,
    checkpoint: &Path,
    kind: &str,
    cache: usize,
) -> Command {
    let mut command = worker(python, packages, "jax");
    command.arg(checkpoint).args([kind, &cache.to_string()]).env("JAX_PLATFORMS", "mlxcel");
    command.env("PJRT_NAMES_AND_LIBRARY_PATHS", format!("mlxcel:{}", plugin.display()));
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
    command.env_remove("PJRT_NAMES_AND_LIBRARY_PATHS").env("JAX_PLATFORMS", "cuda");
    command.env("XLA_PYTHON_CLIENT_PREALLOCATE", "false");
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
    let mut command = Command::new(program);
    command.arg("quantize").args([from, incoming.as_path()]).args([kind, &threads.to_string()]);
    let status = command.status().with_context(|| format!("starting {}", program.display()))?;
    if !status.success() {
        bail!("llama.cpp did not quantize {} to {kind} ({status})", from.display());
    }
    std::fs::rename(&incoming, to).with_context(|| format!("naming {}", to.display()))
}
