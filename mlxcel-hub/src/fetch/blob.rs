//! Downloads file contents into the cache, resumes them, and verifies their checksums.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use mlxcel_core::{Error, ErrorKind, LoadProgress, LoadStage, ProgressFn, Result};
use sha1::Sha1;
use sha2::{Digest, Sha256};
use ureq::http::StatusCode;

use crate::name::HubName;

use super::client::{Client, Failure, dropped};
use super::listing::{Remote, Sum};
use super::{FetchOptions, OPERATION, failed, go_on};

/// How much is read at once.
const CHUNK: usize = 128 << 10;

/// The minimum interval of progress reports.
const TELL: Duration = Duration::from_millis(100);

/// The contents of one repository's files.
pub(super) struct Blobs<'a> {
    client: &'a Client<'a>,
    options: &'a FetchOptions,
    name: HubName,
    folder: PathBuf,
    locks: PathBuf,
}

/// How much of all files is there.
pub(super) struct Count {
    pub(super) total: u64,
    done: u64,
    told: Option<Instant>,
    progress: Option<ProgressFn>,
}

/// A file that is not whole yet.
struct Draft<'a> {
    /// What the repository calls it, and where the hub has it.
    name: &'a str,
    path: &'a str,
    remote: &'a Remote,
    /// Where it is written.
    part: &'a Path,
    file: File,
    length: u64,
    sum: Hasher,
    /// Whether others may have written its beginning.
    resumed: bool,
}

enum Hasher {
    Sha256(Sha256),
    Git(Sha1),
}

impl<'a> Blobs<'a> {
    pub(super) fn new(
        client: &'a Client<'a>,
        options: &'a FetchOptions,
        name: &HubName,
        repo: PathBuf,
        cache: &Path,
    ) -> Result<Self> {
        let locks = cache.join(".locks").join(repo.file_name().unwrap_or_default());
        let folder = repo.join("blobs");
        for folder in [&folder, &locks] {
            fs::create_dir_all(folder).map_err(|error| Error::io(OPERATION, folder, error))?;
        }
        Ok(Self { client, options, name: name.clone(), folder, locks })
    }

    /// The content of `file`, which the hub has at `path`.
    pub(super) fn get(&self, file: &str, remote: &Remote, path: &str, count: &mut Count) -> Result<PathBuf> {
        let blob = self.folder.join(remote.sum.digits());
        if !is_whole(&blob, remote) {
            let _lock = self.lock(remote)?;
            // The previous holder of the lock may have fetched it.
            if !is_whole(&blob, remote) {
                let part = self.folder.join(format!("{}.incomplete", remote.sum.digits()));
                self.fetch(file, remote, path, &part, count)?;
                fs::rename(&part, &blob).map_err(|error| Error::io(OPERATION, &blob, error))?;
                return Ok(blob);
            }
        }
        count.add(remote.size);
        Ok(blob)
    }

    /// Waits until no other process fetches this content. Where locks do not work, each fetches it.
    fn lock(&self, remote: &Remote) -> Result<File> {
        let path = self.locks.join(format!("{}.lock", remote.sum.digits()));
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path);
        let file = file.map_err(|error| Error::io(OPERATION, &path, error))?;
        while let Err(fs4::TryLockError::WouldBlock) = fs4::FileExt::try_lock(&file) {
            go_on(self.options.cancel.as_ref())?;
            thread::sleep(Duration::from_millis(50));
        }
        Ok(file)
    }

    /// Fetches what `part` lacks.
    fn fetch(&self, file: &str, remote: &Remote, path: &str, part: &Path, count: &mut Count) -> Result<()> {
        let broken = |error| Error::io(OPERATION, part, error).with_context("file", file);
        let before = count.done;
        let mut draft = Draft::open(file, path, remote, part).map_err(broken)?;
        loop {
            count.set(before.saturating_add(draft.length));
            self.complete(&mut draft, count)?;
            draft.file.sync_all().map_err(broken)?;
            if draft.sum.digits() == remote.sum.digits() {
                return Ok(());
            }
            draft.restart().map_err(broken)?;
            if !draft.resumed {
                // It is of no use to resume it.
                let _ = fs::remove_file(part);
                let message = "the download does not match the hub's listing: its checksum differs";
                return Err(self.corrupt(&draft, message));
            }
            tracing::warn!(file, "the partial download is corrupt: downloading the file again");
            draft.resumed = false;
        }
    }

    fn corrupt(&self, draft: &Draft<'_>, message: &'static str) -> Error {
        let error = failed(ErrorKind::Corrupt, message).with_context("file", draft.name);
        error.with_context("model", &self.name)
    }

    /// Continues until the file has all its bytes. A request that is dropped after bytes came does not count
    /// as failed.
    fn complete(&self, draft: &mut Draft<'_>, count: &mut Count) -> Result<()> {
        let mut failures = 0;
        let before = count.done.saturating_sub(draft.length);
        while draft.length < draft.remote.size {
            self.client.go_on()?;
            let length = draft.length;
            match self.request(draft, count, before) {
                Ok(()) => {}
                Err(Failure::Final(error)) => return Err(error),
                Err(Failure::Passing(error)) => {
                    failures = if draft.length > length { 0 } else { failures + 1 };
                    if failures > self.options.retries {
                        return Err(error);
                    }
                    tracing::debug!(%error, file = draft.name, at = draft.length, "resuming a download");
                    self.client.pause(failures)?;
                }
            }
        }
        Ok(())
    }

    /// One request for what is missing.
    fn request(&self, draft: &mut Draft<'_>, count: &mut Count, before: u64) -> Result<(), Failure> {
        let Draft { name, path, remote, part, .. } = *draft;
        let broken = |error| Failure::Final(Error::io(OPERATION, part, error).with_context("file", name));
        let passing = |draft: &Draft<'_>, message| Err(Failure::Passing(self.corrupt(draft, message)));
        let last = |draft: &Draft<'_>, message| Err(Failure::Final(self.corrupt(draft, message)));
        let answer = self.client.get(path, &self.name, (draft.length > 0).then_some(draft.length))?;
        if answer.tag.as_ref().is_some_and(|tag| tag != remote.sum.digits()) {
            return last(draft, "the hub returned another file than it lists: its etag differs");
        }
        if answer.status == StatusCode::PARTIAL_CONTENT {
            let begins = format!("bytes {}-", draft.length);
            if !answer.range.is_some_and(|range| range.starts_with(&begins)) {
                return passing(draft, "the hub returned another range of the file than requested");
            }
        } else if draft.length > 0 {
            // The server has no ranges: all of it comes again.
            draft.restart().map_err(broken)?;
            if answer.status == StatusCode::RANGE_NOT_SATISFIABLE {
                return passing(draft, "the hub's file is shorter than the partial download");
            }
        } else if answer.status == StatusCode::RANGE_NOT_SATISFIABLE {
            return last(draft, "the hub did not return the file");
        }
        let mut body = answer.content;
        let mut chunk = vec![0; CHUNK];
        while draft.length < remote.size {
            go_on(self.options.cancel.as_ref()).map_err(Failure::Final)?;
            let taken = match body.read(&mut chunk) {
                Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(taken) => Ok(taken),
                Err(error) => Err(error),
            };
            let taken = taken.map_err(|error| Failure::Passing(dropped(error, path)))?;
            let bytes = chunk.get(..taken).unwrap_or_default();
            if draft.length.saturating_add(taken as u64) > remote.size {
                return last(draft, "the hub returned more bytes of the file than it lists");
            }
            draft.add(bytes).map_err(broken)?;
            count.set(before.saturating_add(draft.length));
        }
        Ok(())
    }
}

impl Count {
    pub(super) fn new(progress: Option<ProgressFn>) -> Self {
        Self { total: 0, done: 0, told: None, progress }
    }

    fn add(&mut self, bytes: u64) {
        self.set(self.done.saturating_add(bytes));
    }

    fn set(&mut self, done: u64) {
        self.done = done;
        let Some(progress) = &self.progress else { return };
        if done >= self.total || self.told.is_none_or(|told| told.elapsed() > TELL) {
            self.told = Some(Instant::now());
            progress(LoadProgress::new(LoadStage::Download, done.min(self.total), self.total));
        }
    }
}

impl<'a> Draft<'a> {
    /// Opens what there is of a file, and sums it up.
    fn open(name: &'a str, path: &'a str, remote: &'a Remote, part: &'a Path) -> io::Result<Self> {
        // Nothing but a file is resumed.
        if part.symlink_metadata().is_ok_and(|there| !there.is_file()) {
            fs::remove_file(part)?;
        }
        let file = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(part)?;
        let sum = Hasher::new(remote);
        let mut draft = Self { name, path, remote, part, file, length: 0, sum, resumed: false };
        let there = draft.file.metadata()?.len();
        if there > remote.size {
            draft.restart()?;
            return Ok(draft);
        }
        let mut chunk = vec![0; CHUNK];
        loop {
            let taken = draft.file.read(&mut chunk)?;
            draft.sum.update(chunk.get(..taken).unwrap_or_default());
            draft.length += taken as u64;
            if taken == 0 {
                draft.resumed = draft.length > 0;
                return Ok(draft);
            }
        }
    }

    fn add(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.sum.update(bytes);
        self.length += bytes.len() as u64;
        Ok(())
    }

    fn restart(&mut self) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.seek(SeekFrom::Start(0))?;
        (self.length, self.sum) = (0, Hasher::new(self.remote));
        Ok(())
    }
}

impl Hasher {
    fn new(remote: &Remote) -> Self {
        match remote.sum {
            Sum::Sha256(_) => Self::Sha256(Sha256::new()),
            // Git sums up a header too.
            Sum::Git(_) => Self::Git(Sha1::new_with_prefix(format!("blob {}\0", remote.size))),
        }
    }

    fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(sum) => sum.update(bytes),
            Self::Git(sum) => sum.update(bytes),
        }
    }

    fn digits(&self) -> String {
        match self {
            Self::Sha256(sum) => format!("{:x}", sum.clone().finalize()),
            Self::Git(sum) => format!("{:x}", sum.clone().finalize()),
        }
    }
}

fn is_whole(blob: &Path, remote: &Remote) -> bool {
    fs::metadata(blob).is_ok_and(|there| there.is_file() && there.len() == remote.size)
}
