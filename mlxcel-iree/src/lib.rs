//! The IREE engine of mlxcel.

#![deny(unsafe_code)]

#[allow(dead_code, reason = "the engine on top of it uses all of it")]
mod artifact;
#[allow(dead_code, reason = "the engine on top of it uses all of it")]
mod cache;
#[allow(dead_code, reason = "the engine on top of it uses all of it")]
mod compiler;
#[allow(unsafe_code, reason = "the runtime is a C library; everything unsafe about it is in here")]
#[allow(dead_code, unused_imports, reason = "the engine on top of it uses all of it")]
mod ffi;
#[allow(dead_code, reason = "the engine on top of it uses all of it")]
mod target;
