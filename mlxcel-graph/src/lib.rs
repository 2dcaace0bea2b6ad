//! Decoders as StableHLO graphs, and a session that runs them on any executor.
//!
//! Engines that run graphs differ in how programs execute and where buffers live, but not in prefill
//! chunking, capacity checks or the meaning of `rewind`. This crate implements the common part:
//!
//! * [`decoder_program`] writes the network of a [`Decoder`](mlxcel_models::Decoder) as a module for one
//!   [`ProgramShape`]: the number of tokens of each row, and the KV-length bucket. Its [`Signature`]
//!   describes every argument and result.
//! * [`Executor`] is implemented by an engine: it allocates states by [`StateLayout`]s and runs programs.
//! * [`GraphModel`] is a [`Model`](mlxcel_core::Model) on an executor; its sessions split steps into passes,
//!   grow states, track positions, and convert outputs to results.
//!
//! The layers of a network are functions of a builder: [`layers`] with dense weights, [`packed`] with packed
//! ones, and attention over caches in [`cached`]. Most make a composite, one operation that an engine can
//! replace by a kernel; [`composites`] lists their names, operands and attributes.
//!
//! # KV-length buckets
//!
//! Programs have static shapes. A KV cache starts in a small bucket and moves to larger ones of [`Lengths`]
//! as its sequence grows; each bucket has its own programs, compiled on first use. So the cost of a step
//! follows the length in use, up to the ratio between buckets, not the capacity.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod adapters;
pub mod cached;
pub mod composites;
mod executor;
mod faulty;
pub mod layers;
mod memory;
mod model;
mod numerics;
mod ops;
pub mod packed;
mod plan;
mod program;
mod reachable;
#[cfg(test)]
mod recorder;
mod resident;
mod session;
mod shape;
mod shared;
mod signature;
mod state;
mod table;
mod weights;
mod writer;

pub use executor::{Executor, Prepared, RunError, StepInputs, StepOutputs};
pub use faulty::FaultyExecutor;
pub use model::{GraphModel, GraphModelOptions, model_info};
pub use numerics::{KvCacheType, Numerics, element_type};
pub use program::{ENTRY, Program, decoder_program};
pub use reachable::PreparedPrograms;
pub use resident::{Resident, ResidentArgument, Residents, resident_arguments};
pub use session::GraphSession;
pub use shape::{LengthSteps, Lengths, Outputs, ProgramShape};
pub use shared::IndependentRows;
pub use signature::{
    InputArgument, ProgramResult, ResultMeaning, RowState, Signature, StateArgument, StepInput,
    WeightArgument, weight_arguments,
};
pub use state::{StateLayout, StateSegment, state_layouts};
pub use table::ProgramTable;
pub use writer::ProgramWriter;
