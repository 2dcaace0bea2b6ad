//! Conversations on disk.
//!
//! Messages alone are JSON: `{"format": "mlxcel-conversation", "version": 1, "messages": […]}`. With the cache, the file is
//!
//! ```text
//! "mlxcelCV"  version: u32  JSON: u64 bytes  snapshot: u64 bytes  SHA-256 of all before
//! ```
//!
//! whose JSON also has the cached tokens and what the cache is bound to: engine, precision and the model's fingerprint.
//! Numbers are little-endian; the snapshot is in the format of [`Snapshot::to_bytes`].

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use mlxcel_core::{Capabilities, Error, ErrorKind, ModelInfo, Result, Snapshot, TokenId};
use mlxcel_models::files::{Workplace, open_regular, parse_json};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::Message;

const FORMAT: &str = "mlxcel-conversation";
const VERSION: u32 = 1;
const MAGIC: &[u8; 8] = b"mlxcelCV";
const SUM: usize = 32;
/// How long the JSON may be, in bytes.
const LONGEST_JSON: u64 = 64 << 20;
/// How long a snapshot's names and numbers may be, in bytes.
const LONGEST_NAMES: u64 = 1 << 16;
/// How long the cache of another model may be, which is read over without being kept, in bytes.
const LONGEST_CACHE: u64 = 64 << 30;
/// How long the cache of a model may be whose engine does not tell what its snapshots take, in bytes.
const UNKNOWN_CACHE: u64 = 1 << 30;

/// What is written of a conversation.
#[derive(Serialize, Deserialize)]
pub(super) struct Saved {
    format: String,
    version: u32,
    pub(super) messages: Vec<Message>,
    /// What the cache is bound to, and the tokens that it holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) cache: Option<Cache>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct Cache {
    engine: String,
    precision: String,
    model: String,
    pub(super) tokens: Vec<TokenId>,
    #[serde(skip)]
    pub(super) snapshot: Option<Snapshot>,
}

impl Cache {
    pub(super) fn new(info: &ModelInfo, tokens: Vec<TokenId>, snapshot: Snapshot) -> Self {
        Self {
            engine: info.backend.clone(),
            precision: info.precision.to_string(),
            model: info.fingerprint.clone(),
            tokens,
            snapshot: Some(snapshot),
        }
    }

    /// Refuses a cache that is not of the model that `info` and `claimed` tell of.
    fn check(&self, info: &ModelInfo, claimed: &Capabilities) -> Result<()> {
        let bound = [
            ("engine", &self.engine, &info.backend),
            ("precision", &self.precision, &info.precision.to_string()),
            ("model", &self.model, &info.fingerprint),
        ]
        .map(|(field, found, expected)| (field, found.clone(), expected.clone()));
        for (field, found, expected) in bound {
            if found != expected {
                let message = "its cache belongs to another model, engine or precision; `Conversation::read_messages` reads its messages";
                return Err(Error::new(ErrorKind::InvalidInput, READ, message)
                    .with_context("field", field)
                    .with_context("found", found)
                    .with_context("expected", expected));
            }
        }
        Capabilities::require(claimed.snapshot, READ, "snapshot")
    }
}

const READ: &str = "restore conversation";
const WRITE: &str = "save conversation";

impl Saved {
    pub(super) fn new(messages: Vec<Message>, cache: Option<Cache>) -> Self {
        Self { format: FORMAT.to_owned(), version: VERSION, messages, cache }
    }

    /// Writes it to `path`, whole or not at all.
    pub(super) fn write(&self, path: &Path) -> Result<()> {
        let failed = |error| Error::io(WRITE, path, error);
        // What is moved into the place of a device or a pipe replaces it.
        if fs::metadata(path).is_ok_and(|there| !there.is_file()) {
            let message = "the path is not a regular file; use another path";
            return Err(
                Error::new(ErrorKind::InvalidInput, WRITE, message).with_context("path", path.display())
            );
        }
        let bytes = self.encode()?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let work =
            Workplace::begin(folder.unwrap_or(Path::new(".")), ".mlxcel-conversation-").map_err(failed)?;
        let made = work.path().join("conversation");
        fs::write(&made, bytes).and_then(|()| fs::rename(&made, path)).map_err(failed)
    }

    fn encode(&self) -> Result<Vec<u8>> {
        let json = serde_json::to_vec_pretty(self).map_err(|error| {
            Error::new(ErrorKind::Internal, WRITE, "the messages cannot be written as JSON")
                .with_source(error)
        })?;
        let Some(snapshot) = self.cache.as_ref().and_then(|cache| cache.snapshot.as_ref()) else {
            return Ok(json);
        };
        let snapshot = snapshot.to_bytes();
        let mut bytes = Vec::with_capacity(28 + json.len() + snapshot.len() + SUM);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        for part in [json, snapshot] {
            bytes.extend_from_slice(&(part.len() as u64).to_le_bytes());
            bytes.extend_from_slice(&part);
        }
        let sum = Sha256::digest(&bytes);
        bytes.extend_from_slice(&sum);
        Ok(bytes)
    }

    /// Reads the messages of what [`write`](Self::write) wrote.
    pub(super) fn read(path: &Path) -> Result<Self> {
        Self::read_parts(path, None)
    }

    /// Reads what [`write`](Self::write) wrote, the cache too, which must be of the model that `info` and `claimed` tell of.
    pub(super) fn read_for(path: &Path, info: &ModelInfo, claimed: &Capabilities) -> Result<Self> {
        Self::read_parts(path, Some((info, claimed)))
    }

    /// The messages are bounded by [`LONGEST_JSON`], and a snapshot is read where a session of the model could hold it.
    fn read_parts(path: &Path, model: Option<(&ModelInfo, &Capabilities)>) -> Result<Self> {
        let Some(mut parts) = Parts::open(path)? else {
            let location = path.display().to_string();
            let bytes = read_json(path)?;
            let mut saved = Self::of_json(&location, &bytes)?;
            // Without a snapshot there is nothing that it could be bound to.
            saved.cache = None;
            return Ok(saved);
        };
        let json = parts.next(LONGEST_JSON, "its messages are too large")?;
        let json = Self::of_json(&path.display().to_string(), &json);
        let refused = match (model, json.as_ref().ok().and_then(|saved| saved.cache.as_ref())) {
            (Some((info, claimed)), Some(cache)) => cache.check(info, claimed).err(),
            _ => None,
        };
        let wanted = model.filter(|_| refused.is_none());
        let Some((_, claimed)) = wanted else {
            // The messages are valid if the file is complete, and so is the model's identity.
            parts.pass()?;
            parts.finish()?;
            return refused.map_or(json, Err);
        };
        let most = claimed.snapshot_bytes.unwrap_or(UNKNOWN_CACHE).saturating_add(LONGEST_NAMES);
        let snapshot = parts.next(most, "its cache is larger than this model's")?;
        parts.finish()?;
        let mut saved = json?;
        let snapshot = Snapshot::from_bytes(&snapshot);
        let snapshot = snapshot.map_err(|error| error.with_context("path", path.display()))?;
        let Some(cache) = saved.cache.as_mut().filter(|cache| cache.tokens.len() == snapshot.position())
        else {
            return Err(corrupt("its tokens do not match its cache"));
        };
        cache.snapshot = Some(snapshot);
        Ok(saved)
    }

    fn of_json(location: &str, bytes: &[u8]) -> Result<Self> {
        if bytes.len() as u64 > LONGEST_JSON {
            return Err(corrupt("its messages are too large").with_context("path", location));
        }
        let saved: Self = parse_json(location, bytes, "it does not contain a conversation")?;
        if saved.format != FORMAT || saved.version != VERSION {
            return Err(corrupt("it is not a conversation of a known version")
                .with_context("path", location)
                .with_context("version", saved.version));
        }
        Ok(saved)
    }
}

/// The messages of a file without a cache.
fn read_json(path: &Path) -> Result<Vec<u8>> {
    let (file, length) = open(path)?;
    if length > LONGEST_JSON {
        return Err(too_large("the file is larger than any conversation", path, length));
    }
    let mut bytes = Vec::new();
    File::take(file, LONGEST_JSON).read_to_end(&mut bytes).map_err(|error| Error::io(READ, path, error))?;
    Ok(bytes)
}

/// A regular file and its length.
fn open(path: &Path) -> Result<(File, u64)> {
    let failed = |error| Error::io(READ, path, error);
    let irregular = || corrupt("this should be a regular file").with_context("path", path.display());
    let file = open_regular(path).map_err(failed)?.ok_or_else(irregular)?;
    let length = file.metadata().map_err(failed)?.len();
    Ok((file, length))
}

/// A file with a cache, read part by part: no part takes memory before its length is known to be allowed and there.
struct Parts<'a> {
    path: &'a Path,
    file: File,
    /// The bytes before the sum that were not read.
    left: u64,
    sum: Sha256,
}

impl<'a> Parts<'a> {
    /// The file at `path` behind its head; none where it has no cache.
    fn open(path: &'a Path) -> Result<Option<Self>> {
        let (file, length) = open(path)?;
        let Some(left) = length.checked_sub(SUM as u64) else { return Ok(None) };
        let mut parts = Self { path, file, left, sum: Sha256::new() };
        let mut head = [0; MAGIC.len() + size_of::<u32>()];
        if left < head.len() as u64 {
            return Ok(None);
        }
        parts.read(&mut head)?;
        match head.strip_prefix(MAGIC) {
            Some(version) if version == VERSION.to_le_bytes() => Ok(Some(parts)),
            Some(_) => Err(parts.broken()),
            None => Ok(None),
        }
    }

    fn broken(&self) -> Error {
        corrupt("it is truncated, changed, or of another version").with_context("path", self.path.display())
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
        if left > LONGEST_CACHE {
            return Err(too_large("its cache is larger than any model's", self.path, left));
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

fn too_large(message: &'static str, path: &Path, bytes: u64) -> Error {
    corrupt(message).with_context("path", path.display()).with_context("bytes", bytes)
}

fn corrupt(message: &'static str) -> Error {
    Error::new(ErrorKind::Corrupt, READ, message)
}
