//! `bench`: measurements beside other programs. Not a part of `test`: they take minutes and want a quiet
//! machine.

mod gpu;

use std::ffi::OsString;
use std::path::PathBuf;

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
    /// The IREE and the MLX engine on processors beside llama.cpp, ik_llama.cpp, OpenVINO GenAI, candle,
    /// mistral.rs and mlx-lm
    Cpu(CpuArguments),
    /// The PJRT engine beside the same network in jax, on the plugin of `setup --pjrt`; jax is installed into
    /// .toolchain/xla for it
    Pjrt(SuiteArguments),
    /// Many requests on one engine, beside one at a time
    Requests(SuiteArguments),
    /// The time of each kernel of the IREE engine, and what bounds it
    Profile(SuiteArguments),
    /// Passes over several tokens of one sequence, and speculative decoding, compared with plain decoding
    Speculation(SpeculationArguments),
    /// Steps with adapters, compared with those of a model without room for any, and the time of loading one
    Adapters(SuiteArguments),
    /// Embeddings of many texts, beside sentence-transformers and onnxruntime in the Python that is given
    Embed(SuiteArguments),
    /// The engines on a GPU, with jax beside them: exactness by oracles, then speed; what needs CUDA is left
    /// out without
    Gpu(gpu::Arguments),
}

#[derive(clap::Args)]
struct SuiteArguments {
    /// Further arguments of the suite; `-- --help` lists them
    #[arg(last = true)]
    suite: Vec<String>,
}

#[derive(clap::Args)]
struct SpeculationArguments {
    /// Two rounds of short texts
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    further: SuiteArguments,
}

#[derive(clap::Args)]
struct CpuArguments {
    /// What the engine is compared with: llama.cpp, candle and mistral.rs are built into target/bench/build
    /// for it, ik_llama.cpp, OpenVINO GenAI and mlx-lm are installed into .toolchain; nothing where nothing
    /// is named. ik-llama-cpp and openvino read the files of llama-cpp, which has to be named too
    #[arg(long, value_enum, value_delimiter = ',', num_args = 0.., default_values_t = [CpuPeer::LlamaCpp, CpuPeer::Candle, CpuPeer::MlxLm])]
    peers: Vec<CpuPeer>,
    /// Further arguments of the suite; `-- --help` lists them
    #[arg(last = true)]
    suite: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum CpuPeer {
    LlamaCpp,
    IkLlamaCpp,
    #[value(name = "openvino")]
    OpenVino,
    Candle,
    #[value(name = "mistralrs")]
    MistralRs,
    MlxLm,
}

/// Sets up, installs what a suite compares with, and runs it.
pub(crate) fn run(workspace: &Workspace, arguments: &Arguments) -> Result<()> {
    setup::run(workspace)?;
    let suite = match arguments.suite {
        Suite::Cpu(_) => "cpu",
        Suite::Pjrt(_) => "pjrt",
        Suite::Requests(_) => "requests",
        Suite::Profile(_) => "profile",
        Suite::Speculation(_) => "speculation",
        Suite::Adapters(_) => "adapters",
        Suite::Embed(_) => "embed",
        Suite::Gpu(_) => "gpu",
    };
    let mut command =
        workspace.cargo(&["run", "--locked", "--release", "--package", "mlxcel-benches", "--", suite]);
    if !matches!(arguments.suite, Suite::Requests(_) | Suite::Profile(_) | Suite::Embed(_)) {
        command.arg("--folder").arg(folder(workspace));
    }
    let further = match &arguments.suite {
        Suite::Cpu(cpu) => {
            for peer in &cpu.peers {
                match peer {
                    CpuPeer::LlamaCpp => {
                        let tools = setup::build_tools(workspace)?;
                        command.arg("--llama-cpp").arg(worker(workspace, "llama-cpp", &tools)?)
                    }
                    CpuPeer::IkLlamaCpp => command.arg("--ik-llama-cpp").arg(build_ik_llama_cpp(workspace)?),
                    CpuPeer::OpenVino => command.arg("--openvino").arg(install_openvino(workspace)?),
                    CpuPeer::Candle => command.arg("--candle").arg(worker(workspace, "candle", &[])?),
                    CpuPeer::MistralRs => {
                        command.arg("--mistralrs").arg(worker(workspace, "mistralrs", &[])?)
                    }
                    CpuPeer::MlxLm => command.arg("--packages").arg(install_mlx_lm(workspace)?),
                };
            }
            let for_python = [CpuPeer::IkLlamaCpp, CpuPeer::OpenVino, CpuPeer::MlxLm];
            if cpu.peers.iter().any(|peer| for_python.contains(peer)) {
                command.arg("--python").arg(find_python()?);
            }
            &cpu.suite
        }
        Suite::Pjrt(pjrt) => {
            command.arg("--plugin").arg(setup::pjrt(workspace)?);
            command.arg("--packages").arg(setup::jax(workspace)?).arg("--python").arg(find_python()?);
            &pjrt.suite
        }
        // In an environment of its own.
        Suite::Gpu(arguments) => return gpu::run(workspace, arguments),
        Suite::Requests(further)
        | Suite::Profile(further)
        | Suite::Adapters(further)
        | Suite::Embed(further) => &further.suite,
        Suite::Speculation(speculation) => {
            command.args(speculation.quick.then_some("--quick"));
            &speculation.further.suite
        }
    };
    process::run(command.args(further))
}

/// Where checkpoints, other programs and results are.
fn folder(workspace: &Workspace) -> PathBuf {
    workspace.root().join("target/bench")
}

/// Builds the program in `benches/NAME`, which is outside the workspace, with all instructions of this
/// processor.
fn worker(workspace: &Workspace, name: &str, variables: &[(&str, OsString)]) -> Result<PathBuf> {
    let target = folder(workspace).join("build");
    let mut command = workspace.cargo(&["build", "--locked", "--release"]);
    command.arg("--manifest-path").arg(workspace.root().join("benches").join(name).join("Cargo.toml"));
    command.arg("--target-dir").arg(&target).env_remove("CARGO_ENCODED_RUSTFLAGS");
    command.env("RUSTFLAGS", "-C target-cpu=native");
    command.envs(variables.iter().map(|(name, value)| (name, value)));
    eprintln!("bench: building {name}, the first time for minutes");
    process::run(&mut command).with_context(|| format!("building benches/{name}"))?;
    Ok(target.join("release").join(format!("mlxcel-bench-{name}")))
}

fn install_mlx_lm(workspace: &Workspace) -> Result<PathBuf> {
    let packages = Packages::new(
        "mlx-lm",
        "benches/mlx-lm/requirements.txt",
        "mlx-lm and what it imports (about 110 MB)",
    );
    packages.install(workspace).context(
        "mlx-lm needs the network or an index that has it, and Linux (glibc 2.35 or newer, x86-64 or aarch64) \
         with Python 3.11, 3.12 or 3.13",
    )
}

/// Builds ik_llama.cpp with all instructions of this processor.
fn build_ik_llama_cpp(workspace: &Workspace) -> Result<PathBuf> {
    let backend = Packages::new(
        "scikit-build",
        "benches/ik-llama-cpp/build.txt",
        "scikit-build-core, which ik_llama.cpp is built with",
    );
    let packages = Packages::new(
        "ik-llama-cpp",
        "benches/ik-llama-cpp/requirements.txt",
        "ik_llama.cpp, which takes many minutes to build",
    );
    let mut variables = setup::build_tools(workspace)?;
    let tools =
        ["cmake/data/bin", "bin"].map(|folder| workspace.toolchain().join("build-tools").join(folder));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(tools.into_iter().chain(std::env::split_paths(&path)))
        .context("adding CMake to PATH")?;
    // Kernels for other types of the KV cache would take half of the time.
    let mut definitions = OsString::from(
        "GGML_NATIVE=ON;GGML_IQK_FA_ALL_QUANTS=OFF;CMAKE_PROJECT_ik_llama_cpp_python_INCLUDE=",
    );
    definitions.push(workspace.root().join("benches/ik-llama-cpp/libraries.cmake"));
    variables.extend([
        ("PATH", path),
        ("PYTHONPATH", backend.install(workspace)?.into()),
        // As pip reads it, without isolation: the build takes what is named above.
        ("PIP_NO_BUILD_ISOLATION", "0".into()),
        // It would keep a wheel for this processor.
        ("PIP_NO_CACHE_DIR", "1".into()),
        ("SKBUILD_BUILD_TARGETS", "llama".into()),
        ("SKBUILD_CMAKE_DEFINE", definitions),
    ]);
    packages
        .build(workspace, &variables)
        .context("ik_llama.cpp needs Python 3.11, 3.12 or 3.13 and a C++ compiler")
}

fn install_openvino(workspace: &Workspace) -> Result<PathBuf> {
    let packages = Packages::new(
        "openvino",
        "benches/openvino/requirements.txt",
        "OpenVINO GenAI and what it imports (about 90 MB)",
    );
    packages.install(workspace).context("OpenVINO GenAI needs Linux with Python 3.11, 3.12 or 3.13")
}
