//! Running a function on tensors, and numbers to run it on.

use half::bf16;
use mlxcel_portable::eval::{Input, Program, Tensor};
use mlxcel_stablehlo::{Builder, Element, Module, Result, Value};

/// Runs what `body` makes of `arguments`.
pub(crate) fn run<F>(arguments: &[Tensor], body: F) -> Vec<Tensor>
where
    F: for<'f> FnOnce(&mut Builder<'f>, &[Value<'f>]) -> Result<Vec<Value<'f>>>,
{
    let module = Module::of_function("layers", "main", |b| {
        let mut values = Vec::new();
        for (i, argument) in arguments.iter().enumerate() {
            values.push(b.argument(format!("x{i}"), argument.ty().clone())?);
        }
        body(b, &values)
    })
    .unwrap();
    let program = Program::plan(&module, "main").unwrap();
    program.run(arguments.iter().map(Input::from).collect()).unwrap()
}

pub(crate) fn tensor<T: Element>(shape: &[usize], elements: &[T]) -> Tensor {
    Tensor::from_slice(shape.to_vec(), elements).unwrap()
}

pub(crate) fn halves(numbers: &[f32]) -> Vec<bf16> {
    numbers.iter().map(|&x| bf16::from_f32(x)).collect()
}

/// Numbers between -1 and 1 that look like nothing in particular.
pub(crate) fn numbers(count: usize, mut state: u32) -> Vec<f32> {
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// A stream of numbers without a pattern.
pub(crate) fn random(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state >> 16
    }
}
