//! A program over tensors, written in Rust and printed as StableHLO for any compiler that reads it.
#![forbid(unsafe_code)]

use std::error::Error;
use std::io::{Write, stdout};

use mlxcel_stablehlo::{ElementType, Module, TensorType};

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    // The scores of four tokens among a thousand: x · embeddingᵀ, and the index of the largest.
    let module = Module::of_function("scores", "best", |b| {
        let x = b.argument("x", TensorType::new(ElementType::F32, [4, 64]))?;
        let embedding = b.argument("embedding", TensorType::new(ElementType::BF16, [1000, 64]))?;
        let scores = b.linear(x, embedding, None, ElementType::F32)?;
        let (_, best) = b.argmax(scores, 1)?;
        Ok(vec![best])
    })?;
    writeln!(stdout(), "{module}")?;

    // Every operation is checked when it is made: this one has shapes that do not fit.
    let wrong = Module::of_function("wrong", "wrong", |b| {
        let x = b.argument("x", TensorType::new(ElementType::F32, [4, 63]))?;
        let weight = b.argument("weight", TensorType::new(ElementType::F32, [1000, 64]))?;
        Ok(vec![b.linear(x, weight, None, ElementType::F32)?])
    });
    match wrong {
        Err(error) => writeln!(stdout(), "{error}")?,
        Ok(_) => writeln!(stdout(), "it was accepted")?,
    }
    Ok(())
}
