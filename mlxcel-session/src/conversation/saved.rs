//! Conversations on disk.
//!
//! Messages alone are JSON: `{"format": "mlxcel-conversation", "version": 1, "messages": […]}`. With the
//! cache, the file is that of a [state](crate::state_file).

use std::fs;
use std::path::Path;

use mlxcel_core::{Capabilities, Error, ErrorKind, Result, Snapshot, StateIdentity, TokenId};
use mlxcel_models::files::{Workplace, parse_json, read_bounded};
use serde::{Deserialize, Serialize};

use crate::chat::Message;
use crate::state_file::{self, LONGEST_HEAD, SavedState, StateReader, corrupt, too_large};

const FORMAT: &str = "mlxcel-conversation";
const VERSION: u32 = 1;
/// The maximum size in bytes of the cache of a model whose engine does not say what its snapshots take.
const UNKNOWN_CACHE: u64 = 1 << 30;

const READ: &str = "restore conversation";
const WRITE: &str = "save conversation";

/// The tokens of a cache and the snapshot of their sequence.
type Cache = (Vec<TokenId>, Snapshot);

/// A conversation without its cache.
#[derive(Serialize, Deserialize)]
struct Saved {
    format: String,
    version: u32,
    messages: Vec<Message>,
}

/// Writes messages, and the tokens and snapshot of their sequence if there are some, to `path`, whole or not
/// at all.
pub(super) fn write(path: &Path, messages: &[Message], cache: Option<(&[TokenId], &Snapshot)>) -> Result<()> {
    let failed = |error| Error::io(WRITE, path, error);
    // What is moved into the place of a device or a pipe replaces it.
    if fs::metadata(path).is_ok_and(|there| !there.is_file()) {
        let message = "the path is not a regular file; use another path";
        return Err(Error::new(ErrorKind::InvalidInput, WRITE, message).with_context("path", path.display()));
    }
    let bytes = match cache {
        Some((tokens, snapshot)) => state_file::encode(messages, tokens, snapshot)?,
        None => {
            let messages = messages.to_vec();
            let saved = Saved { format: FORMAT.to_owned(), version: VERSION, messages };
            serde_json::to_vec_pretty(&saved).map_err(|error| {
                Error::new(ErrorKind::Internal, WRITE, "the messages cannot be written as JSON")
                    .with_source(error)
            })?
        }
    };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let work = Workplace::begin(folder.unwrap_or(Path::new(".")), ".mlxcel-conversation-").map_err(failed)?;
    let made = work.path().join("conversation");
    fs::write(&made, bytes).and_then(|()| fs::rename(&made, path)).map_err(failed)
}

/// Reads the messages of a file that [`write`] wrote.
pub(super) fn read_messages(path: &Path) -> Result<Vec<Message>> {
    match StateReader::open(path)? {
        Some(reader) => reader.messages(),
        None => read_json(path),
    }
}

/// Reads a file that [`write`] wrote. A cache must be of states of `identity`, and is read only if a session
/// with the `claimed` capabilities could hold it.
pub(super) fn read(
    path: &Path,
    identity: &StateIdentity,
    claimed: &Capabilities,
) -> Result<(Vec<Message>, Option<Cache>)> {
    let Some(reader) = StateReader::open(path)? else { return Ok((read_json(path)?, None)) };
    let allowed = identity
        .check(reader.identity())
        .map_err(|error| error.with_context("messages", "`Conversation::read_messages` reads them"))
        .and_then(|()| Capabilities::require(claimed.snapshot, READ, "snapshot"));
    if let Err(refused) = allowed {
        // The identity is valid if the file is complete.
        reader.messages()?;
        return Err(refused);
    }
    let SavedState { messages, tokens, snapshot } =
        reader.state(claimed.snapshot_bytes.unwrap_or(UNKNOWN_CACHE))?;
    Ok((messages, Some((tokens, snapshot))))
}

/// The messages of a file without a cache.
fn read_json(path: &Path) -> Result<Vec<Message>> {
    let (file, length) = state_file::open(path)?;
    if length > LONGEST_HEAD {
        return Err(too_large("the file is larger than any conversation", path, length));
    }
    let bytes = read_bounded(file, LONGEST_HEAD).map_err(|error| Error::io(READ, path, error))?;
    let location = path.display().to_string();
    let saved: Saved = parse_json(&location, &bytes, "it does not contain a conversation")?;
    if saved.format != FORMAT || saved.version != VERSION {
        return Err(corrupt("it is not a conversation of a known version", path)
            .with_context("version", saved.version));
    }
    Ok(saved.messages)
}
