//! StableHLO programs, written in Rust.
//!
//! A language model is a program over tensors. With this crate the program is written in Rust, operation by
//! operation, and printed as [StableHLO](https://openxla.org/stablehlo), which compilers such as IREE and XLA read. The
//! alternative is to trace a network in Python and ship the exported file. The export fixes shapes, KV cache
//! layout and batch sizes, and changing one of them needs the Python environment again. A builder inside the
//! application generates the program for the checkpoint, device and batch at hand, at run time.
//!
//! A traced program has run at least once; a handwritten one has not. The [`Builder`] therefore checks every
//! operation when it is made: the pure functions of [`infer`] compute its types, and an invalid operation
//! returns an [`Error`] that names the operation, the operand and the types of all operands. Unmodified
//! StableHLO tools accept the result. There is no implicit broadcasting or type promotion;
//! [helpers](#helpers) do both explicitly.
//!
//! The finished [`Module`] is data. It prints as MLIR text (`to_string()`), can be traversed and checked
//! ([`Module::verify`]), and can be rewritten before printing ([`Module::rewrite_composites`]), which is how
//! an engine inserts its own kernels.
//!
//! ```
//! use mlxcel_stablehlo::{ElementType, Module, Result, TensorType};
//!
//! fn main() -> Result<()> {
//!     // One step of a model that is an embedding and a head: token ids in, the next ids out.
//!     let module = Module::of_function("tiny", "step", |b| {
//!         let tokens = b.argument("tokens", TensorType::new(ElementType::I32, [4]))?;
//!         let embedding = b.argument("embedding", TensorType::new(ElementType::BF16, [1000, 64]))?;
//!         let x = b.take(embedding, tokens)?;
//!         let logits = b.linear(x, embedding, None, ElementType::F32)?;
//!         let (_, next) = b.argmax(logits, 1)?;
//!         Ok(vec![next])
//!     })?;
//!     let text = module.to_string();
//!     assert!(text.contains("func.func public @step(%tokens: tensor<4xi32>"));
//!     assert!(text.contains("stablehlo.dot_general"));
//!     Ok(())
//! }
//! ```
//!
//! # Values
//! A [`Value`] belongs to one function, which its lifetime identifies: using it in another function does not
//! compile. A region (the condition or the body of a loop) can read values of the enclosing blocks.
//! Values made in a region cannot be used outside of it; doing so is an [`Error`].
//!
//! # Helpers
//! A few methods of the builder write several operations: [`linear`](Builder::linear) is a product, the
//! addition of a bias and a rounding; [`argmax`](Builder::argmax) makes the indices that `reduce_argmax`
//! joins; [`take`](Builder::take) gathers rows; [`softmax`](Builder::softmax) and
//! [`log_softmax`](Builder::log_softmax) subtract the maximum first;
//! [`broadcast_like`](Builder::broadcast_like) and [`expand`](Builder::expand) name the dimensions of a
//! broadcast.
//!
//! A layer is the work of whoever defines the network: [`Builder::composite`] makes it one operation whose
//! decomposition into plain operations defines exactly what it computes. A compiler that does not know a
//! composite compiles the decomposition.
//!
//! # Limits
//! Shapes are static. The element types are those of [`ElementType`]: no complex numbers, no 8-bit floats, no
//! quantized types (packed weights are integers, unpacked by operations). Not supported: operations with side
//! effects, collectives, convolutions and sorting.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod builder;
mod elementwise;
pub mod error;
pub mod infer;
pub mod literal;
pub mod module;
mod names;
pub mod print;
mod rewrite;
pub mod types;
mod verify;

pub use builder::{Builder, ModuleBuilder, Value};
pub use error::{Error, ErrorKind, Result};
pub use literal::{Element, Literal};
pub use module::{
    Argument, Attribute, BinaryOp, Block, Comparison, DotDimensions, Function, GatherDimensions, Module, Op,
    OpKind, Reduction, ScatterDimensions, ScatterUpdate, UnaryOp, ValueId,
};
pub use print::Printer;
pub use rewrite::Composite;
pub use types::{ElementType, TensorType};
