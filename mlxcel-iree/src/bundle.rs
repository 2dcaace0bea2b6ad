//! Bundles: a model with its compiled programs in one folder.
//!
//! An application that ships a model needs no compiler at run time and can turn off this crate's feature
//! `compile`. [`write()`] compiles every program that sessions can use and stores them with the checkpoint's
//! files. The machine that runs the bundle needs only the application: no compiler, no Python, no cache and
//! no writable file system.
//!
//! ```text
//! story-bundle/
//!   bundle.json                                the manifest
//!   config.json  tokenizer.json  …             the checkpoint's small files
//!   model.safetensors                          its weights, unless they were left out; of a GGUF model its file, and none of those above
//!   weights/llvm-cpu-znver4.bin                the same as the programs of a target take them
//!   programs/llvm-cpu-znver4/64-at-256.vmfb    the programs of each target
//!   adapters/poems/adapter_config.json …       the adapters that were put in
//! ```
//!
//! A bundle is a checkpoint folder too, so it is opened as one: [`IreeBackend::load`](crate::IreeBackend)
//! takes its programs from it, and `Model::open` of mlxcel-session finds the tokenizer. To use a bundle
//! without weights with a checkpoint folder, call
//! [`IreeBackend::with_bundle`](crate::IreeBackend::with_bundle).
//!
//! # Capabilities of a bundle
//!
//! [`BundleOptions`] set precision, capacity, number of sequences, room for adapters and whether texts can be
//! scored. A model opened from the bundle claims exactly that, and no session needs a program that is missing
//! ([`GraphModelOptions::programs`](mlxcel_graph::GraphModelOptions::programs) lists them). `LoadOptions` may
//! request a lower capacity, but must request the bundle's precision; contradictions are errors.
//!
//! # Mapped weights
//!
//! CPU kernels read weights in a different layout than checkpoints store them. If only one target of a bundle
//! needs such a layout, the bundle also contains the weights in it, in a file that programs read
//! memory-mapped: opening copies nothing, and processes share the pages. The files must not be modified while
//! a model is open. This doubles the size of the weights on disk, because the folder remains a checkpoint for
//! any engine; [`BundleOptions::with_laid_out_weights`] turns it off. Without this file, as in bundles
//! without weights or for several such targets, weights are packed into private memory when a model is
//! opened.
//!
//! # Verification
//!
//! Before anything runs, opening verifies the manifest's format, crate version and IREE release; the
//! checkpoint's architecture, tensors and fingerprint; that the options match the programs; that the
//! processor has all features of a target (of several matching targets, the one with the most features is
//! used); the checksum of every program of that target; and checksums of samples of the mapped weights, since
//! reading all of them would take too long. [`Bundle::verify`] reads everything, including weights.
//!
//! # Trust
//!
//! Programs are machine code, and checksums detect damage, not malice. So the programs of a bundle run only
//! if it is trusted:
//!
//! * by the caller, with [`IreeBackend::with_trusted_bundle`](crate::IreeBackend::with_trusted_bundle) or
//!   [`IreeBackend::with_trusted_manifest`](crate::IreeBackend::with_trusted_manifest), with
//!   [`IreeBackend::with_bundle`](crate::IreeBackend::with_bundle), or by embedding the bundle in the
//!   application;
//! * by this machine: the cache folder records the manifests of bundles that [`write()`] wrote with that
//!   cache. A manifest that is modified afterwards is not trusted.
//!
//! A folder with any other bundle is opened as a plain checkpoint: programs are compiled, and without a
//! compiler opening fails with an error that says how to trust the bundle.
//!
//! # For other compilers
//!
//! The target [`STABLEHLO`] writes the programs as plain StableHLO text without anything specific to this
//! engine, for any OpenXLA compiler. The manifest describes each argument; weights are arguments, named by
//! the tensors in the checkpoint's safetensors files.

#[cfg(feature = "compile")]
pub use mlxcel_iree_compile::bundle::{BundleOptions, split_targets};
pub use mlxcel_iree_target::manifest::{
    AdapterRoom, FileEntry, Manifest, ModelDescription, ProgramDescription, STABLEHLO, Target, Tensor, Weight,
};

#[cfg(feature = "compile")]
pub use crate::compile::write_bundle as write;
pub use crate::shipped::Bundle;
