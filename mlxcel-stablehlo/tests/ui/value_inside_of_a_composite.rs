//! A decomposition sees its own arguments only.

use mlxcel_stablehlo::{ElementType, ModuleBuilder, TensorType};

fn main() {
    let mut module = ModuleBuilder::new("demo");
    let _ = module.function("main", |b| {
        let x = b.argument("x", TensorType::scalar(ElementType::F32))?;
        b.composite("demo.twice", &[x], &[], |inner, _| Ok(vec![inner.add(x, x)?]))
    });
}
