//! Two builders that are at hand at once do not mix.

use mlxcel_stablehlo::{Builder, Result, Value};

fn mixed<'f, 'g>(b: &mut Builder<'f>, mine: Value<'f>, other: Value<'g>) -> Result<Value<'f>> {
    b.add(mine, other)
}

fn main() {}
