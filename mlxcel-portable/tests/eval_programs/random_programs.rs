//! Random programs of every operation: each operation by itself, and joined with others.

use mlxcel_portable::eval::{Input, Program, RunOptions, Tensor, Workers};
use mlxcel_stablehlo::{ElementType, Module, Op, OpKind, TensorType};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use super::arithmetic::V;
use super::programs::random::{Extent, program};
use super::reference::{Array, Reference};
use super::support::noise;

/// An input of mostly small numbers, so that most sums are exact.
fn input(ty: &TensorType, noise: &mut impl FnMut() -> u64) -> Tensor {
    let mut array = Array::from_bytes(ty, &vec![0; ty.bytes()]);
    for value in &mut array.data {
        let draw = noise();
        *value = match ty.element {
            ElementType::I1 => V::I((draw % 2) as i64),
            element if element.is_float() => V::F(match draw % 32 {
                0 => f32::NAN,
                1 => f32::INFINITY,
                2 => -0.0,
                _ => (draw / 32 % 17) as f32 * 0.5 - 4.0,
            }),
            element if element.is_signed() => V::I((draw % 15) as i64 - 7),
            _ => V::I((draw % 16) as i64),
        };
    }
    Tensor::from_bytes(ty.clone(), &array.to_bytes()).unwrap()
}

fn inputs(module: &Module, seed: u64) -> Vec<Tensor> {
    let main = module.function("main").unwrap();
    let mut noise = noise(seed);
    main.arguments.iter().map(|argument| input(main.value_type(argument.value), &mut noise)).collect()
}

/// Whether a computed element is right: integers exactly, floats within a few units in the last place of
/// their type, and sums of large terms within a few units of those.
fn close(actual: V, expected: V, element: ElementType, slack: f32, terms: f32) -> bool {
    match (actual, expected) {
        (V::F(a), V::F(b)) => {
            let unit = match element {
                ElementType::F32 => f32::EPSILON,
                ElementType::F16 => 1.0 / 1024.0,
                _ => 1.0 / 128.0,
            };
            let allowed = slack * (unit * b.abs().max(1.0) + f32::EPSILON * terms);
            a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= allowed
        }
        _ => actual == expected,
    }
}

/// A bound of the terms that the operation adds up.
fn terms(op: &Op, operands: &[&Array]) -> f32 {
    let largest = |x: &Array| {
        let magnitude = |value: &V| if let V::F(x) = value { x.abs() } else { 0.0 };
        x.data.iter().map(magnitude).fold(0.0, f32::max)
    };
    match op.kind {
        OpKind::Reduce { .. } => largest(operands[0]) * operands[0].data.len() as f32,
        OpKind::DotGeneral { .. } => {
            largest(operands[0]) * largest(operands[1]) * operands[0].data.len() as f32
        }
        _ => 0.0,
    }
}

/// A random program; custom calls, whose meaning is unknown, return their operands.
fn evaluable(decisions: &[u32]) -> Module {
    let mut module = program(decisions, Extent::Whole);
    for op in module.functions.iter_mut().flat_map(|function| &mut function.body.ops) {
        if matches!(op.kind, OpKind::CustomCall { .. }) {
            op.kind = OpKind::Reshape;
        }
    }
    module
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, rng_seed: RngSeed::Fixed(2), ..ProptestConfig::default() })]

    /// Each operation gives what the plain evaluator makes of the same operands.
    #[test]
    fn operations_agree_with_the_reference(decisions in prop::collection::vec(any::<u32>(), 1..300), seed in any::<u64>()) {
        let module = evaluable(&decisions);
        let main = module.function("main").unwrap();
        let inputs = inputs(&module, seed);
        let program = Program::plan(&module, "main").unwrap();
        let results = program.run(inputs.iter().map(Input::from).collect()).unwrap();
        let mut reference = Reference::new(&module, main);
        for (value, tensor) in main.body.results.iter().zip(&results) {
            prop_assert_eq!(tensor.ty(), main.value_type(*value));
            reference.values[value.index()] = Some(Array::of(tensor));
        }
        for op in &main.body.ops {
            let operands = op.operands.iter().map(|value| reference.values[value.index()].as_ref());
            let Some(operands) = operands.collect::<Option<Vec<_>>>() else { continue };
            let terms = terms(op, &operands);
            let expected = reference.op(op);
            for (value, expected) in op.results.iter().zip(expected) {
                let Some(actual) = &reference.values[value.index()] else { continue };
                for (i, (&a, &e)) in actual.data.iter().zip(&expected.data).enumerate() {
                    let element = actual.ty.element;
                    prop_assert!(close(a, e, element, 16.0, terms), "{:?} of {}: element {i} is {a:?}, not {e:?}", op.kind, actual.ty);
                }
            }
        }
    }

    /// What is not returned is joined with what reads it, moved, and updated in place: the results stay the same, with
    /// any number of threads, and with donated inputs.
    #[test]
    fn results_do_not_depend_on_other_outputs(
        decisions in prop::collection::vec(any::<u32>(), 1..300),
        seed in any::<u64>(),
        chosen in prop::collection::vec(any::<prop::sample::Index>(), 1..4),
    ) {
        let mut module = evaluable(&decisions);
        let inputs = inputs(&module, seed);
        let all = Program::plan(&module, "main").unwrap().run(inputs.iter().map(Input::from).collect()).unwrap();
        let count = all.len();
        let chosen: Vec<usize> = chosen.iter().map(|index| index.index(count)).collect();
        let main = module.functions.iter_mut().find(|function| function.name == "main").unwrap();
        main.body.results = chosen.iter().map(|&i| main.body.results[i]).collect();
        let program = Program::plan(&module, "main").unwrap();
        let workers = Workers::new(3).unwrap();
        let options = RunOptions { workers: Some(&workers), ..RunOptions::default() };
        let owned = program.run_with(inputs.iter().cloned().map(Input::Owned).collect(), &options).unwrap();
        let borrowed = program.run(inputs.iter().map(Input::from).collect()).unwrap();
        for ((&i, owned), borrowed) in chosen.iter().zip(&owned).zip(&borrowed) {
            prop_assert_eq!(owned.bytes(), borrowed.bytes());
            let (actual, expected) = (Array::of(owned), Array::of(&all[i]));
            for (j, (&a, &e)) in actual.data.iter().zip(&expected.data).enumerate() {
                let ty = &actual.ty;
                prop_assert!(close(a, e, ty.element, 64.0, 0.0), "result {i}, {ty}: element {j} is {a:?}, not {e:?}");
            }
        }
    }
}
