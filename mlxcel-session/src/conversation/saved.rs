//! Conversations on disk.
//!
//! Messages alone are JSON: `{"format": "mlxcel-conversation", "version": 1, "messages": […]}`. With the cache, the file is
//!
//! ```text
//! "mlxcelCV"  version: u32  JSON: u64 bytes  snapshot: u64 bytes  SHA-256 of all before
//! ```
//!
//! whose JSON has the tokens that the cache holds, too, and what it is bound to: engine, precision and the model's fingerprint. Numbers are
//! little-endian; the snapshot is as [`Snapshot::to_bytes`] writes it.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use mlxcel_core::{Error, ErrorKind, ModelInfo, Result, Snapshot, TokenId};
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
/// How long a file with a cache may be, in bytes.
const LONGEST: u64 = 64 << 30;

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

    /// The snapshot, for the model that it is of.
    pub(super) fn for_model(&self, info: &ModelInfo) -> Result<Option<&Snapshot>> {
        let bound = [
            ("engine", &self.engine, &info.backend),
            ("precision", &self.precision, &info.precision.to_string()),
            ("model", &self.model, &info.fingerprint),
        ]
        .map(|(field, found, expected)| (field, found.clone(), expected.clone()));
        for (field, found, expected) in bound {
            if found != expected {
                let message = "its cache is of another model, engine or precision; its messages can be read";
                return Err(Error::new(ErrorKind::InvalidInput, READ, message)
                    .with_context("field", field)
                    .with_context("found", found)
                    .with_context("expected", expected));
            }
        }
        Ok(self.snapshot.as_ref())
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
        let bytes = self.encode()?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let work =
            Workplace::begin(folder.unwrap_or(Path::new(".")), ".mlxcel-conversation-").map_err(failed)?;
        let made = work.path().join("conversation");
        fs::write(&made, bytes).and_then(|()| fs::rename(&made, path)).map_err(failed)
    }

    fn encode(&self) -> Result<Vec<u8>> {
        let json = serde_json::to_vec_pretty(self).map_err(|error| {
            Error::new(ErrorKind::Internal, WRITE, "messages do not become JSON").with_source(error)
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

    /// Reads what [`write`](Self::write) wrote.
    pub(super) fn read(path: &Path) -> Result<Self> {
        let failed = |error| Error::io(READ, path, error);
        let corrupt = |message| corrupt(message).with_context("path", path.display());
        let irregular = || corrupt("this should be a regular file");
        let file = open_regular(path).map_err(failed)?.ok_or_else(irregular)?;
        let length = file.metadata().map_err(failed)?.len();
        let mut head = [0; MAGIC.len()];
        let has_cache = length >= MAGIC.len() as u64 && {
            (&file).read_exact(&mut head).map_err(failed)?;
            head == *MAGIC
        };
        if length > if has_cache { LONGEST } else { LONGEST_JSON } {
            return Err(corrupt("the file is larger than a conversation is").with_context("bytes", length));
        }
        let mut bytes = Vec::new();
        usize::try_from(length).ok().and_then(|length| bytes.try_reserve_exact(length).ok()).ok_or_else(
            || {
                Error::new(ErrorKind::ResourceExhausted, READ, "the file does not fit into memory")
                    .with_context("bytes", length)
            },
        )?;
        let read = head.len().min(usize::try_from(length).unwrap_or(0));
        if length >= MAGIC.len() as u64 {
            bytes.extend_from_slice(&head[..read]);
        }
        File::take(file, length - bytes.len() as u64).read_to_end(&mut bytes).map_err(failed)?;
        let location = path.display().to_string();
        if !has_cache {
            let mut saved = Self::of_json(&location, &bytes)?;
            // Without a snapshot there is nothing that it could be bound to.
            saved.cache = None;
            return Ok(saved);
        }
        let [json, snapshot] =
            parts(&bytes).ok_or_else(|| corrupt("it is cut, changed, or of another version"))?;
        let mut saved = Self::of_json(&location, json)?;
        let snapshot = Snapshot::from_bytes(snapshot)?;
        let Some(cache) = saved.cache.as_mut().filter(|cache| cache.tokens.len() == snapshot.position())
        else {
            return Err(corrupt("its tokens are not those of its cache"));
        };
        cache.snapshot = Some(snapshot);
        Ok(saved)
    }

    fn of_json(location: &str, bytes: &[u8]) -> Result<Self> {
        if bytes.len() as u64 > LONGEST_JSON {
            return Err(corrupt("its messages are too long").with_context("path", location));
        }
        let saved: Self = parse_json(location, bytes, "it does not hold a conversation")?;
        if saved.format != FORMAT || saved.version != VERSION {
            return Err(corrupt("it is not a conversation of a known version")
                .with_context("path", location)
                .with_context("version", saved.version));
        }
        Ok(saved)
    }
}

/// The JSON and the snapshot of a file; none where it is not whole.
fn parts(bytes: &[u8]) -> Option<[&[u8]; 2]> {
    let (content, sum) = bytes.split_at_checked(bytes.len().checked_sub(SUM)?)?;
    if Sha256::digest(content).as_slice() != sum {
        return None;
    }
    let rest = content.strip_prefix(MAGIC)?.strip_prefix(&VERSION.to_le_bytes())?;
    let (json, rest) = part(rest)?;
    let (snapshot, rest) = part(rest)?;
    rest.is_empty().then_some([json, snapshot])
}

/// The part that `bytes` begin with, after its length, and what follows it.
fn part(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk()?;
    rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)
}

fn corrupt(message: &'static str) -> Error {
    Error::new(ErrorKind::Corrupt, READ, message)
}
