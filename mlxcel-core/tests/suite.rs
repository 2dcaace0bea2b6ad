//! The contract: sessions, generations and drafts, on the reference session.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod drafts;
mod generate;
mod ownership;
mod reference;
