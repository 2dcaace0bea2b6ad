//! Writes bundles: a model with its compiled programs in one folder.

mod checkpoint_files;
mod laid_out;
mod options;
mod record;
mod staging;
mod targets;
mod write;

#[cfg(test)]
mod tests;

pub use options::{BundleOptions, split_targets};
pub use record::is_recorded;
pub use write::write;
