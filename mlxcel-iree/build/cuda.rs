//! What the CUDA driver is built with: NVIDIA's toolkit, or the parts of it that IREE takes.

use std::env;
use std::path::{Path, PathBuf};

/// A folder with the parts; it goes before a toolkit.
const DEPS: &str = "IREE_CUDA_DEPS_DIR";
/// A file of each part, and the package on PyPI that has the part: the interfaces of the driver and the runtime (NCCL's needs
/// it), what their headers include, and the library of device functions.
const FILES: [(&str, &str); 4] = [
    ("include/cuda.h", "nvidia-cuda-runtime-cu12"),
    ("include/crt/host_config.h", "nvidia-cuda-nvcc-cu12"),
    ("include/nv/target", "nvidia-cuda-cccl-cu12"),
    ("nvvm/libdevice/libdevice.10.bc", "nvidia-cuda-nvcc-cu12"),
];

/// Fails where IREE's build would look for a toolkit in vain. It would go on to download one, unasked and unchecked.
pub(crate) fn find_toolkit() -> Result<(), String> {
    println!("cargo::rerun-if-env-changed={DEPS}");
    if let Some(folder) = env::var_os(DEPS) {
        let folder = PathBuf::from(folder);
        let missing = FILES.into_iter().filter(|(file, _)| !folder.join(file).is_file());
        let missing: Vec<_> = missing.map(|(file, package)| format!("{file} (PyPI: {package})")).collect();
        if missing.is_empty() {
            return Ok(());
        }
        return Err(format!("{DEPS} names {}, which lacks {}", folder.display(), missing.join(", ")));
    }
    if toolkits().any(|root| is_toolkit(&root)) {
        return Ok(());
    }
    Err(format!(
        "the feature `cuda` of mlxcel-iree is built with NVIDIA's CUDA toolkit (12 or newer), and there is none: none on \
         PATH (nvcc), in CUDAToolkit_ROOT or CUDA_PATH, or at /usr/local/cuda.\n\
         Install it, or name a folder in {DEPS} that holds its parts: {}.",
        FILES.map(|(file, package)| format!("{file} (PyPI: {package})")).join(", ")
    ))
}

/// The places where CMake's FindCUDAToolkit looks.
fn toolkits() -> impl Iterator<Item = PathBuf> {
    for name in ["CUDAToolkit_ROOT", "CUDA_PATH", "PATH"] {
        println!("cargo::rerun-if-env-changed={name}");
    }
    let named = ["CUDAToolkit_ROOT", "CUDA_PATH"].into_iter().filter_map(env::var_os).map(PathBuf::from);
    let path = env::var_os("PATH").unwrap_or_default();
    let programs: Vec<PathBuf> = env::split_paths(&path).collect();
    let compilers = programs.into_iter().filter_map(|folder| {
        let compiler =
            ["nvcc", "nvcc.exe"].into_iter().map(|name| folder.join(name)).find(|nvcc| nvcc.is_file())?;
        // It may be a link into the toolkit.
        Some(compiler.canonicalize().ok()?.parent()?.parent()?.to_path_buf())
    });
    named.chain(compilers).chain([PathBuf::from("/usr/local/cuda")])
}

fn is_toolkit(root: &Path) -> bool {
    let headers = ["include", "targets/x86_64-linux/include", "targets/sbsa-linux/include"];
    headers.into_iter().any(|headers| root.join(headers).join("cuda.h").is_file())
}
