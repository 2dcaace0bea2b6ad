//! The local Hugging Face cache.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use mlxcel_core::{Error, ErrorKind, Result};

use mlxcel_models::{files, read_file};

use crate::name::HubName;
use crate::select::{module_files, select, shards};

const OPERATION: &str = "read the Hugging Face cache";

/// How many files of one snapshot, and repositories of the cache, are looked at.
const MOST_ENTRIES: usize = 100_000;

/// How deep files of a snapshot may lie in folders.
const MOST_FOLDERS: usize = 8;

/// The Hugging Face cache of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubCache {
    folder: PathBuf,
}

/// A model in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Found {
    /// The snapshot folder, or the named GGUF file.
    pub path: PathBuf,
    /// The commit of the snapshot.
    pub commit: String,
    /// Files of the checkpoint that the cache lacks, after an incomplete download or one without weights.
    pub missing: Vec<String>,
    /// Whether this is an adapter, not a model.
    pub adapter: bool,
}

/// A snapshot of a repository in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CachedSnapshot {
    /// The repository with a revision: a branch or tag if one points here, else the commit.
    pub name: HubName,
    /// The commit.
    pub commit: String,
    /// Its folder.
    pub folder: PathBuf,
    /// The names of its files, sorted.
    pub files: Vec<String>,
    /// The total size of the files. A file shared by several snapshots counts in each.
    pub bytes: u64,
}

impl CachedSnapshot {
    /// The names of the GGUF models in the snapshot; empty if it also has config and safetensors.
    pub fn gguf_models(&self) -> Vec<HubName> {
        if self.files.iter().any(|file| file == "config.json") {
            return Vec::new();
        }
        let models = super::select::models_of(&self.files).into_iter();
        models.map(|file| self.name.clone().with_file(file)).collect()
    }
}

/// The home folder of Hugging Face tools, with files such as `token`: `HF_HOME`, else `huggingface` in
/// `XDG_CACHE_HOME` or in `~/.cache`.
pub fn home_from_env() -> Option<PathBuf> {
    home_folder(|name| std::env::var_os(name), std::env::home_dir())
}

fn home_folder(get: impl Fn(&str) -> Option<OsString>, home: Option<PathBuf>) -> Option<PathBuf> {
    let user_cache = || set(&get, "XDG_CACHE_HOME").or_else(|| Some(home?.join(".cache")));
    set(&get, "HF_HOME").or_else(|| Some(user_cache()?.join("huggingface")))
}

/// A folder by a variable. An empty one is how a shell says that it is not set.
fn set(get: impl Fn(&str) -> Option<OsString>, name: &str) -> Option<PathBuf> {
    get(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

impl HubCache {
    /// The cache that the environment selects, as in `huggingface_hub`: `HF_HUB_CACHE` (or
    /// `HUGGINGFACE_HUB_CACHE`), else `hub` in `HF_HOME`, else `huggingface/hub` in `XDG_CACHE_HOME` or
    /// in `~/.cache`. It need not exist. `None` if there is no home folder either.
    pub fn from_env() -> Option<Self> {
        Self::from_variables(|name| std::env::var_os(name), std::env::home_dir())
    }

    /// The cache in `folder`, which contains folders such as `models--org--name`.
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    fn from_variables(get: impl Fn(&str) -> Option<OsString>, home: Option<PathBuf>) -> Option<Self> {
        let named = set(&get, "HF_HUB_CACHE").or_else(|| set(&get, "HUGGINGFACE_HUB_CACHE"));
        Some(Self::at(named.or_else(|| Some(home_folder(get, home)?.join("hub")))?))
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The folder of `name`'s repository, whether it exists or not.
    pub fn repo_folder(&self, name: &HubName) -> PathBuf {
        self.folder.join(name.folder())
    }

    /// The folder of a snapshot, whether it exists or not.
    ///
    /// # Errors
    ///
    /// [`Corrupt`](ErrorKind::Corrupt) for an invalid commit.
    pub fn snapshot_folder(&self, name: &HubName, commit: &str) -> Result<PathBuf> {
        if !is_commit(commit) {
            let message = "this is not a commit";
            return Err(Error::new(ErrorKind::Corrupt, OPERATION, message)
                .with_context("model", name)
                .with_context("commit", commit));
        }
        Ok(self.repo_folder(name).join("snapshots").join(commit))
    }

    /// Finds the model `name`; `None` if the cache has no snapshot of that revision, or lacks the named file.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](ErrorKind::InvalidInput) if the name does not select one of several GGUF models;
    /// [`Corrupt`](ErrorKind::Corrupt) for an invalid shard index or list of modules; [`Io`](ErrorKind::Io)
    /// if the cache cannot be read.
    pub fn find(&self, name: &HubName) -> Result<Option<Found>> {
        let repo = self.repo_folder(name);
        let Some(commit) = commit(&repo, name.revision())? else { return Ok(None) };
        let folder = repo.join("snapshots").join(&commit);
        if !folder.is_dir() {
            return Ok(None);
        }
        let files = files_of(&folder)?;
        let selection = match select(name, &files) {
            Ok(selection) => selection,
            // What is named may be elsewhere in the repository.
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            // Only config files, for instance: opening it reports what is missing.
            Err(error) if error.kind() == ErrorKind::Unsupported && name.file().is_none() => {
                let missing = vec!["weights".to_owned()];
                return Ok(Some(Found { path: folder, commit, missing, adapter: false }));
            }
            Err(error) => return Err(error.with_context("path", folder.display())),
        };
        let mut needed = selection.weights;
        if let Some(index) = selection.index
            && let Some(content) = read_file(&folder.as_path().into(), &index)?
        {
            needed.extend(shards(&folder.join(&index).display().to_string(), &content)?);
        }
        if let Some(modules) = selection.modules
            && let Some(content) = read_file(&folder.as_path().into(), &modules)?
        {
            needed.extend(module_files(&folder.join(&modules).display().to_string(), &content)?);
        }
        // A link to a deleted blob counts as a missing file.
        let missing = needed.iter().filter(|file| !folder.join(file).is_file()).cloned().collect();
        let path = match needed.first().filter(|_| selection.gguf) {
            Some(first) => {
                files::expect_inside(&folder, first)?;
                folder.join(first)
            }
            None => folder,
        };
        Ok(Some(Found { path, commit, missing, adapter: selection.adapter }))
    }

    /// All snapshots of models in the cache, sorted by name; empty if there is no cache.
    ///
    /// # Errors
    ///
    /// [`Io`](ErrorKind::Io) if a folder cannot be read.
    pub fn snapshots(&self) -> Result<Vec<CachedSnapshot>> {
        let mut found = Vec::new();
        for folder in names_in(&self.folder)? {
            let Some(name) = HubName::of_folder(&folder) else { continue };
            let repo = self.folder.join(&folder);
            let refs = refs(&repo)?;
            for commit in names_in(&repo.join("snapshots"))? {
                let folder = repo.join("snapshots").join(&commit);
                if !is_commit(&commit) || !folder.is_dir() {
                    continue;
                }
                let known = |revision: &&(String, String)| revision.1 == commit;
                let revision = refs.iter().find(known).map_or(&commit, |(revision, _)| revision);
                let Ok(name) = name.clone().with_revision(revision) else { continue };
                let files = files_of(&folder)?;
                let sizes = files.iter().filter_map(|file| fs::metadata(folder.join(file)).ok());
                let bytes = sizes.map(|metadata| metadata.len()).sum();
                found.push(CachedSnapshot { name, commit, folder, files, bytes });
            }
        }
        Ok(found)
    }
}

/// The commit that a revision of the repository in `folder` is.
fn commit(folder: &Path, revision: &str) -> Result<Option<String>> {
    if is_commit(revision) {
        return Ok(Some(revision.to_owned()));
    }
    let path = folder.join("refs").join(revision);
    let Some((file, _)) = files::open(&path, &path)? else { return Ok(None) };
    let text = files::read_bounded(file, 256).unwrap_or_default();
    let commit = std::str::from_utf8(&text).unwrap_or_default().trim();
    if !is_commit(commit) {
        let message = "this should contain a commit; delete it, and download the model again";
        return Err(Error::new(ErrorKind::Corrupt, OPERATION, message).with_context("path", path.display()));
    }
    Ok(Some(commit.to_owned()))
}

fn is_commit(text: &str) -> bool {
    matches!(text.len(), 40 | 64) && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// The branches and tags of a repository with their commits; `main` is the first.
fn refs(repo: &Path) -> Result<Vec<(String, String)>> {
    let folder = repo.join("refs");
    let mut refs = Vec::new();
    for name in files_of(&folder)? {
        if let Ok(Some(commit)) = commit(repo, &name) {
            refs.push((name, commit));
        }
    }
    refs.sort_by_key(|(name, _)| (name != "main", name.clone()));
    Ok(refs)
}

/// The names of the files below `folder`, with those of their folders, sorted. Links to folders are not
/// followed.
fn files_of(folder: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    let mut open = vec![(String::new(), 0)];
    while let Some((prefix, depth)) = open.pop() {
        for entry in entries(&folder.join(&prefix))? {
            let Some((name, kind)) = entry else { continue };
            let name = format!("{prefix}{name}");
            if kind.is_dir() {
                if depth < MOST_FOLDERS {
                    open.push((format!("{name}/"), depth + 1));
                }
            } else if found.len() < MOST_ENTRIES {
                found.push(name);
            }
        }
    }
    found.sort();
    Ok(found)
}

/// The names of what lies in `folder`, sorted; none where there is no such folder.
fn names_in(folder: &Path) -> Result<Vec<String>> {
    let mut names: Vec<_> = entries(folder)?.into_iter().flatten().map(|(name, _)| name).collect();
    names.sort();
    Ok(names)
}

/// What lies in a folder, but for names that are not Unicode.
fn entries(folder: &Path) -> Result<Vec<Option<(String, fs::FileType)>>> {
    let failed = |error| Error::io(OPERATION, folder, error);
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(Vec::new());
        }
        Err(error) => return Err(failed(error)),
    };
    let entries = entries.take(MOST_ENTRIES).map(|entry| {
        let entry = entry?;
        let kind = entry.file_type()?;
        Ok(entry.file_name().into_string().ok().map(|name| (name, kind)))
    });
    entries.collect::<std::io::Result<_>>().map_err(failed)
}

#[cfg(test)]
mod tests;
