//! The foreign function interface to PJRT plugins: handles that free what they hold, and typed errors.

mod buffer;
mod client;
mod executable;
#[cfg(test)]
pub(crate) mod failing;
mod failure;
mod named;
mod plugin;
mod sys;

pub(crate) use buffer::Buffer;
pub(crate) use client::Client;
pub(crate) use executable::Executable;
pub(crate) use plugin::Plugin;
