//! Models by name, from the Hugging Face cache and hub.
//!
//! [`locate`] resolves a name `org/name` to the path of that model. An existing path takes precedence over a
//! name, and the local cache, shared with Python's `huggingface_hub` and other programs, over the network.
//! The network is used only with the feature `fetch`, which is the feature `hub` of `mlxcel-session`.
//!
//! ```no_run
//! use mlxcel_hub::{HubCache, HubName};
//! use mlxcel_models::Checkpoint;
//!
//! let name: HubName = "Qwen/Qwen3-0.6B".parse()?;
//! if let Some(found) = HubCache::from_env().map(|cache| cache.find(&name)).transpose()?.flatten() {
//!     println!("{}", Checkpoint::open(found.path)?.model_type());
//! }
//! # Ok::<(), mlxcel_core::Error>(())
//! ```
//!
//! A [`HubName`] may also name a revision and one of several GGUF models.
//!
//! # Feature `fetch`
#![cfg_attr(feature = "fetch", doc = "[`fetch()`] downloads what a checkpoint needs")]
#![cfg_attr(not(feature = "fetch"), doc = "`fetch` downloads what a checkpoint needs")]
//! (configuration, tokenizer, templates, modules of sentence-transformers, safetensors or one GGUF model, never
//! Python pickles) into the cache in the layout of `huggingface_hub`. An interrupted download is resumed, now or by the next call; each file
//! is verified against the SHA-256 or git hash that the hub lists, and a branch points to a snapshot only
//! when it is complete. The environment variables are those of `huggingface_hub`:
//!
//! | variable | meaning |
//! |---|---|
//! | `HF_HUB_CACHE`, `HF_HOME`, `XDG_CACHE_HOME` | where the cache is; defaults to `~/.cache/huggingface/hub` |
//! | `HF_TOKEN`, else the file `HF_TOKEN_PATH`, else `token` in `HF_HOME` | the access token, for private and gated models |
//! | `HF_ENDPOINT` | the hub's URL; defaults to `https://huggingface.co` |
//! | `HF_HUB_OFFLINE` | `1` disables the network |
//! | `HF_HUB_DISABLE_IMPLICIT_TOKEN` | `1` sends no token |
//! | `HTTPS_PROXY`, `HTTP_PROXY`, `NO_PROXY` | the proxy |
//!
//! The token is sent to the endpoint only, never to a host that it redirects to. The
//! [`CancelToken`](mlxcel_core::CancelToken) and the progress function in
//! [`LoadOptions`](mlxcel_core::LoadOptions) also apply to the download, as
//! [`LoadStage::Download`](mlxcel_core::LoadStage::Download).
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod cache;
#[cfg(feature = "fetch")]
mod fetch;
mod locate;
mod name;
mod select;

pub use cache::{CachedSnapshot, Found, HubCache, home_from_env};
#[cfg(feature = "fetch")]
pub use fetch::{FetchOptions, fetch};
pub use locate::locate;
pub use name::HubName;
pub use select::{Selection, module_files, select, shards};
