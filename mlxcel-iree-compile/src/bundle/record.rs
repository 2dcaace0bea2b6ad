//! Records the bundles written with a cache, which engines with the same cache trust.

use std::fs;
use std::path::Path;

use mlxcel_iree_target::hex;
use sha2::{Digest, Sha256};

use crate::cache::Cache;

/// The folder, in that of a cache, with a file for each bundle that was written with it.
const FOLDER: &str = "bundles";

/// Notes that the bundle with this manifest was written with `cache`, by `path`; a failure to record it is
/// logged and not an error.
pub(super) fn record(cache: &Cache, manifest: &[u8], path: &Path) {
    let Some(folder) = cache.folder().map(|folder| folder.join(FOLDER)) else { return };
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let written = fs::create_dir_all(&folder)
        .and_then(|()| fs::write(folder.join(name(manifest)), path.as_os_str().as_encoded_bytes()));
    if let Err(error) = written {
        tracing::warn!(folder = %folder.display(), %error, "this machine could not be recorded as the bundle's writer: the bundle must be trusted explicitly");
    }
}

/// Whether the bundle with this manifest was written with `cache`. The manifest contains the checksums of all
/// programs.
pub fn is_recorded(cache: &Cache, manifest: &[u8]) -> bool {
    cache.folder().is_some_and(|folder| folder.join(FOLDER).join(name(manifest)).is_file())
}

/// The name of a manifest's record: its SHA-256.
fn name(manifest: &[u8]) -> String {
    hex(&Sha256::digest(manifest))
}
