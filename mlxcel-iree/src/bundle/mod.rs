//! Bundles: a model with its programs compiled beforehand, in one folder.
//!
//! An application that ships a model need not ship a compiler, nor this crate's feature `compile`. [`write()`] compiles every program that sessions can ever ask for
//! and puts them beside the checkpoint's files; the machine that runs the bundle needs the application and nothing else: no
//! compiler, no Python, no cache, not even a file system that can be written.
//!
//! ```text
//! story-bundle/
//!   bundle.json                                the manifest
//!   config.json  tokenizer.json  …             the checkpoint's small files
//!   model.safetensors                          its weights, unless they were left out; of a GGUF model its file, and none of those above
//!   weights/llvm-cpu-znver4.bin                the same as the programs of a target take them
//!   programs/llvm-cpu-znver4/64-at-256.vmfb    the programs of each target
//! ```
//!
//! A bundle is a checkpoint folder too, so it is opened as one: [`IreeBackend::load`](crate::IreeBackend) takes its programs
//! from it, and `Model::open` of mlxcel-session finds the tokenizer. One without weights goes with a checkpoint folder by
//! [`IreeBackend::with_bundle`](crate::IreeBackend::with_bundle).
//!
//! # What a bundle does
//!
//! [`BundleOptions`] decide it: the precision, the most tokens and sequences, whether texts can be scored. A model that is opened
//! from it claims exactly that, and a session never comes to need a program that is not there
//! ([`GraphModelOptions::programs`](mlxcel_graph::GraphModelOptions::programs) lists them). Whoever opens it may ask for less
//! room, and has to ask for its precision: `LoadOptions` that contradict it are errors that say so.
//!
//! # Weights that are mapped
//!
//! Kernels for processors take weights in another order of bytes than checkpoints have. Where one target alone wants that, the bundle has the
//! weights in it too, in a file that programs read where it is mapped: opening copies nothing, processes share the pages, and files must not
//! be modified while a model is open. It takes the weights' size on the disk once more, since the folder stays a checkpoint that
//! any engine opens; [`BundleOptions::with_laid_out_weights`] leaves it out. Then, in bundles without weights and in those for
//! several such targets, weights are put into their order when a model is opened, which takes memory of the process's own.
//!
//! # What is checked
//!
//! Before anything runs: that the manifest is of this format, of a compatible version of this crate and for this release of
//! IREE; that the checkpoint's architecture, tensors and fingerprint are those of the manifest; that what the options ask for is
//! what the programs do; that there is a target whose features this processor has (of several, the one that uses most of
//! them); that every program of it has the checksum that was written; that samples of the mapped weights have theirs, since to read all of
//! them would take longer than to run. [`Bundle::verify`] reads everything, weights included.
//!
//! # Whose programs are run
//!
//! Programs are machine code, and checksums are proof against damage, not against malice. So those of a bundle are run only where
//! somebody vouches for it:
//!
//! * the caller, by [`IreeBackend::with_trusted_bundle`](crate::IreeBackend::with_trusted_bundle) or
//!   [`IreeBackend::with_trusted_manifest`](crate::IreeBackend::with_trusted_manifest), by naming the folder in
//!   [`IreeBackend::with_bundle`](crate::IreeBackend::with_bundle), or by embedding the bundle in the application;
//! * this machine, which notes in the cache's folder what bundles [`write()`] wrote with that cache. A manifest that is changed
//!   afterwards is another one.
//!
//! A model's folder with any other bundle is opened as the checkpoint that it is: programs are compiled, and where there is no
//! compiler, opening is an error that says how to trust the bundle.
//!
//! # For other compilers
//!
//! The target [`STABLEHLO`] writes the programs as plain text, in which nothing is left of this engine: any compiler of the
//! OpenXLA family runs them. The manifest says what each argument is; weights are arguments, named by the tensors of the
//! checkpoint's safetensors files.

mod open;
mod source;
mod trust;

#[cfg(feature = "compile")]
#[cfg(test)]
mod tests;

pub use mlxcel_iree_target::manifest::{
    FileEntry, LongRotary, Manifest, ModelDescription, ProgramDescription, Rotary, STABLEHLO, Selected,
    Target, Tensor, Weight,
};
pub use open::Bundle;
pub(crate) use trust::{Offer, Trust};

#[cfg(feature = "compile")]
pub use crate::compile::write_bundle as write;
#[cfg(feature = "compile")]
pub use mlxcel_iree_compile::bundle::{BundleOptions, split_targets};
