//! The router, without a listener.
#![allow(clippy::unwrap_used)]

#[path = "../../../tests/support/adapter.rs"]
mod adapter;
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
