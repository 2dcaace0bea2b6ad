//! Notes about compilers, so that a start with all programs cached neither starts the compiler nor reads its
//! hundreds of megabytes.

use std::fs::{self, Metadata};
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use mlxcel_iree_target::{Revision, from_hex, hex};
use mlxcel_models::files::read_regular;

use super::key::Parts;
use super::{Cache, entry};
use crate::compiler::{Compiler, Identity};

/// The folder of the notes.
pub(super) const FOLDER: &str = "compilers";

/// The most bytes that a note has: a revision and a sum.
const LONGEST_NOTE: u64 = 4096;

/// How long a file must be unchanged before its modification time identifies its content: the coarsest clock
/// of a file system in use (FAT) takes steps of two seconds.
const SETTLED: Duration = Duration::from_secs(2);

impl Cache {
    /// What the compiler is, if these very files were looked at before.
    pub(crate) fn known_identity(&self, compiler: &Compiler) -> Option<Identity> {
        let text = String::from_utf8(read_regular(&self.note(compiler)?, LONGEST_NOTE).ok()?).ok()?;
        let (revision, checksum) = text.trim_end().split_once('\n')?;
        Some(Identity { revision: Revision::recorded(revision)?, checksum: from_hex(checksum)? })
    }

    /// Notes what the compiler is.
    pub(crate) fn note_identity(&self, compiler: &Compiler, identity: &Identity) {
        let Some(note) = self.note(compiler) else { return };
        let text = format!("{}\n{}\n", identity.revision, hex(&identity.checksum));
        // The record is an optimisation; an unwritable folder is reported where artifacts are stored.
        if let Err(error) = entry::write_text(&note, &text) {
            tracing::debug!(note = %note.display(), %error, "the compiler's identity could not be recorded");
        }
    }

    /// Where the compiler is noted: under the path, the size, the times and the place on disk of each of its
    /// files, so that another compiler in its place is another one. None while a file is so new that it
    /// might change unnoticed.
    fn note(&self, compiler: &Compiler) -> Option<PathBuf> {
        let mut parts = Parts::new();
        for file in compiler.files() {
            let metadata = fs::metadata(&file).ok()?;
            let modified = metadata.modified().ok()?;
            if SystemTime::now().duration_since(modified).map_or(true, |age| age < SETTLED) {
                return None;
            }
            parts.add_bytes(file.as_os_str().as_encoded_bytes());
            parts.add(&format!(
                "{} {}",
                metadata.len(),
                modified.duration_since(UNIX_EPOCH).ok()?.as_nanos()
            ));
            parts.add(&place(&metadata));
        }
        Some(self.folder.as_ref()?.join(FOLDER).join(hex(&parts.finish()[..16])))
    }
}

/// What of a file cannot be set back, as its time can.
#[cfg(unix)]
fn place(metadata: &Metadata) -> String {
    use std::os::unix::fs::MetadataExt;
    format!("{} {} {} {}", metadata.dev(), metadata.ino(), metadata.ctime(), metadata.ctime_nsec())
}

#[cfg(not(unix))]
fn place(metadata: &Metadata) -> String {
    metadata
        .created()
        .ok()
        .and_then(|time| time.duration_since(UNIX_EPOCH).ok())
        .unwrap_or_default()
        .as_nanos()
        .to_string()
}
