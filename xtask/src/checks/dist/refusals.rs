//! What the build script of mlxcel-iree-sys refuses, and that it says the way out.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use super::VARIABLE;

/// The variable with the parts of a toolkit that the CUDA driver is built with.
const CUDA_DEPS: &str = "IREE_CUDA_DEPS_DIR";

/// The build script's environment, and words that its error must contain.
struct Case<'a> {
    features: &'a [&'a str],
    variable: Option<(&'a str, &'a Path)>,
    words: &'a [&'a str],
}

/// Shows the build script what it must refuse; the number of cases.
pub(super) fn check(script: &Path, distribution: &Path) -> Result<usize> {
    let folder = tempfile::tempdir().context("making a folder")?;
    let spoilt = Spoilt::make(folder.path(), distribution)?;
    let dist = |path, words| Case { features: &["DIST"], variable: Some((VARIABLE, path)), words };
    let mut cases = vec![
        Case { features: &[], variable: None, words: &["`vendored`", "`dist`", VARIABLE] },
        Case { features: &["DIST"], variable: None, words: &[VARIABLE, "3.13.0", "`vendored`"] },
        // Where both are on, the distribution is what was asked for in so many words.
        Case { features: &["DIST", "VENDORED"], variable: None, words: &[VARIABLE] },
        dist(&spoilt.empty, &["lib/libiree_runtime_unified.a", "lib/libflatcc_parsing.a", "missing"]),
        dist(&spoilt.incomplete, &["lib/libflatcc_parsing.a missing"]),
        dist(&spoilt.older, &["IREE 3.12.0", "3.13.0"]),
        dist(&spoilt.newer, &["IREE 3.13.01", "3.13.0"]),
        dist(&spoilt.nameless, &["does not say which release", "version.json"]),
        Case {
            features: &["DIST", "CUDA"],
            variable: Some((VARIABLE, distribution)),
            words: &["feature `cuda`", "built without that driver", "`vendored`"],
        },
        Case {
            features: &["VENDORED"],
            variable: Some(("CARGO_MANIFEST_DIR", &spoilt.empty)),
            words: &["C sources are not in", "--package xtask -- setup --sources"],
        },
        Case {
            features: &["VENDORED"],
            variable: Some(("CARGO_CFG_TARGET_POINTER_WIDTH", Path::new("32"))),
            words: &["32 bits", "`portable`"],
        },
        Case {
            features: &["VENDORED", "CUDA"],
            variable: Some((CUDA_DEPS, &spoilt.empty)),
            words: &[CUDA_DEPS, "lacks include/cuda.h (PyPI: nvidia-cuda-runtime)", "nv/target"],
        },
    ];
    // On a machine with a toolkit there is nothing to refuse.
    if !Path::new("/usr/local/cuda").exists() {
        let words = &["CUDA toolkit", CUDA_DEPS, "nvidia-cuda-runtime"];
        cases.push(Case { features: &["VENDORED", "CUDA"], variable: None, words });
    }
    for case in &cases {
        refuses(script, folder.path(), case)
            .with_context(|| format!("with the features {:?} and {:?}", case.features, case.variable))?;
    }
    Ok(cases.len())
}

/// Distributions that are none.
struct Spoilt {
    empty: PathBuf,
    incomplete: PathBuf,
    older: PathBuf,
    newer: PathBuf,
    nameless: PathBuf,
}

impl Spoilt {
    fn make(folder: &Path, distribution: &Path) -> Result<Self> {
        let copy = |name: &str, version: &str| -> Result<_> {
            let copy = folder.join(name);
            fs::create_dir_all(copy.join("lib")).context("creating a distribution")?;
            for file in ["lib/libiree_runtime_unified.a", "lib/libflatcc_parsing.a"] {
                fs::copy(distribution.join(file), copy.join(file))
                    .with_context(|| format!("copying {file}"))?;
            }
            let version = format!("{{\"package-version\": \"{version}\"}}");
            fs::write(copy.join("version.json"), version).context("writing a version")?;
            Ok(copy)
        };
        let spoilt = Self {
            empty: folder.join("empty"),
            incomplete: copy("incomplete", "3.13.0")?,
            older: copy("older", "3.12.0")?,
            newer: copy("newer", "3.13.01")?,
            nameless: copy("nameless", "")?,
        };
        fs::create_dir(&spoilt.empty).context("creating a folder")?;
        fs::remove_file(spoilt.incomplete.join("lib/libflatcc_parsing.a")).context("removing a library")?;
        fs::remove_file(spoilt.nameless.join("version.json")).context("removing a version")?;
        Ok(spoilt)
    }
}

/// Runs the script, which must fail with an error for cargo that has all of the case's words.
fn refuses(script: &Path, out: &Path, case: &Case<'_>) -> Result<()> {
    let mut command = Command::new(script);
    for variable in [VARIABLE, CUDA_DEPS, "CUDAToolkit_ROOT", "CUDA_PATH"] {
        command.env_remove(variable);
    }
    for feature in ["CUDA", "DIST", "VENDORED", "VULKAN"] {
        command.env_remove(format!("CARGO_FEATURE_{feature}"));
    }
    command.env("OUT_DIR", out).env("CARGO_MANIFEST_DIR", out).env("PATH", "");
    for (name, value) in [
        ("OS", std::env::consts::OS),
        ("ENV", "gnu"),
        ("ARCH", std::env::consts::ARCH),
        ("POINTER_WIDTH", "64"),
    ] {
        command.env(format!("CARGO_CFG_TARGET_{name}"), value);
    }
    command.envs(case.features.iter().map(|feature| (format!("CARGO_FEATURE_{feature}"), "1")));
    command.envs(case.variable);
    let output = command.stdin(Stdio::null()).output().context("starting the build script")?;
    if output.status.success() {
        bail!("the build script accepted it");
    }
    let said = String::from_utf8_lossy(&output.stdout);
    let errors: String = said.lines().filter_map(|line| line.strip_prefix("cargo::error=")).collect();
    match case.words.iter().find(|word| !errors.contains(*word)) {
        Some(word) => {
            bail!(
                "the build script's words lack {word:?}: {errors}{}",
                String::from_utf8_lossy(&output.stderr)
            )
        }
        None => Ok(()),
    }
}
