//! Files of tokens with the snapshot of their sequence: entries of the prefix cache, and conversations with
//! their cache.
//!
//! ```text
//! "mlxcelST"  version: u32  head: u64 bytes of JSON  snapshot: u64 bytes  SHA-256 of all before
//! ```
//!
//! Numbers are little-endian; the snapshot is in the format of [`Snapshot::to_bytes`]. The head has the
//! [`StateIdentity`] of the snapshot, so that a file of another model is recognized before its snapshot is
//! read; the tokens; and the messages of a conversation.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use mlxcel_core::{Error, ErrorKind, ModelInfo, Result, Snapshot, StateIdentity, TokenId};
use mlxcel_models::files::{open_regular, parse_json};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::chat::Message;

const MAGIC: &[u8; 8] = b"mlxcelST";
const VERSION: u32 = 1;
const SUM: usize = 32;
const READ: &str = "read saved state";
/// The maximum size of a head in bytes.
pub(crate) const LONGEST_HEAD: u64 = 64 << 20;
/// The maximum size of a snapshot's names and numbers in bytes.
const LONGEST_NAMES: u64 = 1 << 16;
/// The maximum size in bytes of the snapshot of another model, which is read without being kept.
const LONGEST_SNAPSHOT: u64 = 64 << 30;

/// Tokens, the snapshot of their sequence, and the messages that they are of.
pub(crate) struct SavedState {
    pub(crate) messages: Vec<Message>,
    pub(crate) tokens: Vec<TokenId>,
    pub(crate) snapshot: Snapshot,
}

#[derive(Serialize, Deserialize)]
struct Head {
    engine: String,
    state: String,
    model: String,
    precision: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    adapter: Option<String>,
    tokens: Vec<TokenId>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    messages: Vec<Message>,
}

impl Head {
    fn identity(&self) -> Result<StateIdentity> {
        let mut info = ModelInfo::new(&*self.engine, "", 0);
        info.state_format.clone_from(&self.state);
        info.fingerprint.clone_from(&self.model);
        info.precision = self.precision.parse()?;
        let mut identity = StateIdentity::of(&info);
        identity.adapter.clone_from(&self.adapter);
        Ok(identity)
    }
}

/// The bytes of a file.
pub(crate) fn encode(messages: &[Message], tokens: &[TokenId], snapshot: &Snapshot) -> Result<Vec<u8>> {
    let identity = snapshot.identity().clone();
    let head = Head {
        engine: identity.engine,
        state: identity.state,
        model: identity.model,
        precision: identity.precision.to_string(),
        adapter: identity.adapter,
        tokens: tokens.to_vec(),
        messages: messages.to_vec(),
    };
    let head = serde_json::to_vec(&head).map_err(|error| {
        Error::new(ErrorKind::Internal, "save state", "the messages cannot be written as JSON")
            .with_source(error)
    })?;
    let snapshot = snapshot.to_bytes();
    let mut bytes = Vec::with_capacity(28 + head.len() + snapshot.len() + SUM);
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    for part in [head, snapshot] {
        bytes.extend_from_slice(&(part.len() as u64).to_le_bytes());
        bytes.extend_from_slice(&part);
    }
    let sum = Sha256::digest(&bytes);
    bytes.extend_from_slice(&sum);
    Ok(bytes)
}

/// A file that is read part by part: no part takes memory before its length is known to be allowed and there.
pub(crate) struct StateReader<'a> {
    head: Head,
    identity: StateIdentity,
    parts: Parts<'a>,
}

impl<'a> StateReader<'a> {
    /// Reads the head of the file at `path`; `None` if the file is of another format.
    ///
    /// # Errors
    ///
    /// Errors of the file system; [`ErrorKind::Corrupt`], also for another version, which it names.
    pub(crate) fn open(path: &'a Path) -> Result<Option<Self>> {
        let Some(mut parts) = Parts::open(path)? else { return Ok(None) };
        let head = parts.next(LONGEST_HEAD, "its head is too large")?;
        let head: Head = parse_json(&path.display().to_string(), &head, "its head is not that of a state")?;
        let identity =
            head.identity().map_err(|error| corrupt("its precision is unknown", path).with_source(error))?;
        Ok(Some(Self { head, identity, parts }))
    }

    /// What the snapshot belongs to, as the head says.
    pub(crate) fn identity(&self) -> &StateIdentity {
        &self.identity
    }

    /// Reads the messages, and checks that the file is complete.
    pub(crate) fn messages(mut self) -> Result<Vec<Message>> {
        self.parts.pass()?;
        self.parts.finish()?;
        Ok(self.head.messages)
    }

    /// Reads everything, with a snapshot whose payload has at most `most` bytes.
    pub(crate) fn state(mut self, most: u64) -> Result<SavedState> {
        let path = self.parts.path;
        let most = most.saturating_add(LONGEST_NAMES);
        let snapshot = self.parts.next(most, "its snapshot is larger than allowed")?;
        self.parts.finish()?;
        let snapshot =
            Snapshot::from_bytes(&snapshot).map_err(|error| error.with_context("path", path.display()))?;
        let Head { tokens, messages, .. } = self.head;
        if tokens.len() != snapshot.position() || *snapshot.identity() != self.identity {
            return Err(corrupt("its head does not match its snapshot", path));
        }
        Ok(SavedState { messages, tokens, snapshot })
    }
}

/// A regular file and its length.
pub(crate) fn open(path: &Path) -> Result<(File, u64)> {
    let failed = |error| Error::io(READ, path, error);
    let irregular = || corrupt("this should be a regular file", path);
    let file = open_regular(path).map_err(failed)?.ok_or_else(irregular)?;
    let length = file.metadata().map_err(failed)?.len();
    Ok((file, length))
}

struct Parts<'a> {
    path: &'a Path,
    file: File,
    /// The number of bytes before the checksum that were not read.
    left: u64,
    sum: Sha256,
}

impl<'a> Parts<'a> {
    /// The file at `path` after its magic number and version; `None` if it begins otherwise.
    fn open(path: &'a Path) -> Result<Option<Self>> {
        let (file, length) = open(path)?;
        let Some(left) = length.checked_sub(SUM as u64) else { return Ok(None) };
        let mut parts = Self { path, file, left, sum: Sha256::new() };
        let mut start = [0; MAGIC.len() + size_of::<u32>()];
        if left < start.len() as u64 {
            return Ok(None);
        }
        parts.read(&mut start)?;
        match start.strip_prefix(MAGIC) {
            Some(version) if version == VERSION.to_le_bytes() => Ok(Some(parts)),
            Some(version) => Err(corrupt("it has another format version", path).with_context(
                "version",
                version.iter().rev().fold(0, |number, &byte| number << 8 | u32::from(byte)),
            )),
            None => Ok(None),
        }
    }

    fn broken(&self) -> Error {
        corrupt("it is truncated or changed", self.path)
    }

    /// Reads bytes that are there.
    fn read(&mut self, bytes: &mut [u8]) -> Result<()> {
        self.left = self.left.checked_sub(bytes.len() as u64).ok_or_else(|| self.broken())?;
        self.file.read_exact(bytes).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => self.broken(),
            _ => Error::io(READ, self.path, error),
        })?;
        self.sum.update(bytes);
        Ok(())
    }

    /// The length of the next part, which is there.
    fn length(&mut self) -> Result<u64> {
        let mut length = [0; size_of::<u64>()];
        self.read(&mut length)?;
        let length = u64::from_le_bytes(length);
        if length > self.left { Err(self.broken()) } else { Ok(length) }
    }

    /// The next part, of `most` bytes at most; `message` says what a longer one is.
    fn next(&mut self, most: u64, message: &'static str) -> Result<Vec<u8>> {
        let length = self.length()?;
        if length > most {
            return Err(too_large(message, self.path, length).with_context("limit", most));
        }
        let mut bytes = Vec::new();
        usize::try_from(length)
            .ok()
            .filter(|&length| bytes.try_reserve_exact(length).is_ok())
            .map(|length| bytes.resize(length, 0))
            .ok_or_else(|| {
                let message = "the file does not fit into memory";
                Error::new(ErrorKind::ResourceExhausted, READ, message).with_context("bytes", length)
            })?;
        self.read(&mut bytes)?;
        Ok(bytes)
    }

    /// Reads over the next part without keeping it.
    fn pass(&mut self) -> Result<()> {
        let mut left = self.length()?;
        if left > LONGEST_SNAPSHOT {
            return Err(too_large("its snapshot is larger than any model's", self.path, left));
        }
        let mut buffer = vec![0; 1 << 16];
        while left > 0 {
            let count = left.min(buffer.len() as u64);
            self.read(&mut buffer[..count as usize])?;
            left -= count;
        }
        Ok(())
    }

    /// Fails unless everything was read and matches the checksum.
    fn finish(mut self) -> Result<()> {
        let found = std::mem::take(&mut self.sum).finalize();
        let broken = self.broken();
        if self.left > 0 {
            return Err(broken);
        }
        let mut expected = [0; SUM];
        self.left = SUM as u64;
        self.read(&mut expected)?;
        if found.as_slice() == expected { Ok(()) } else { Err(broken) }
    }
}

/// The error of a file with a part that is too large.
pub(crate) fn too_large(message: &'static str, path: &Path, bytes: u64) -> Error {
    corrupt(message, path).with_context("bytes", bytes)
}

/// The error of a file that does not have the format.
pub(crate) fn corrupt(message: &'static str, path: &Path) -> Error {
    Error::new(ErrorKind::Corrupt, READ, message).with_context("path", path.display())
}
