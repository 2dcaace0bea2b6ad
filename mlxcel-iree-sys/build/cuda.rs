//! What the CUDA driver is compiled with: headers of NVIDIA's toolkit.

use std::env;
use std::path::{Path, PathBuf};

/// A folder with the parts of a toolkit that are needed; it goes before a toolkit.
const DEPS: &str = "IREE_CUDA_DEPS_DIR";
/// A file of each part, and the package on PyPI that has the part: the interfaces of the driver and the
/// runtime (NCCL's needs it), and what their headers include.
const FILES: [(&str, &str); 3] = [
    ("include/cuda.h", "nvidia-cuda-runtime"),
    ("include/crt/host_config.h", "nvidia-cuda-crt"),
    ("include/nv/target", "nvidia-cuda-cccl"),
];

/// The folder of the headers, or an error that says what to install.
pub(crate) fn find_headers() -> Result<PathBuf, String> {
    println!("cargo::rerun-if-env-changed={DEPS}");
    if let Some(folder) = env::var_os(DEPS) {
        let folder = PathBuf::from(folder);
        let missing = FILES.into_iter().filter(|(file, _)| !folder.join(file).is_file());
        let missing: Vec<_> = missing.map(|(file, package)| format!("{file} (PyPI: {package})")).collect();
        if missing.is_empty() {
            return Ok(folder.join("include"));
        }
        return Err(format!("{DEPS} names {}, which lacks {}", folder.display(), missing.join(", ")));
    }
    toolkits().find_map(|root| headers(&root)).ok_or_else(|| {
        format!(
            "the feature `cuda` of mlxcel-iree is compiled with the headers of NVIDIA's CUDA toolkit (12 or newer), and there is \
             none: none on PATH (nvcc), in CUDAToolkit_ROOT or CUDA_PATH, or at /usr/local/cuda.\n\
             Install it, or name a folder in {DEPS} that holds its parts: {}.",
            FILES.map(|(file, package)| format!("{file} (PyPI: {package})")).join(", ")
        )
    })
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

/// The folder of a toolkit's headers.
fn headers(root: &Path) -> Option<PathBuf> {
    let folders = ["include", "targets/x86_64-linux/include", "targets/sbsa-linux/include"];
    folders.into_iter().map(|folder| root.join(folder)).find(|folder| folder.join("cuda.h").is_file())
}
