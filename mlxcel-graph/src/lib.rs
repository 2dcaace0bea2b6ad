//! The decoder written once as a StableHLO graph, and the one session that runs it on any executor.
//!
//! Engines that run graphs differ in how a program is executed and where a buffer lives; they do not differ in
//! what a prompt chunk is, when a sequence is full, or what `rewind` means. So those are here, once:
//!
//! * [`decoder_program`] writes the network that a [`Decoder`](mlxcel_models::Decoder) describes as a module for one
//!   [`ProgramShape`]: how many tokens each row brings, and how many positions of KV cache it attends to. Its [`Signature`] says what
//!   every argument and every result is.
//! * [`Executor`] is what an engine supplies: states that lie as [`StateLayout`]s say, and running such a program.
//! * [`GraphModel`] makes a [`Model`](mlxcel_core::Model) of an executor; its sessions cut steps into passes, grow
//!   states, keep positions, and turn outputs into results.
//!
//! Products with packed weights and attention over caches are composites of this crate's own ([`packed`], [`cached`]).
//!
//! # Shapes
//!
//! A program has static shapes, yet context is no fixed bucket: a cache starts small and moves up the buckets of
//! [`Lengths`] as its sequence grows, and each bucket has its program, made when first used. A step's cost therefore follows
//! the length in use, within a factor of the distance between buckets, and not the capacity.
#![forbid(unsafe_code)]

pub mod cached;
mod executor;
mod faulty;
mod model;
mod numerics;
mod ops;
pub mod packed;
mod plan;
mod program;
mod reachable;
mod results;
mod session;
mod shape;
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
pub use session::GraphSession;
pub use shape::{LengthSteps, Lengths, Outputs, ProgramShape};
pub use signature::{
    InputArgument, ProgramResult, ResultMeaning, RowState, Signature, StateArgument, StepInput,
    WeightArgument, weight_arguments,
};
pub use state::{StateLayout, StateSegment, state_layouts};
pub use table::ProgramTable;
pub use writer::ProgramWriter;
