//! Layers and their composites, evaluated and compared with plain computations.

#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "a test fails by them")]
#![allow(clippy::single_range_in_vec_init, reason = "a step of one row is a list of one range")]

mod activations;
mod cached_attention;
mod dense;
mod experts;
mod latent_attention;
mod packed;
mod recurrent;
mod ring_attention;
mod support;
