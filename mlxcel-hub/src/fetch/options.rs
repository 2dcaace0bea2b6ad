//! Options of downloads.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use mlxcel_core::{CancelToken, ProgressFn};
use mlxcel_models::files::read_regular;

use crate::cache::{HubCache, home_from_env};

/// The hub that is asked.
const ENDPOINT: &str = "https://huggingface.co";

/// Options of [`fetch`](super::fetch()); start from [`FetchOptions::from_env`], and change fields.
#[derive(Clone)]
#[non_exhaustive]
pub struct FetchOptions {
    /// The hub's URL: `https://huggingface.co` or a compatible server.
    pub endpoint: String,
    /// The access token; sent to the endpoint only, never to a host that it redirects to.
    pub token: Option<String>,
    /// The cache to download into.
    pub cache: Option<HubCache>,
    /// Disables the network.
    pub offline: bool,
    /// The maximum total size of a checkpoint in bytes; defaults to 1 TiB.
    pub max_bytes: u64,
    /// How many consecutive requests may fail, or be dropped before the first byte, before the download
    /// fails; defaults to 5.
    pub retries: u32,
    /// The time without data after which a request counts as dropped; defaults to 20 seconds.
    pub timeout: Duration,
    /// How long all requests may take together, beyond one second for each 16 KiB that they bring, before
    /// the download fails: a hub that is silent or sends a byte now and then does not hold the caller
    /// for ever. Defaults to two minutes.
    pub patience: Duration,
    /// Called with the bytes downloaded and the total.
    pub progress: Option<ProgressFn>,
    /// Cancels the download. The next call resumes it.
    pub cancel: Option<CancelToken>,
}

impl FetchOptions {
    /// Options from the environment variables of `huggingface_hub`, listed in the [crate's
    /// documentation](crate).
    pub fn from_env() -> Self {
        Self::from_variables(|name| std::env::var_os(name), home_from_env(), HubCache::from_env())
    }

    pub(super) fn from_variables(
        get: impl Fn(&str) -> Option<OsString>,
        home: Option<PathBuf>,
        cache: Option<HubCache>,
    ) -> Self {
        let get = |name: &str| {
            get(name).and_then(|value| value.into_string().ok()).filter(|value| !value.is_empty())
        };
        let is_on = |name: &str| {
            get(name).is_some_and(|value| {
                ["1", "on", "yes", "true"].contains(&value.to_ascii_lowercase().as_str())
            })
        };
        let token = || {
            let named = get("HF_TOKEN").or_else(|| get("HUGGING_FACE_HUB_TOKEN"));
            let file = get("HF_TOKEN_PATH").map(PathBuf::from).or_else(|| Some(home?.join("token")));
            let token = named.or_else(|| read_token(&file?))?.trim().to_owned();
            (!token.is_empty()).then_some(token)
        };
        Self {
            token: if is_on("HF_HUB_DISABLE_IMPLICIT_TOKEN") { None } else { token() },
            endpoint: get("HF_ENDPOINT").unwrap_or_else(|| ENDPOINT.to_owned()),
            cache,
            offline: is_on("HF_HUB_OFFLINE"),
            max_bytes: 1 << 40,
            retries: 5,
            timeout: Duration::from_secs(20),
            patience: Duration::from_secs(120),
            progress: None,
            cancel: None,
        }
    }

    mlxcel_core::setters! {
        /// Sets the access token.
        with_token(token: impl Into<Option<String>>) => token = token.into();
        /// Sets the maximum total size of a checkpoint.
        with_max_bytes(bytes: u64) => max_bytes = bytes;
        /// Sets the progress function.
        with_progress(progress: ProgressFn) => progress = Some(progress);
        /// Sets the cancel token.
        with_cancel(cancel: CancelToken) => cancel = Some(cancel);
    }
}

/// Without the token.
impl fmt::Debug for FetchOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FetchOptions")
            .field("endpoint", &self.endpoint)
            .field("token", &self.token.as_ref().map(|_| "…"))
            .field("cache", &self.cache)
            .field("offline", &self.offline)
            .field("max_bytes", &self.max_bytes)
            .field("retries", &self.retries)
            .field("timeout", &self.timeout)
            .field("patience", &self.patience)
            .field("progress", &self.progress.is_some())
            .field("cancel", &self.cancel)
            .finish()
    }
}

/// What the file of a token holds; nothing where it cannot be read, as for Python.
fn read_token(path: &std::path::Path) -> Option<String> {
    String::from_utf8(read_regular(path, 16 << 10).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoint_and_token_come_from_the_environment() {
        let home = tempfile::tempdir().unwrap();
        let of = |set: &[(&str, &str)]| {
            let get = |name: &str| set.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into());
            FetchOptions::from_variables(get, Some(home.path().to_owned()), None)
        };
        let options = of(&[("HF_ENDPOINT", ""), ("HF_HUB_OFFLINE", "0")]);
        let FetchOptions { endpoint, token, offline, .. } = options;
        assert_eq!((endpoint.as_str(), token, offline), (ENDPOINT, None, false));
        std::fs::write(home.path().join("token"), "hf_file\n").unwrap();
        assert_eq!(of(&[]).token.as_deref(), Some("hf_file"));
        let options =
            of(&[("HF_TOKEN", "hf_named"), ("HF_HUB_OFFLINE", "True"), ("HF_ENDPOINT", "http://a")]);
        assert_eq!((options.token.as_deref(), options.offline), (Some("hf_named"), true));
        assert!(!format!("{options:?}").contains("hf_named"));
        let options = of(&[("HF_TOKEN", "hf_named"), ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")]);
        assert_eq!(options.token, None);
    }
}
