//! The file of one artifact: a header that says what it is and how long, with a checksum, then the artifact.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use sha2::{Digest, Sha256};

use super::key::Sum;

/// The first bytes of every entry; the last of them is the version of the layout.
const MAGIC: &[u8; 8] = b"mlxcart\x01";
/// Magic, key, length, checksum.
const HEADER: usize = 8 + 32 + 8 + 32;

/// What reading an entry found.
pub(super) enum Entry {
    /// The artifact, as it was written.
    Sound(Vec<u8>),
    /// A file that is not what it claims to be, and why.
    Corrupt(&'static str),
    /// No file.
    Missing,
}

/// Reads an entry and checks that it is whole; `key` may be left out where any artifact of that name will do.
pub(super) fn read(path: &Path, key: Option<&Sum>) -> io::Result<Entry> {
    let mut bytes = Vec::new();
    match File::open(path) {
        Ok(mut file) => file.read_to_end(&mut bytes)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Entry::Missing),
        Err(error) => return Err(error),
    };
    Ok(match check(&bytes, key) {
        Ok(()) => {
            bytes.drain(..HEADER);
            Entry::Sound(bytes)
        }
        Err(reason) => Entry::Corrupt(reason),
    })
}

fn check(bytes: &[u8], key: Option<&Sum>) -> Result<(), &'static str> {
    let Some((header, payload)) = bytes.split_at_checked(HEADER) else {
        return Err("it is shorter than its header");
    };
    let (magic, header) = header.split_at(8);
    let (sum, header) = header.split_at(32);
    let (length, checksum) = header.split_at(8);
    if magic != MAGIC {
        return Err("it does not begin like an artifact");
    }
    if key.is_some_and(|key| key != sum) {
        return Err("it is another program's");
    }
    if length != (payload.len() as u64).to_le_bytes() {
        return Err("its length is not the one that was written");
    }
    if Sha256::digest(payload).as_slice() != checksum {
        return Err("its checksum is wrong");
    }
    Ok(())
}

/// Publishes an entry: readers see the old state or all of the new one, also when the machine stops in between.
pub(super) fn write(folder: &Path, path: &Path, key: &Sum, payload: &[u8]) -> io::Result<()> {
    let mut file = tempfile::Builder::new().prefix(".part-").tempfile_in(folder)?;
    file.write_all(MAGIC)?;
    file.write_all(key)?;
    file.write_all(&(payload.len() as u64).to_le_bytes())?;
    file.write_all(&Sha256::digest(payload))?;
    file.write_all(payload)?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    // The rename itself is durable once the folder is written; where folders cannot be opened there is nothing to do.
    #[cfg(unix)]
    File::open(folder)?.sync_all()?;
    Ok(())
}
