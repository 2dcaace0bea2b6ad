//! The kernel generator of mlxcel's IREE engine: turns a StableHLO module into text for IREE's compiler, with
//! composites replaced by calls of kernels written for the hardware.
//!
//! # Why kernels are text
//!
//! A kernel is written in MLIR's `vector` dialect, inside the program that calls it, so that one unmodified
//! compiler compiles everything. This crate writes that text and starts nothing: it uses neither the
//! compiler's process nor devices, and takes the hardware as [`Hardware`], plain data. It also chooses how
//! weights lie in memory ([`Layouts`]), since that depends on the kernels that read them.
//!
//! ```
//! use mlxcel_core::Precision;
//! use mlxcel_graph::layers;
//! use mlxcel_iree_kernels::{Hardware, Instructions, VectorSet, lower};
//! use mlxcel_stablehlo::{ElementType, Module, TensorType};
//!
//! let module = Module::of_function("layer", "main", |b| {
//!     let x = b.argument("x", TensorType::new(ElementType::F32, [1, 64]))?;
//!     let w = b.argument("w", TensorType::new(ElementType::BF16, [96, 64]))?;
//!     Ok(vec![layers::linear(b, x, w, None, ElementType::F32)?])
//! })?;
//! let hardware = Hardware::Processor(Some(Instructions::new(VectorSet::Avx2)));
//! let lowered = lower(&module, hardware, Precision::Native)?;
//! assert!(lowered.text.contains("flow.dispatch @mlxcel_linear_bf16_1x64x96_0"));
//! assert_eq!(lowered.layouts.get("w").unwrap().to_string(), "panels-8 bf16");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod attention;
mod context;
pub mod device_check;
mod embedding;
mod experts;
mod gpu;
mod hardware;
mod independent;
mod instructions;
mod kernels;
pub mod layout;
mod layouts;
mod linear;
mod lower;
mod norm;
mod quantized;
mod reads;
mod recurrent;
mod rms_norm;
mod schedule;
mod value;
mod vector_set;
mod vectors;
mod view;
mod writer;

pub use hardware::Hardware;
pub use independent::independent_rows;
pub use instructions::Instructions;
pub use layouts::{Layouts, Panels};
pub use lower::{EXPORT_ENTRY, Lowered, attends_in_use, export, for_gpus, for_kernels, lower, suited};
pub use schedule::{Bf16Products, Schedule};
pub use vector_set::VectorSet;
