//! The router, without a listener.
#![allow(clippy::unwrap_used)]

mod adapters;
mod errors;
mod harness;
mod ids;
mod keys;
mod reasoning;
mod requests;
mod scripted;
mod speculation;
mod startup;
mod streams;
mod texts;
mod types;
