//! StableHLO programs authored in Rust.

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
pub use literal::{Element, Literal};
pub use module::{
    Argument, Attribute, BinaryOp, Block, Comparison, DotDimensions, Function, GatherDimensions, Module, Op,
    OpKind, Reduction, ScatterDimensions, ScatterUpdate, UnaryOp, ValueId,
};
pub use print::Printer;
pub use rewrite::Composite;
pub use types::{ElementType, TensorType};
