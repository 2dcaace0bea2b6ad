//! A value of one function is not one of the next.

use mlxcel_stablehlo::{ElementType, ModuleBuilder, TensorType};

fn main() {
    let mut module = ModuleBuilder::new("demo");
    let mut kept = None;
    let _ = module.function("first", |b| {
        let x = b.argument("x", TensorType::scalar(ElementType::F32))?;
        kept = Some(x);
        Ok(vec![x])
    });
}
