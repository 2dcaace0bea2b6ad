//! The MLX engine of mlxcel.

#![deny(unsafe_code)]

#[allow(dead_code, unused_imports)]
mod array;
#[allow(dead_code)]
mod device;
mod engine;
#[allow(dead_code, unused_imports)]
#[allow(unsafe_code, reason = "MLX is a C++ library; everything unsafe about it is in here")]
mod ffi;
#[allow(dead_code)]
mod kernels;

pub use engine::{MlxBackend, WeightQuantization};
