//! `mlxcel serve`, spoken to over its socket. OpenAI's own client drives it in `cargo xtask test --only
//! server`.
#![cfg(all(feature = "portable", unix))]

mod adapters;
mod answers;
mod harness;
mod limits;
mod messages;
mod requests;
#[cfg(feature = "hub")]
mod startup;
