//! The baseline of loading: one copy of the same bytes into untouched memory.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result};

/// The seconds that `threads` threads take to read the weights in `path`, a file or a folder of safetensors
/// files, into fresh memory.
pub(super) fn plain_copy(path: &Path, threads: usize) -> Result<f64> {
    let files = weights_in(path)?;
    let start = Instant::now();
    for file in &files {
        copy(file, threads).with_context(|| format!("copying {}", file.display()))?;
    }
    Ok(start.elapsed().as_secs_f64())
}

fn weights_in(path: &Path) -> Result<Vec<PathBuf>> {
    if path.is_file() {
        return Ok(vec![path.to_owned()]);
    }
    let entries = fs::read_dir(path).with_context(|| format!("reading {}", path.display()))?;
    let files = entries.flatten().map(|entry| entry.path());
    Ok(files.filter(|file| file.extension().is_some_and(|e| e == "safetensors")).collect())
}

#[cfg(unix)]
fn copy(path: &Path, threads: usize) -> std::io::Result<()> {
    use std::os::unix::fs::FileExt;

    let file = File::open(path)?;
    let length = file.metadata()?.len() as usize;
    // Fresh from the system: zero pages that are allocated when written to.
    let mut memory = vec![0u8; length];
    let part = length.div_ceil(threads.max(1)).max(1);
    thread::scope(|scope| {
        let file = &file;
        let copies: Vec<_> = memory
            .chunks_mut(part)
            .enumerate()
            .map(|(index, chunk)| scope.spawn(move || file.read_exact_at(chunk, (index * part) as u64)))
            .collect();
        let crashed = |_| Err(std::io::Error::other("a thread panicked"));
        copies.into_iter().try_for_each(|copy| copy.join().unwrap_or_else(crashed))
    })
}

#[cfg(not(unix))]
fn copy(path: &Path, _threads: usize) -> std::io::Result<()> {
    fs::read(path).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_folders_weights_are_copied() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["a.safetensors", "b.safetensors", "config.json"] {
            fs::write(folder.path().join(name), [7; 1000]).unwrap();
        }
        assert_eq!(weights_in(folder.path()).unwrap().len(), 2);
        assert!(plain_copy(folder.path(), 3).unwrap() > 0.0);
        assert!(plain_copy(&folder.path().join("nowhere"), 3).is_err());
    }
}
