//! The prefix cache on disk, across runs of a program.
//!
//! One folder per [`StateIdentity`], named by its checksum, with one file per entry in the format of
//! [`state_file`](crate::state_file).

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use mlxcel_core::{Error, Result, Snapshot, StateIdentity, TokenId};
use mlxcel_models::files::Workplace;
use sha2::{Digest, Sha256};

use super::map::Map;
use crate::state_file::{self, SavedState, StateReader};

const EXTENSION: &str = "prefix";
const OPERATION: &str = "keep prefixes";

/// Makes the folder of `identity` in `folder` hold exactly `entries`.
pub(super) fn write(folder: &Path, identity: &StateIdentity, entries: &Map) -> Result<()> {
    let folder = folder.join(name(identity.to_string().as_bytes()));
    let failed = |error| Error::io(OPERATION, &folder, error);
    make_private(&folder).map_err(failed)?;
    let work = Workplace::begin(&folder, ".mlxcel-prefix-").map_err(failed)?;
    let mut written = Vec::new();
    // The one that was used last is the newest file, and the first to be read.
    let mut entries: Vec<_> = entries.iter().collect();
    entries.sort_by_key(|(_, entry)| entry.used);
    for (tokens, entry) in entries {
        let bytes = state_file::encode(&[], tokens, &entry.snapshot)?;
        let file = format!("{}.{EXTENSION}", name(&bytes));
        let made = work.path().join(&file);
        let place = folder.join(&file);
        if place.is_dir() {
            tracing::warn!(path = %place.display(), "a folder is in the place of a prefix, which is not kept");
            continue;
        }
        fs::write(&made, bytes).and_then(|()| fs::rename(&made, place)).map_err(failed)?;
        written.push(file);
    }
    for path in entries_of(&folder).map_err(failed)? {
        let keep = path.file_name().is_some_and(|name| written.iter().any(|file| name == file.as_str()));
        if !keep && !path.is_dir() {
            fs::remove_file(&path).map_err(failed)?;
        }
    }
    Ok(())
}

/// The entries of `identity`, those that were used last where not all fit into `budget`, the oldest first.
pub(super) fn read(
    folder: &Path,
    identity: &StateIdentity,
    budget: u64,
) -> Result<Vec<(Vec<TokenId>, Snapshot)>> {
    let folder = folder.join(name(identity.to_string().as_bytes()));
    let failed = |error| Error::io(OPERATION, &folder, error);
    let paths = match entries_of(&folder) {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(Vec::new());
        }
        paths => paths.map_err(failed)?,
    };
    let mut dated: Vec<_> =
        paths.into_iter().filter_map(|path| Some((path.metadata().ok()?.modified().ok()?, path))).collect();
    dated.sort_unstable();
    let (mut entries, mut left) = (Vec::new(), budget);
    for (_, path) in dated.into_iter().rev() {
        match read_file(&path, identity, left) {
            Ok(Some(SavedState { tokens, snapshot, .. })) => {
                left -= (snapshot.payload().len() as u64).min(left);
                entries.push((tokens, snapshot));
            }
            Ok(None) => {
                tracing::debug!(path = %path.display(), "a stored prefix is of another format or too large")
            }
            Err(error) => tracing::debug!(path = %path.display(), %error, "a stored prefix is not used"),
        }
    }
    entries.reverse();
    Ok(entries)
}

fn read_file(path: &Path, identity: &StateIdentity, most: u64) -> Result<Option<SavedState>> {
    if fs::metadata(path).is_ok_and(|file| file.len() > most) {
        return Ok(None);
    }
    let Some(reader) = StateReader::open(path)? else { return Ok(None) };
    identity.check(reader.identity())?;
    reader.state(most).map(Some)
}

/// A file name for `bytes`.
fn name(bytes: &[u8]) -> String {
    Sha256::digest(bytes)[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}

fn entries_of(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let paths = fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    Ok(paths.into_iter().filter(|path| path.extension().is_some_and(|found| found == EXTENSION)).collect())
}

/// Makes a folder that this user alone may look into.
fn make_private(folder: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}
