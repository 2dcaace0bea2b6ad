//! A program over tensors, written with the typed builder, and run without a compiler: `graph`.
use std::error::Error;

use mlxcel_portable::eval::{Program, Tensor};
use mlxcel_stablehlo::{ElementType, Module, TensorType};

fn main() -> Result<(), Box<dyn Error>> {
    let module = Module::of_function("nearest", "main", |b| {
        let x = b.argument("x", TensorType::new(ElementType::F32, [1, 2]))?;
        let places = b.argument("places", TensorType::new(ElementType::F32, [3, 2]))?;
        let scores = b.linear(x, places, None, ElementType::F32)?;
        let (score, best) = b.argmax(scores, 1)?;
        Ok(vec![score, best])
    })?;
    println!("{module}");

    let x = Tensor::from_slice([1, 2], &[1.0f32, 2.0])?;
    let places = Tensor::from_slice([3, 2], &[0.0f32, 1.0, 3.0, 3.0, 1.0, 0.0])?;
    let results = Program::plan(&module, "main")?.run(vec![(&x).into(), (&places).into()])?;
    assert_eq!(results[0].as_slice(), Some(&[9.0f32][..]));
    assert_eq!(results[1].as_slice(), Some(&[1i32][..]));
    println!("place {:?} is the nearest", results[1].as_slice::<i32>());
    Ok(())
}
