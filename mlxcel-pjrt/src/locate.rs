//! Where a plugin is found.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use mlxcel_core::{Error, ErrorKind, Result};

/// The environment variable that names a plugin where the application does not.
pub const PLUGIN_VARIABLE: &str = "MLXCEL_PJRT_PLUGIN";

/// The plugin at `named`, else the one that the variable names, else the only one among the packages of the
/// active virtual environment.
///
/// # Errors
///
/// [`ErrorKind::NotFound`] if there is none, [`ErrorKind::InvalidInput`] if the environment has several; both
/// say how to name one.
pub(crate) fn locate(named: Option<&Path>) -> Result<PathBuf> {
    let variable = env::var_os(PLUGIN_VARIABLE).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(path) = named.map(Path::to_owned).or(variable) {
        return Ok(path);
    }
    let environment = active_environment(env::var_os("VIRTUAL_ENV"));
    let found = environment.as_deref().map(plugins_of).unwrap_or_default();
    const OPERATION: &str = "find PJRT plugin";
    match &found[..] {
        [only] => Ok(only.clone()),
        [] => {
            let message = "there is no PJRT plugin: name one in MLXCEL_PJRT_PLUGIN or in the engine's options, or activate a Python environment with one (for example `pip install jax-cuda13-pjrt`)";
            let active = environment.map_or("none is active".into(), |folder| folder.display().to_string());
            Err(Error::new(ErrorKind::NotFound, OPERATION, message).with_context("environment", active))
        }
        several => {
            let message = "the active Python environment has several PJRT plugins; name one of them in MLXCEL_PJRT_PLUGIN";
            let list = several.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ");
            Err(Error::new(ErrorKind::InvalidInput, OPERATION, message).with_context("plugins", list))
        }
    }
}

/// The folder that `variable` names; a relative one would depend on the working directory, which may be
/// untrusted.
fn active_environment(variable: Option<OsString>) -> Option<PathBuf> {
    variable.map(PathBuf::from).filter(|folder| folder.is_absolute())
}

/// The plugins among the packages of a virtual environment: shared libraries with `pjrt` in their names in
/// packages of `jax_plugins`, and in packages that have `pjrt` in theirs. Nothing is run.
fn plugins_of(environment: &Path) -> Vec<PathBuf> {
    let mut packages = Vec::new();
    for lib in ["lib", "lib64"] {
        for python in folders(&environment.join(lib)) {
            let site = python.join("site-packages");
            packages.extend(folders(&site.join("jax_plugins")));
            packages.extend(folders(&site).into_iter().filter(|package| named_so(package)));
        }
    }
    packages.extend(folders(&environment.join("Lib/site-packages/jax_plugins")));
    let mut found: Vec<PathBuf> = packages
        .iter()
        .flat_map(|package| entries(package))
        .filter(|path| named_so(path) && is_library(path) && path.is_file())
        .filter_map(|path| path.canonicalize().ok())
        .collect();
    found.sort();
    found.dedup();
    found
}

fn named_so(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().to_ascii_lowercase().contains("pjrt"))
}

fn is_library(path: &Path) -> bool {
    path.extension().is_some_and(|extension| ["so", "dylib", "dll"].iter().any(|known| extension == *known))
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder)
        .map(|entries| entries.flatten().map(|entry| entry.path()).collect())
        .unwrap_or_default()
}

fn folders(folder: &Path) -> Vec<PathBuf> {
    entries(folder).into_iter().filter(|path| path.is_dir()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touch(path: &Path) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
    }

    #[test]
    fn packages_of_an_environment_are_searched_without_python() {
        let environment = tempfile::tempdir().unwrap();
        let site = environment.path().join("lib/python3.12/site-packages");
        assert!(plugins_of(environment.path()).is_empty());
        let cuda = site.join("jax_plugins/xla_cuda13/xla_cuda_plugin_pjrt.so");
        let cpu = site.join("lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so");
        for path in [&cuda, &cpu] {
            touch(path);
        }
        // Other files of the same packages, and libraries of others.
        touch(&site.join("jax_plugins/xla_cuda13/__init__.py"));
        touch(&site.join("jax_plugins/xla_cuda13/_versions.so"));
        touch(&site.join("numpy/core.so"));
        let expected = [cuda, cpu].map(|path| path.canonicalize().unwrap());
        assert_eq!(plugins_of(environment.path()), expected);
    }

    #[test]
    fn a_virtual_environment_in_the_working_directory_is_ignored() {
        for relative in ["", ".", "venv", "../venv"] {
            assert_eq!(active_environment(Some(relative.into())), None);
        }
        let folder = env::temp_dir();
        assert_eq!(active_environment(Some(folder.clone().into())), Some(folder));
        assert_eq!(active_environment(None), None);
    }

    #[test]
    fn the_option_takes_precedence() {
        assert_eq!(locate(Some(Path::new("/plugins/mine.so"))).unwrap(), Path::new("/plugins/mine.so"));
    }
}
