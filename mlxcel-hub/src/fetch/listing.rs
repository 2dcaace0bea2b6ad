//! The hub's listing of a repository: names, sizes and checksums of its files. All of it is untrusted.

use std::collections::BTreeMap;

use mlxcel_core::{ErrorKind, Result};
use mlxcel_models::files::parse_json;
use serde::Deserialize;

use crate::name::HubName;

use super::client::{Client, escape};
use super::failed;

/// The most bytes of a listing.
const LONGEST: u64 = 64 << 20;

/// The files of a repository at a commit.
pub(super) struct Listing {
    pub(super) commit: String,
    files: BTreeMap<String, Sibling>,
    remotes: BTreeMap<String, Remote>,
    place: String,
}

/// A file on the hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Remote {
    pub(super) size: u64,
    pub(super) sum: Sum,
}

/// What a file's content sums up to, in hexadecimal digits; the name of its blob in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Sum {
    /// SHA-256, of files in large-file storage.
    Sha256(String),
    /// SHA-1 of a header and the content, as git names its objects.
    Git(String),
}

impl Sum {
    pub(super) fn digits(&self) -> &str {
        match self {
            Self::Sha256(digits) | Self::Git(digits) => digits,
        }
    }

    /// The checksum of these digits; `None` if they are not a checksum.
    pub(super) fn parse(digits: &str) -> Option<Self> {
        if !digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
            return None;
        }
        match digits.len() {
            64 => Some(Self::Sha256(digits.to_owned())),
            40 => Some(Self::Git(digits.to_owned())),
            _ => None,
        }
    }
}

#[derive(Deserialize)]
struct Info {
    sha: String,
    #[serde(default)]
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    #[serde(rename = "blobId")]
    blob_id: Option<String>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    sha256: Option<String>,
    size: Option<u64>,
}

impl Listing {
    pub(super) fn of(client: &Client<'_>, name: &HubName) -> Result<Self> {
        let revision = escape(name.revision(), false);
        let path = format!("api/models/{}/revision/{revision}?blobs=true", name.repo());
        let (text, place) = client.read(&path, name, LONGEST)?;
        let info: Info = parse_json(&place, &text, "the response is not a model listing; check HF_ENDPOINT")?;
        let files: BTreeMap<_, _> =
            info.siblings.into_iter().map(|file| (file.rfilename.clone(), file)).collect();
        let remotes = files.iter().filter_map(|(name, file)| Some((name.clone(), file.remote()?))).collect();
        Ok(Self { commit: info.sha, files, remotes, place })
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.files.keys().cloned().collect()
    }

    pub(super) fn file(&self, name: &str) -> Result<&Remote> {
        self.remotes.get(name).ok_or_else(|| {
            let error = if self.files.contains_key(name) {
                failed(ErrorKind::Corrupt, "the hub lists a file without a size or checksum")
            } else {
                failed(ErrorKind::NotFound, "the repository lacks a file that its checkpoint needs")
            };
            error.with_context("file", name).with_context("url", &self.place)
        })
    }
}

impl Sibling {
    fn remote(&self) -> Option<Remote> {
        let Some(lfs) = &self.lfs else {
            return Some(Remote { size: self.size?, sum: Sum::parse(self.blob_id.as_ref()?)? });
        };
        let sum = Sum::parse(lfs.sha256.as_ref()?).filter(|sum| matches!(sum, Sum::Sha256(_)))?;
        Some(Remote { size: lfs.size.or(self.size)?, sum })
    }
}
