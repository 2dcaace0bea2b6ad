//! Language-model checkpoints: config, weights and a description of the network, independent of any engine.
//!
//! A [`Checkpoint`] is a Hugging Face folder (or the same files embedded in a binary) or a GGUF file. Weights
//! are memory-mapped and never copied as a whole. From it comes a [`Decoder`]: a plain, printable description
//! of the network, in which each weight has a role. Engines read the `Decoder` and know no model family. A
//! family is one file that maps its config and tensor names to that description, so a new family needs no
//! change in any engine, and a new engine none in any family.
//!
//! ```no_run
//! use mlxcel_models::Checkpoint;
//!
//! # fn main() -> mlxcel_core::Result<()> {
//! let checkpoint = Checkpoint::open("models/Llama-3.2-1B")?;
//! let decoder = checkpoint.decoder()?;
//! println!("{decoder}");
//! for weight in decoder.weights() {
//!     let view = checkpoint.weight(weight)?;
//!     println!("{} {} {:?}: {} bytes", weight.tensor, view.element_type, view.shape, view.bytes.len());
//! }
//! # Ok(())
//! # }
//! ```
#![deny(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod adapter;
mod bytes;
mod checkpoint;
mod config;
mod decoder;
mod element;
mod families;
mod feed;
pub mod files;
mod fingerprint;
mod float;
mod gguf;
mod named;
mod open;
pub mod packing;
mod parallel;
pub mod read;
mod rope;
mod safetensors;
mod side_files;
mod source;
pub mod text_head;
pub mod walk;
mod weights;

pub use adapter::{AdapterChanges, AdapterWeights, LowRank, ModuleChange, StoredAdapter};
pub use checkpoint::{Checkpoint, TensorView};
pub use decoder::{
    Activation, AltUp, Arrangement, Attention, AttentionCore, AttentionMask, Block, CompressedAttention,
    Compressor, Convolution, Decay, DecayScope, Decoder, DeltaRule, DistanceBias, Embedding, EntryIndexer,
    ExpertGroups, Experts, Feature, FeatureSet, Gating, GeneralizedDeltaRule, Head, HeadLinear, HeadNorm,
    HeadSharing, HyperConnection, Indexer, InputStates, LARGEST_DISTANCE, LatentAttention, LatentQuery,
    Laurel, Layer, LayerEmbeddings, LayerInput, Linear, Mixer, Mlp, Norm, NormKind, NormScope, Operation,
    OutputStates, Packed, PositionScale, PositionTable, Projection, Router, Scoring, Selection,
    SelectiveScan, SharedAttention, SharedExpert, ShiftedMlp, ShiftedProjection, ShortConvolution,
    SparseAttention, StateGroup, StateShape, StateSlot, StateSpace, StateSpaceScales, StreamMixer, Streams,
    TypeTable, WeightId, WeightRef, WeightRole, WeightTable, Xielu, alibi_slopes, distance_bucket,
};
pub use element::ElementType;
pub use families::{Conversion, supported_model_types};
pub use feed::{FedRow, FedRows, Feed, Held};
pub use gguf::{GgufSplit, gguf_models};
pub use packing::{Packing, Part};
pub use parallel::SplitAlong;
pub use read::WeightView;
pub use rope::{LongRope, Rope, RopeEpochs};
pub use side_files::SMALL_FILES;
pub use source::read_file;
