//! Many requests in one session: what they say, who waits, and how they end.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(unreachable_pub)]

mod ends;
mod harness;
mod own_code;
mod pressure;
mod same_texts;
mod texts;
mod waiting;

#[path = "../support/mod.rs"]
mod support;
