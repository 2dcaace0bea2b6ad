//! Models of the engine's threads under thousands of schedules each; see [`crate::sync`].

mod channel;
mod panicking;
mod requests;
