//! Downloads the files of a checkpoint into the cache.
//!
//! See ADR 0019 for why the crate `hf-hub` is not used.

mod blob;
mod client;
mod listing;
mod options;
#[cfg(test)]
mod server;
#[cfg(test)]
mod tests;

use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};

use mlxcel_core::{CancelToken, Error, ErrorKind, Result};
use mlxcel_models::files::{FileKind, read_regular};

use crate::cache::HubCache;
use crate::name::HubName;
use crate::select::{module_files, select, shards};

use blob::{Blobs, Count};
use client::Client;
use listing::{Listing, Remote};
pub use options::FetchOptions;

const OPERATION: &str = "fetch model";

/// Downloads the current version of the model `name` into the cache and returns the path to open: the folder
/// of the snapshot, or a GGUF file. Cached files are not downloaded again.
///
/// [`locate`](crate::locate) calls this for models that are not in the cache. Call it yourself to set options
/// other than the environment's, or to update to the newest commit of a branch.
///
/// ```no_run
/// use mlxcel_hub::{FetchOptions, fetch};
/// use mlxcel_models::Checkpoint;
///
/// let options = FetchOptions::from_env().with_max_bytes(4 << 30);
/// let folder = fetch(&"Qwen/Qwen3-0.6B".parse()?, &options)?;
/// let checkpoint = Checkpoint::open(folder)?;
/// # Ok::<(), mlxcel_core::Error>(())
/// ```
///
/// # Errors
///
/// [`ErrorKind::NotFound`] for a model, revision or file that does not exist or needs access (the message
/// says whether a token could help); [`ErrorKind::InvalidInput`] for an invalid endpoint or token, a file
/// name that escapes the folder, or an ambiguous choice among several GGUF models; [`ErrorKind::Unsupported`]
/// for a model whose weights are neither safetensors nor GGUF, [`ErrorKind::Corrupt`] if a download does not
/// match the listing, [`ErrorKind::ResourceExhausted`] for more bytes than the options allow or the disk has,
/// [`ErrorKind::Cancelled`], and [`ErrorKind::Io`] if the hub is unreachable or writing to disk fails.
pub fn fetch(name: &HubName, options: &FetchOptions) -> Result<PathBuf> {
    if options.offline {
        let message = "the network is disabled; unset HF_HUB_OFFLINE, or download the model elsewhere";
        return Err(failed(ErrorKind::NotFound, message).with_context("model", name));
    }
    let Some(cache) = &options.cache else {
        let message = "no cache folder is available; set HF_HOME";
        return Err(failed(ErrorKind::NotFound, message));
    };
    let span = tracing::info_span!("fetch", model = %name);
    let _entered = span.enter();
    let client = Client::new(options)?;
    let listing = Listing::of(&client, name)?;
    let folder = cache.snapshot_folder(name, &listing.commit)?;
    let selection = select(name, &listing.names())?;
    let blobs = Blobs::new(&client, options, name, cache.repo_folder(name), cache.folder())?;
    let snapshot = Snapshot { name, listing: &listing, folder: &folder, blobs: &blobs };

    let mut count = Count::new(options.progress.clone());
    // The index of shards and the list of modules say what else is wanted.
    let (mut small, mut weights) = (Vec::new(), selection.weights);
    if let Some(index) = selection.index {
        let (location, content) = snapshot.read(&index, options.max_bytes)?;
        weights.extend(shards(&location, &content)?);
        small.push(index);
    }
    if let Some(modules) = selection.modules {
        let (location, content) = snapshot.read(&modules, options.max_bytes)?;
        small.push(modules);
        small.extend(module_files(&location, &content)?);
    }
    let mut wanted = Vec::new();
    for file in small.into_iter().chain(selection.small) {
        let remote = snapshot.small(&file)?;
        wanted.push((file, remote));
    }
    for file in &weights {
        wanted.push((file.clone(), listing.file(file)?));
    }
    count.total = snapshot.bound(&wanted, options.max_bytes)?;
    tracing::info!(files = wanted.len(), bytes = count.total, "fetching");
    for (file, remote) in &wanted {
        snapshot.take(file, remote, &mut count)?;
    }
    // Only now, so that a branch never names what is not whole.
    snapshot.name_branch(cache)?;
    Ok(match weights.first().filter(|_| selection.gguf) {
        Some(first) => folder.join(first),
        None => folder,
    })
}

/// A snapshot in the making.
struct Snapshot<'a> {
    name: &'a HubName,
    listing: &'a Listing,
    folder: &'a Path,
    blobs: &'a Blobs<'a>,
}

impl<'a> Snapshot<'a> {
    /// A file that is read whole later, of a size that is read.
    fn small(&self, file: &str) -> Result<&'a Remote> {
        let remote = self.listing.file(file)?;
        let limit = FileKind::of(file).limit();
        if remote.size > limit {
            let message = format!("the hub lists more than {limit} bytes, which is implausible");
            return Err(failed(ErrorKind::Corrupt, message)
                .with_context("file", file)
                .with_context("model", self.name));
        }
        Ok(remote)
    }

    /// Has a small file in the snapshot, and returns where it is and its content.
    fn read(&self, file: &str, most: u64) -> Result<(String, Vec<u8>)> {
        let remote = self.small(file)?;
        self.bound(&[(file.to_owned(), remote)], most)?;
        self.take(file, remote, &mut Count::new(None))?;
        let location = self.folder.join(file);
        let content = read_regular(&location, FileKind::of(file).limit());
        let content = content.map_err(|error| Error::io(OPERATION, &location, error))?;
        Ok((location.display().to_string(), content))
    }

    /// The total bytes, if within the limit.
    fn bound(&self, wanted: &[(String, &Remote)], most: u64) -> Result<u64> {
        let total = wanted.iter().fold(0_u64, |total, (_, remote)| total.saturating_add(remote.size));
        if total > most {
            let message =
                "the model's files have more bytes than the options allow (`FetchOptions::max_bytes`)";
            return Err(failed(ErrorKind::ResourceExhausted, message)
                .with_context("bytes", total)
                .with_context("allowed", most)
                .with_context("model", self.name));
        }
        Ok(total)
    }

    fn take(&self, file: &str, remote: &Remote, count: &mut Count) -> Result<()> {
        let path =
            format!("{}/resolve/{}/{}", self.name.repo(), self.listing.commit, client::escape(file, true));
        let blob = self.blobs.get(file, remote, &path, count)?;
        let link = self.folder.join(file);
        // What stands there is of another time, or a link to what is gone.
        if fs::metadata(&link).is_ok_and(|there| there.is_file() && there.len() == remote.size) {
            return Ok(());
        }
        replace(&link, |draft| put(&blob, draft, file))
    }

    /// Notes the commit that a branch or tag is.
    fn name_branch(&self, cache: &HubCache) -> Result<()> {
        let revision = self.name.revision();
        if revision == self.listing.commit {
            return Ok(());
        }
        let path = cache.repo_folder(self.name).join("refs").join(revision);
        replace(&path, |draft| fs::write(draft, &self.listing.commit))
    }
}

/// Puts what `make` makes into the place of what is at `path`, also while others do the same.
fn replace(path: &Path, make: impl FnOnce(&Path) -> std::io::Result<()>) -> Result<()> {
    // Not the number of the process: in containers, it is that of the process that was killed before, and of
    // those that share the cache.
    let random = RandomState::new().hash_one(path);
    let put = || {
        let folder = path.parent().unwrap_or(Path::new(""));
        fs::create_dir_all(folder)?;
        let draft = folder.join(format!(".mlxcel-{random:016x}"));
        let put = make(&draft).and_then(|()| fs::rename(&draft, path));
        if put.is_err() {
            // If it cannot be removed it stays.
            let _ = fs::remove_file(&draft);
        }
        put
    };
    put().map_err(|error| Error::io(OPERATION, path, error))
}

/// Makes `blob` be the file at `link`, which is `file` of a snapshot: as a link, so that snapshots share it.
#[cfg(unix)]
fn put(blob: &Path, link: &Path, file: &str) -> std::io::Result<()> {
    let up = "../".repeat(file.split('/').count() + 1);
    let target = Path::new(&up).join("blobs").join(blob.file_name().unwrap_or_default());
    std::os::unix::fs::symlink(target, link)
}

/// As above, where to make symbolic links takes privileges.
#[cfg(not(unix))]
fn put(blob: &Path, link: &Path, _file: &str) -> std::io::Result<()> {
    fs::hard_link(blob, link).or_else(|_| fs::copy(blob, link).map(drop))
}

fn failed(kind: ErrorKind, message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(kind, OPERATION, message)
}

/// Ends the work if it was cancelled.
fn go_on(cancel: Option<&CancelToken>) -> Result<()> {
    if cancel.is_some_and(CancelToken::is_cancelled) {
        return Err(failed(ErrorKind::Cancelled, "the download was cancelled; the next one resumes it"));
    }
    Ok(())
}
