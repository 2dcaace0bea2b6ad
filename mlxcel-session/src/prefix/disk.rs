//! The prefix cache on disk, across runs of a program.
//!
//! One folder per model, named by the checksum of what its entries are bound to, with one file per entry:
//!
//! ```text
//! "mlxcelPC"  version: u32  tokens: u64  token: u32 ...  snapshot: u64 bytes  SHA-256 of all before
//! ```
//!
//! Numbers are little-endian; the snapshot is in the format of [`Snapshot::to_bytes`].

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use mlxcel_core::{Error, Result, Snapshot, TokenId};
use mlxcel_models::files::{Workplace, open_regular};
use sha2::{Digest, Sha256};

use super::map::Entry;

const MAGIC: &[u8; 8] = b"mlxcelPC";
const VERSION: u32 = 1;
const SUM: usize = 32;
const EXTENSION: &str = "prefix";
const OPERATION: &str = "keep prefixes";

/// Makes the folder of `model` in `folder` hold exactly `entries`.
pub(super) fn write(folder: &Path, model: &str, entries: &[(Vec<TokenId>, Entry)]) -> Result<()> {
    let folder = folder.join(name(model.as_bytes()));
    let failed = |error| Error::io(OPERATION, &folder, error);
    make_private(&folder).map_err(failed)?;
    let work = Workplace::begin(&folder, ".mlxcel-prefix-").map_err(failed)?;
    let mut written = Vec::new();
    // The one that was used last is the newest file, and the first to be read.
    let mut entries: Vec<_> = entries.iter().collect();
    entries.sort_by_key(|(_, entry)| entry.used);
    for (tokens, entry) in entries {
        let bytes = encode(tokens, &entry.snapshot);
        let file = format!("{}.{EXTENSION}", name(&bytes));
        let made = work.path().join(&file);
        fs::write(&made, bytes).and_then(|()| fs::rename(&made, folder.join(&file))).map_err(failed)?;
        written.push(file);
    }
    for path in entries_of(&folder).map_err(failed)? {
        let keep = path.file_name().is_some_and(|name| written.iter().any(|file| name == file.as_str()));
        if !keep {
            fs::remove_file(&path).map_err(failed)?;
        }
    }
    Ok(())
}

/// The entries of `model`, those that were used last where not all fit into `budget`, the oldest first.
pub(super) fn read(folder: &Path, model: &str, budget: u64) -> Result<Vec<(Vec<TokenId>, Snapshot)>> {
    let folder = folder.join(name(model.as_bytes()));
    let failed = |error| Error::io(OPERATION, &folder, error);
    let paths = match entries_of(&folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        paths => paths.map_err(failed)?,
    };
    let mut dated: Vec<_> =
        paths.into_iter().filter_map(|path| Some((path.metadata().ok()?.modified().ok()?, path))).collect();
    dated.sort_unstable();
    let (mut entries, mut left) = (Vec::new(), budget);
    for (_, path) in dated.into_iter().rev() {
        match read_file(&path, left) {
            Ok(Some((tokens, snapshot))) => {
                left -= (snapshot.payload().len() as u64).min(left);
                entries.push((tokens, snapshot));
            }
            Ok(None) => tracing::debug!(path = %path.display(), "a stored prefix is corrupt or too large"),
            Err(error) => tracing::debug!(path = %path.display(), %error, "a stored prefix cannot be read"),
        }
    }
    entries.reverse();
    Ok(entries)
}

fn read_file(path: &Path, most: u64) -> io::Result<Option<(Vec<TokenId>, Snapshot)>> {
    let Some(file) = open_regular(path)? else { return Ok(None) };
    if file.metadata()?.len() > most {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    File::take(file, most).read_to_end(&mut bytes)?;
    Ok(decode(&bytes))
}

fn encode(tokens: &[TokenId], snapshot: &Snapshot) -> Vec<u8> {
    let snapshot = snapshot.to_bytes();
    let mut bytes = Vec::with_capacity(28 + 4 * tokens.len() + snapshot.len() + SUM);
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&(tokens.len() as u64).to_le_bytes());
    bytes.extend(tokens.iter().flat_map(|token| token.to_le_bytes()));
    bytes.extend_from_slice(&(snapshot.len() as u64).to_le_bytes());
    bytes.extend_from_slice(&snapshot);
    let sum = Sha256::digest(&bytes);
    bytes.extend_from_slice(&sum);
    bytes
}

/// None for what [`encode`] has not written.
fn decode(bytes: &[u8]) -> Option<(Vec<TokenId>, Snapshot)> {
    let (content, sum) = bytes.split_at_checked(bytes.len().checked_sub(SUM)?)?;
    let content = content.strip_prefix(MAGIC)?.strip_prefix(&VERSION.to_le_bytes())?;
    if Sha256::digest(&bytes[..bytes.len() - SUM]).as_slice() != sum {
        return None;
    }
    let (count, content) = length(content)?;
    let (tokens, content) = content.split_at_checked(count.checked_mul(4)?)?;
    let (count, content) = length(content)?;
    let snapshot = Snapshot::from_bytes(content.get(..count).filter(|_| count == content.len())?).ok()?;
    let tokens: Vec<TokenId> =
        tokens.as_chunks().0.iter().map(|&token| TokenId::from_le_bytes(token)).collect();
    (tokens.len() == snapshot.position()).then_some((tokens, snapshot))
}

fn length(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let (length, rest) = bytes.split_first_chunk()?;
    Some((usize::try_from(u64::from_le_bytes(*length)).ok()?, rest))
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
