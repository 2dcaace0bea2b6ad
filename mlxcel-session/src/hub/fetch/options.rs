//! What a download is asked for.

use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;
use std::time::Duration;

use mlxcel_core::{CancelToken, ProgressFn};
use mlxcel_models::hub::{HubCache, home_from_env};

/// The hub that is asked.
const ENDPOINT: &str = "https://huggingface.co";

/// How [`fetch`](super::fetch()) downloads; start from [`FetchOptions::from_env`].
#[derive(Clone)]
#[non_exhaustive]
pub struct FetchOptions {
    /// The hub: `https://huggingface.co`, or another that speaks as it does.
    pub endpoint: String,
    /// Who asks; sent to the endpoint and to no host that it redirects to.
    pub token: Option<String>,
    /// Where files go.
    pub cache: Option<HubCache>,
    /// Refuses to use the network.
    pub offline: bool,
    /// The most bytes that the files of a checkpoint may have together; defaults to 1 TiB.
    pub max_bytes: u64,
    /// How often in a row a request may fail, or be dropped before a byte came, until the download is given up; defaults to 5.
    pub retries: u32,
    /// How long the server may be silent before a request counts as dropped; defaults to 20 seconds.
    pub timeout: Duration,
    /// Told how many bytes of how many there are.
    pub progress: Option<ProgressFn>,
    /// Stops the download. What has come is kept and the next call goes on from there.
    pub cancel: Option<CancelToken>,
}

impl FetchOptions {
    /// What the environment says, as for `huggingface_hub`; the [module's page](crate::hub) has the variables.
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
            progress: None,
            cancel: None,
        }
    }

    /// Sets which hub is asked.
    #[must_use]
    pub fn with_endpoint(mut self, endpoint: impl Into<String>) -> Self {
        self.endpoint = endpoint.into();
        self
    }

    /// Sets who asks.
    #[must_use]
    pub fn with_token(mut self, token: impl Into<Option<String>>) -> Self {
        self.token = token.into();
        self
    }

    /// Sets where files go.
    #[must_use]
    pub fn with_cache(mut self, cache: HubCache) -> Self {
        self.cache = Some(cache);
        self
    }

    /// Sets the most bytes that a checkpoint may have.
    #[must_use]
    pub fn with_max_bytes(mut self, bytes: u64) -> Self {
        self.max_bytes = bytes;
        self
    }

    /// Sets how often in a row a request may fail.
    #[must_use]
    pub fn with_retries(mut self, retries: u32) -> Self {
        self.retries = retries;
        self
    }

    /// Sets how long the server may be silent.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets who is told how far the download has come.
    #[must_use]
    pub fn with_progress(mut self, progress: ProgressFn) -> Self {
        self.progress = Some(progress);
        self
    }

    /// Sets what stops the download.
    #[must_use]
    pub fn with_cancel(mut self, cancel: CancelToken) -> Self {
        self.cancel = Some(cancel);
        self
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
            .field("progress", &self.progress.is_some())
            .field("cancel", &self.cancel)
            .finish()
    }
}

/// What the file of a token holds; nothing where it cannot be read, as for Python.
fn read_token(path: &std::path::Path) -> Option<String> {
    let mut text = String::new();
    let file = path.is_file().then(|| File::open(path).ok())??;
    file.take(16 << 10).read_to_string(&mut text).ok()?;
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_says_who_asks_whom() {
        let home = tempfile::tempdir().unwrap();
        let of = |set: &[(&str, &str)]| {
            let get = |name: &str| set.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into());
            FetchOptions::from_variables(get, Some(home.path().to_owned()), None)
        };
        let options = of(&[("HF_ENDPOINT", ""), ("HF_HUB_OFFLINE", "0")]);
        assert_eq!(
            (options.endpoint.as_str(), options.token.as_deref(), options.offline),
            (ENDPOINT, None, false)
        );
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
