//! StableHLO programs authored in Rust.
//!
//! A language model's network is a program over tensors. Here it is written in Rust, op by op, and comes out as
//! [StableHLO](https://openxla.org/stablehlo), which compilers such as IREE and XLA read. The alternative is to trace the
//! network in Python and ship the exported file; then the shapes, the KV cache layout and the batching are what the export
//! froze, and a user who wants another capacity needs the Python environment back. A builder in the application makes the
//! program that this checkpoint, this device and this batch call for, when they are known.
//!
//! What a program made by hand loses against a traced one is that nobody has run it yet. So the [`Builder`] checks: every
//! operation's types are inferred when it is made, by the pure functions of [`infer`], and one that cannot be is an
//! [`Error`] at that line, which names the operation, the operand and all their types. What has been built is accepted by
//! stock tools. Nothing is broadcast, promoted or guessed; [helpers](#helpers) do that by name.
//!
//! The finished [`Module`] is data. It prints as MLIR text (`to_string()`), it can be walked and checked
//! ([`Module::verify`]), and it can be rewritten before it is printed ([`Module::rewrite_composites`]), which is how an
//! engine swaps in kernels of its own.
//!
//! ```
//! use mlxcel_stablehlo::{ElementType, ModuleBuilder, Result, TensorType};
//!
//! fn main() -> Result<()> {
//!     let mut module = ModuleBuilder::new("tiny");
//!     // One step of a model that is an embedding, a norm and a head: token ids in, the next ids out.
//!     module.function("step", |b| {
//!         let tokens = b.argument("tokens", TensorType::new(ElementType::I32, [4]))?;
//!         let embedding = b.argument("embedding", TensorType::new(ElementType::BF16, [1000, 64]))?;
//!         let norm = b.argument("norm", TensorType::new(ElementType::BF16, [64]))?;
//!         let x = b.take(embedding, tokens)?;
//!         let x = b.rms_norm(x, norm, 1e-5)?;
//!         let logits = b.linear(x, embedding, None, ElementType::F32)?;
//!         let (_, next) = b.argmax(logits, 1)?;
//!         Ok(vec![next])
//!     })?;
//!     let module = module.finish();
//!     let text = module.to_string();
//!     assert!(text.contains("func.func public @step(%tokens: tensor<4xi32>"));
//!     assert!(text.contains("stablehlo.composite \"mlxcel.linear\""));
//!     Ok(())
//! }
//! ```
//!
//! # Values
//! A [`Value`] belongs to the function in whose closure it was made: its lifetime is that function's mark, so that a value of
//! another function does not compile. Inside of regions (the body of a loop, the comparator of a sort) values of the enclosing
//! blocks can be read; what is made there cannot leave, and using it outside is an [`Error`].
//!
//! # Helpers
//! Models are written in [`Builder::linear`] and [`embedding`](Builder::embedding), which with
//! [`group_by_expert`](Builder::group_by_expert) have a [form](Builder::expert_linear) for experts,
//! [`rms_norm`](Builder::rms_norm), [`attention`](Builder::attention),
//! [`rope`](Builder::rope), [`softmax`](Builder::softmax), [`argmax`](Builder::argmax) and [`take`](Builder::take). Those
//! up to attention make composites ([`composites`] has their names): one operation that says what is meant, with a
//! decomposition into plain operations that says exactly what it computes. A compiler that knows nothing of them compiles the
//! decomposition.
//!
//! # Limits
//! Shapes are static. The element types are those of [`ElementType`]: no complex numbers, no 8-bit floats, no quantized types
//! (packed weights are integers, unpacked by operations). Operations with effects, collectives and convolutions are missing.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

pub mod builder;
pub mod composites;
pub mod error;
#[cfg(feature = "eval")]
pub mod eval;
mod helpers;
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
pub use helpers::attention::{AttentionScores, MaskedOperands};
pub use helpers::recurrent::RecurrentRows;
pub use helpers::routing::{ExpertGroups, expert_block};
pub use literal::{Element, Literal};
pub use module::{
    Argument, Attribute, BinaryOp, Block, Comparison, DotDimensions, Function, GatherDimensions, Module, Op,
    OpKind, Reduction, ScatterDimensions, ScatterUpdate, UnaryOp, ValueId,
};
pub use print::Printer;
pub use rewrite::Composite;
pub use types::{ElementType, TensorType};
