//! Models by their names on the Hugging Face hub, in the cache that Python's `huggingface_hub` and other programs share on this machine.
//!
//! Nothing in this module uses the network. [`HubCache::find`] answers where a model lies, as the hub's clients lay it out: the file
//! `refs/main` has a commit, the folder `snapshots/COMMIT` has the files by name, as links to their contents in `blobs/`.
//! [`select`] says which files of a repository a checkpoint needs, for whoever fetches them.
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
