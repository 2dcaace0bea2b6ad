//! From what a user writes to where the model lies.

use mlxcel_core::{Error, ErrorKind, LoadOptions, ModelSource, Result};

use crate::cache::HubCache;
#[cfg(feature = "fetch")]
use crate::fetch::{FetchOptions, fetch};
use crate::name::HubName;

/// Resolves `source`: an existing path, or a source that is not a path, is returned as it is; a name
/// `org/name` becomes the path of that model in the local cache. With the feature `fetch` a model that is not
/// in the cache is downloaded.
///
/// `Model::open` and `Model::load` of `mlxcel-session` call this. Call it yourself before passing a source to
/// an engine or to [`Checkpoint`](mlxcel_models::Checkpoint). Anything that is neither an existing path nor a
/// name is returned unchanged.
///
/// ```no_run
/// use mlxcel_core::LoadOptions;
///
/// let source = mlxcel_hub::locate("Qwen/Qwen3-0.6B", &LoadOptions::default())?;
/// # Ok::<(), mlxcel_core::Error>(())
/// ```
///
/// # Errors
///
/// [`ErrorKind::NotFound`] for a name `org/name` that is not in the cache, without the feature `fetch` or
/// offline; the errors of [`HubCache::find`], and with the feature those of `fetch`.
pub fn locate(source: impl Into<ModelSource>, options: &LoadOptions) -> Result<ModelSource> {
    let cache = HubCache::from_env();
    locate_in(source.into(), cache.as_ref(), |name| get(name, options))
}

/// What lies where, and what is not there by `get`.
fn locate_in(
    source: ModelSource,
    cache: Option<&HubCache>,
    get: impl Fn(&HubName) -> Result<Option<std::path::PathBuf>>,
) -> Result<ModelSource> {
    let ModelSource::Folder(path) = &source else { return Ok(source) };
    if path.symlink_metadata().is_ok() {
        return Ok(source);
    }
    let Some(name) = path.to_str().and_then(|path| path.parse::<HubName>().ok()) else { return Ok(source) };
    let found = cache.map(|cache| cache.find(&name)).transpose()?.flatten();
    if let Some(found) = found.as_ref().filter(|found| found.missing.is_empty()) {
        return Ok(ModelSource::Folder(found.path.clone()));
    }
    // A single word is rather a folder that is not there than an old name.
    let is_full = name.repo().contains('/');
    if is_full && let Some(path) = get(&name)? {
        return Ok(ModelSource::Folder(path));
    }
    match found {
        // Opening it reports what is missing.
        Some(found) => Ok(ModelSource::Folder(found.path)),
        None if is_full => Err(absent(&name, cache)),
        None => Ok(source),
    }
}

fn absent(name: &HubName, cache: Option<&HubCache>) -> Error {
    let message = if cfg!(feature = "fetch") {
        "the folder does not exist, the Hugging Face cache has no model with this name, and HF_HUB_OFFLINE is set"
    } else {
        "the folder does not exist, and the Hugging Face cache has no model with this name; download it (`hf download`), or \
         build with the feature `hub` of mlxcel-session"
    };
    let error = Error::new(ErrorKind::NotFound, "find model", message).with_context("name", name);
    match cache {
        Some(cache) => error.with_context("cache", cache.folder().display()),
        None => error,
    }
}

/// Fetches a model; `None` where that is not allowed.
#[cfg(feature = "fetch")]
fn get(name: &HubName, options: &LoadOptions) -> Result<Option<std::path::PathBuf>> {
    let mut fetching = FetchOptions::from_env();
    if fetching.offline {
        return Ok(None);
    }
    fetching.progress.clone_from(&options.progress);
    fetching.cancel.clone_from(&options.cancel);
    fetch(name, &fetching).map(Some)
}

#[cfg(not(feature = "fetch"))]
fn get(_: &HubName, _: &LoadOptions) -> Result<Option<std::path::PathBuf>> {
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::*;

    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

    fn cache_with(repo: &str, files: &[&str]) -> (tempfile::TempDir, HubCache) {
        let folder = tempfile::tempdir().unwrap();
        let repo = folder.path().join(repo);
        let snapshot = repo.join("snapshots").join(COMMIT);
        for folder in [&repo.join("refs"), &snapshot] {
            fs::create_dir_all(folder).unwrap();
        }
        fs::write(repo.join("refs/main"), COMMIT).unwrap();
        for file in files {
            fs::write(snapshot.join(file), "").unwrap();
        }
        let cache = HubCache::at(folder.path());
        (folder, cache)
    }

    fn path_of(source: &ModelSource) -> &Path {
        let ModelSource::Folder(path) = source else { panic!("{source:?}") };
        path
    }

    #[test]
    fn paths_precede_the_cache_and_the_cache_precedes_the_network() {
        let (folder, cache) = cache_with("models--org--name", &["config.json", "model.safetensors"]);
        let no_network = |_: &HubName| -> Result<Option<PathBuf>> { panic!("the network was asked") };
        let found = locate_in("org/name".into(), Some(&cache), no_network).unwrap();
        assert!(path_of(&found).ends_with(COMMIT));
        for path in
            [folder.path(), Path::new("."), Path::new("src/lib.rs"), Path::new("/no/such"), Path::new("word")]
        {
            let found = locate_in(path.into(), Some(&cache), no_network).unwrap();
            assert_eq!(path_of(&found), path);
        }
        let embedded =
            locate_in(ModelSource::BuiltIn("org/name".to_owned()), Some(&cache), no_network).unwrap();
        assert!(matches!(embedded, ModelSource::BuiltIn(_)));
    }

    #[test]
    fn models_missing_from_the_cache_are_fetched_or_named() {
        let (_folder, cache) = cache_with("models--org--name", &["config.json"]);
        let fetched = |name: &HubName| Ok(Some(PathBuf::from(name.to_string())));
        for name in ["org/name", "org/other@v1"] {
            assert_eq!(path_of(&locate_in(name.into(), Some(&cache), fetched).unwrap()), Path::new(name));
        }
        let incomplete = locate_in("org/name".into(), Some(&cache), |_| Ok(None)).unwrap();
        assert!(path_of(&incomplete).ends_with(COMMIT));
        let error = locate_in("org/other".into(), Some(&cache), |_| Ok(None)).unwrap_err();
        assert_eq!((error.kind(), error.context("name")), (ErrorKind::NotFound, Some("org/other")));
        assert!(error.message().contains("the folder does not exist"), "{error}");
    }
}
