//! The inputs that fuzzing starts from.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::target::Target;

/// The repository.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The folder of a target's committed inputs.
pub fn folder(target: &Target) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name)
}

/// A target's inputs: those that are committed, then those of the repository's own files.
///
/// # Errors
///
/// Those of reading the folder.
pub fn inputs(target: &Target) -> io::Result<Vec<(String, Vec<u8>)>> {
    let mut inputs = read_folder(&folder(target))?;
    let seeds = (target.seeds)().into_iter().enumerate();
    inputs.extend(seeds.map(|(number, content)| (format!("seed {number}"), content)));
    Ok(inputs)
}

/// The files of a folder with their names, sorted; none where there is no folder.
///
/// # Errors
///
/// Those of reading it.
pub fn read_folder(folder: &Path) -> io::Result<Vec<(String, Vec<u8>)>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.is_file() {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            files.push((name, fs::read(&path)?));
        }
    }
    files.sort();
    Ok(files)
}
