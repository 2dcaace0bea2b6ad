//! Short ways to write and run a program of one function.

use bytemuck::CheckedBitPattern;
use mlxcel_portable::eval::{Input, Program, RunOptions, RunStats, Tensor, Workers};
use mlxcel_stablehlo::{Builder, Element, Module, Result, TensorType, Value};

/// Plans a function over arguments `x.0`, `x.1`, … of the given types.
pub(crate) fn plan<F>(types: &[TensorType], body: F) -> Program
where
    F: for<'f> FnOnce(&mut Builder<'f>, &[Value<'f>]) -> Result<Vec<Value<'f>>>,
{
    let module = Module::of_function("test", "main", |b| {
        let mut arguments = Vec::new();
        for (i, ty) in types.iter().enumerate() {
            arguments.push(b.argument(format!("x.{i}"), ty.clone())?);
        }
        body(b, &arguments)
    })
    .unwrap();
    Program::plan(&module, "main").unwrap()
}

/// Runs a function on tensors.
pub(crate) fn eval<F>(inputs: &[Tensor], body: F) -> Vec<Tensor>
where
    F: for<'f> FnOnce(&mut Builder<'f>, &[Value<'f>]) -> Result<Vec<Value<'f>>>,
{
    let types: Vec<TensorType> = inputs.iter().map(|input| input.ty().clone()).collect();
    plan(&types, body).run(inputs.iter().map(Input::from).collect()).unwrap()
}

/// Runs a function of one result on tensors and answers its elements.
pub(crate) fn elements<T, F>(inputs: &[Tensor], body: F) -> Vec<T>
where
    T: Element + CheckedBitPattern,
    F: for<'f> FnOnce(&mut Builder<'f>, &[Value<'f>]) -> Result<Value<'f>>,
{
    let results = eval(inputs, |b, x| Ok(vec![body(b, x)?]));
    results[0].as_slice::<T>().unwrap().to_vec()
}

/// Runs a program on these threads and answers its results, and what it counted.
pub(crate) fn measured(program: &Program, inputs: Vec<Input<'_>>, threads: usize) -> (Vec<Tensor>, RunStats) {
    let (stats, workers) = (RunStats::default(), Workers::new(threads).unwrap());
    let options = RunOptions { workers: Some(&workers), stats: Some(&stats), ..RunOptions::default() };
    let results = program.run_with(inputs, &options).unwrap();
    (results, stats)
}

/// The elements of a tensor, converted to `T`.
pub(crate) fn converted<T: Element + CheckedBitPattern>(x: &Tensor) -> Vec<T> {
    elements(std::slice::from_ref(x), |b, v| b.convert(v[0], T::TYPE))
}

pub(crate) fn tensor<T: Element>(shape: &[usize], elements: &[T]) -> Tensor {
    Tensor::from_slice(shape, elements).unwrap()
}

/// `0, 1, 2, …` as floats.
pub(crate) fn counted(shape: &[usize]) -> Tensor {
    let elements: Vec<f32> = (0..shape.iter().product()).map(|i: usize| i as f32).collect();
    tensor(shape, &elements)
}

/// Pseudo-random bytes, the same for the same seed.
pub(crate) fn noise(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }
}

/// Floats from -1 to 1.
pub(crate) fn noisy(shape: &[usize], seed: u64) -> Tensor {
    let mut noise = noise(seed);
    let count = shape.iter().product();
    let elements: Vec<f32> = (0..count).map(|_: usize| (noise() % 2001) as f32 / 1000.0 - 1.0).collect();
    tensor(shape, &elements)
}
