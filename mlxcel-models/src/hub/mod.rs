//! Hugging Face Hub names, and the cache that Python's `huggingface_hub` and other programs on this machine share.
//!
//! This module does not use the network. [`HubCache::find`] locates a model in the cache's layout: the file `refs/main`
//! contains a commit, and the folder `snapshots/COMMIT` contains the files as links to `blobs/`. [`select`] lists the
//! files of a repository that a checkpoint needs, for code that downloads them.
//!
//! ```no_run
//! use mlxcel_models::{Checkpoint, hub::{HubCache, HubName}};
//!
//! let name: HubName = "Qwen/Qwen3-0.6B".parse()?;
//! if let Some(found) = HubCache::from_env().map(|cache| cache.find(&name)).transpose()?.flatten() {
//!     println!("{}", Checkpoint::open(found.path)?.model_type());
//! }
//! # Ok::<(), mlxcel_core::Error>(())
//! ```

mod cache;
mod name;
mod select;

pub use cache::{CachedSnapshot, Found, HubCache, home_from_env};
pub use name::HubName;
pub use select::{Selection, select, shards};
