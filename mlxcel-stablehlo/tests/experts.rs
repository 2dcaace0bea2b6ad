//! Experts and the choice of them, against loops over the same numbers.

#![cfg(feature = "eval")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by them")]

use half::bf16;
use mlxcel_stablehlo::eval::{Input, Program, Tensor};
use mlxcel_stablehlo::{
    Builder, Element, ElementType, ErrorKind, ModuleBuilder, Result, TensorType, Value, expert_block,
};

use ElementType::{BF16, F32, I32, U32};

fn run<F>(arguments: &[Tensor], body: F) -> Vec<Tensor>
where
    F: for<'f> FnOnce(&mut Builder<'f>, &[Value<'f>]) -> Result<Vec<Value<'f>>>,
{
    let mut module = ModuleBuilder::new("experts");
    module
        .function("main", |b| {
            let mut values = Vec::new();
            for (i, argument) in arguments.iter().enumerate() {
                values.push(b.argument(format!("x{i}"), argument.ty().clone())?);
            }
            body(b, &values)
        })
        .unwrap();
    let program = Program::plan(&module.finish(), "main").unwrap();
    program.run(arguments.iter().cloned().map(Input::Owned).collect()).unwrap()
}

fn tensor<T: Element>(shape: &[usize], elements: &[T]) -> Tensor {
    Tensor::from_slice(shape.to_vec(), elements).unwrap()
}

/// A stream of numbers without a pattern.
fn random(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state >> 16
    }
}

/// Numbers of few bits, which every floating-point type holds exactly, and whose products have exact sums in f32.
fn small(count: usize, seed: u64) -> Vec<f32> {
    let mut next = random(seed);
    (0..count).map(|_| (next() % 65) as f32 / 32.0 - 1.0).collect()
}

fn halves(numbers: &[f32]) -> Vec<bf16> {
    numbers.iter().map(|&x| bf16::from_f32(x)).collect()
}

/// Blocks of `x` times the matrices of their experts, plus their biases.
fn wanted(
    x: &[f32],
    weight: &[f32],
    bias: Option<&[f32]>,
    experts: &[i32],
    [block, outputs, inputs]: [usize; 3],
) -> Vec<f32> {
    let mut results = Vec::new();
    for (r, &expert) in experts.iter().enumerate() {
        for row in x[r * block * inputs % x.len()..].chunks(inputs).take(block) {
            for n in 0..outputs {
                let Ok(expert) = usize::try_from(expert) else {
                    results.push(0.0);
                    continue;
                };
                let output = expert * outputs + n;
                let products = row.iter().zip(&weight[output * inputs..]).map(|(x, w)| x * w);
                results.push(products.sum::<f32>() + bias.map_or(0.0, |bias| bias[output]));
            }
        }
    }
    results
}

#[test]
fn each_block_uses_its_experts_matrix() {
    let (count, block, outputs, inputs) = (4, 3, 5, 7);
    let experts = [2, -1, 0, 2, 3];
    let sizes = [block, outputs, inputs];
    let (x, weight) = (small(experts.len() * block * inputs, 1), small(count * outputs * inputs, 2));
    let bias = small(count * outputs, 3);
    let arguments = [
        tensor(&[experts.len(), block, inputs], &x),
        tensor(&[count, outputs, inputs], &halves(&weight)),
        tensor(&[experts.len()], &experts),
        tensor(&[count, outputs], &bias),
        tensor(&[1, block, inputs], &halves(&x[..block * inputs])),
    ];
    let results = run(&arguments, |b, v| {
        Ok(vec![
            b.expert_linear(v[0], v[1], v[2], None, F32)?,
            b.expert_linear(v[0], v[1], v[2], Some(v[3]), BF16)?,
            b.expert_linear(v[4], v[1], v[2], Some(v[3]), F32)?,
        ])
    });
    assert_eq!(results[0].ty().shape, [experts.len(), block, outputs]);
    assert_eq!(results[0].as_slice::<f32>().unwrap(), wanted(&x, &weight, None, &experts, sizes));
    let biased = wanted(&x, &weight, Some(&bias), &experts, sizes);
    assert_eq!(results[1].as_slice::<bf16>().unwrap(), halves(&biased));
    let shared = wanted(&x[..block * inputs], &weight, Some(&bias), &experts, sizes);
    assert_eq!(results[2].as_slice::<f32>().unwrap(), shared);
}

#[test]
fn top_k_is_sorted_and_ties_go_to_the_lowest_index() {
    let x = [
        [0.5, -1.0, 2.0, 0.25, 2.0, -3.0],
        [-0.0, 0.0, f32::NEG_INFINITY, -0.5, 0.0, f32::INFINITY],
        [7.0, 7.0, 7.0, 7.0, 7.0, 7.0],
    ];
    let indices = [[2, 4, 0, 3], [5, 0, 1, 4], [0, 1, 2, 3]];
    let values: Vec<f32> =
        x.iter().zip(indices).flat_map(|(x, indices)| indices.map(|index: i32| x[index as usize])).collect();
    let x = x.as_flattened();
    let results = run(&[tensor(&[3, 6], x), tensor(&[3, 6], &halves(x))], |b, v| {
        let (wide, narrow) = (b.top_k(v[0], 4)?, b.top_k(v[1], 4)?);
        Ok(vec![wide.0, wide.1, narrow.0, narrow.1])
    });
    assert_eq!(results[0].as_slice::<f32>().unwrap(), values);
    assert_eq!(results[1].as_slice::<i32>().unwrap(), indices.as_flattened());
    assert_eq!(results[2].as_slice::<bf16>().unwrap(), halves(&values));
    assert_eq!(results[3].as_slice::<i32>().unwrap(), indices.as_flattened());
    // Indices chosen among NaN values are still valid.
    let results = run(&[tensor(&[1, 5], &[f32::NAN, 1.0, f32::NAN, 2.0, f32::NAN])], |b, v| {
        Ok(vec![b.top_k(v[0], 3)?.1])
    });
    assert!(results[0].as_slice::<i32>().unwrap().iter().all(|index| (0..5).contains(index)));
}

/// The `choices` experts of each token: distinct and without a pattern, or the same ones for all tokens.
fn choose(tokens: usize, choices: usize, experts: usize, alike: bool) -> Vec<i32> {
    let mut next = random((tokens * choices + experts) as u64);
    let mut ids = Vec::new();
    for _ in 0..tokens {
        let mut left: Vec<i32> = (0..experts as i32).collect();
        for _ in 0..choices {
            ids.push(left.remove(if alike { left.len() - 1 } else { next() as usize % left.len() }));
        }
    }
    ids
}

#[test]
fn every_pair_has_a_slot_in_a_block_of_its_expert() {
    for (tokens, choices, experts, block) in
        [(1, 3, 8, 1), (4, 2, 5, 1), (2, 2, 64, 2), (13, 3, 7, 4), (16, 8, 8, 16), (3, 1, 1, 2), (9, 2, 4, 3)]
    {
        for alike in [false, true] {
            let ids = choose(tokens, choices, experts, alike);
            let results = run(&[tensor(&[tokens, choices], &ids)], |b, v| {
                let groups = b.group_by_expert(v[0], experts, block)?;
                let valid = b.convert(groups.valid, I32)?;
                Ok(vec![groups.experts, groups.pairs, valid, groups.slots])
            });
            let [of_block, pairs, valid, slots] = [0, 1, 2, 3].map(|i| results[i].as_slice::<i32>().unwrap());
            let described = format!("{tokens}, {choices} of {experts}, {block}: {ids:?}");
            assert_eq!(pairs.len(), of_block.len() * block, "{described}");
            for (pair, (&id, &slot)) in ids.iter().zip(slots).enumerate() {
                let slot = slot as usize;
                assert_eq!(of_block[slot / block], id, "{described}");
                assert_eq!((pairs[slot], valid[slot]), (pair as i32, 1), "{described}");
            }
            assert_eq!(
                valid.iter().sum::<i32>() as usize,
                ids.len(),
                "no other slot has a pair: {described}"
            );
            let count = |id: &i32| ids.iter().filter(|&other| other == id).count();
            let needed: usize = (0..experts as i32).map(|id| count(&id).div_ceil(block)).sum();
            let used = of_block.iter().filter(|&&id| id >= 0).count();
            assert_eq!(used, needed, "no block is used without need: {described}");
            if block > 1 {
                assert!(of_block[..used].is_sorted(), "{described}: {of_block:?}");
                assert!(of_block[used..].iter().all(|&id| id == -1), "{described}: {of_block:?}");
            }
        }
    }
}

#[test]
fn blocks_grow_with_the_rows_of_an_expert() {
    assert_eq!(expert_block(1, 8, 64), 1);
    for (tokens, wanted) in [(2, 2), (8, 2), (16, 4), (32, 8), (64, 16), (512, 16)] {
        assert_eq!(expert_block(tokens, 8, 64), wanted, "{tokens}");
    }
    assert_eq!(expert_block(usize::MAX, 8, 0), 16);
}

#[test]
fn mismatched_operands_are_rejected_by_name() {
    let sizes: [(&str, ElementType, &[usize]); 9] = [
        ("x", F32, &[3, 2, 64]),
        ("weight", F32, &[4, 5, 64]),
        ("experts", I32, &[3]),
        ("words", U32, &[4, 5, 8]),
        ("groups", BF16, &[4, 5, 2]),
        ("scores", F32, &[3, 4]),
        ("ids", I32, &[3, 2]),
        ("bias", F32, &[4, 5]),
        ("words of one", U32, &[5, 8]),
    ];
    type Misuse = for<'f> fn(&mut Builder<'f>, &[Value<'f>]) -> Result<Value<'f>>;
    let misuses: [(ErrorKind, &str, Misuse); 11] = [
        (ErrorKind::Element, "weight must be of floats", |b, v| b.expert_linear(v[0], v[3], v[2], None, F32)),
        (ErrorKind::Shape, "weight must be [E, N, K]", |b, v| b.expert_linear(v[0], v[5], v[2], None, F32)),
        (ErrorKind::Element, "the result (i32)", |b, v| b.expert_linear(v[0], v[1], v[2], None, I32)),
        (ErrorKind::Element, "experts must be of i32", |b, v| b.expert_linear(v[0], v[1], v[0], None, F32)),
        (ErrorKind::Shape, "experts must be [R]", |b, v| b.expert_linear(v[0], v[1], v[6], None, F32)),
        (ErrorKind::Shape, "x must be [R, B, K]", |b, v| b.expert_linear(v[1], v[1], v[2], None, F32)),
        (ErrorKind::Shape, "bias must be [E, N]", |b, v| b.expert_linear(v[0], v[1], v[2], Some(v[5]), F32)),
        (ErrorKind::Attribute, "k is 5, and rows have 4", |b, v| Ok(b.top_k(v[5], 5)?.0)),
        (ErrorKind::Element, "x must be of floats", |b, v| Ok(b.top_k(v[6], 1)?.0)),
        (ErrorKind::Element, "ids must be of i32", |b, v| Ok(b.group_by_expert(v[5], 4, 2)?.pairs)),
        (ErrorKind::Attribute, "at least one expert", |b, v| Ok(b.group_by_expert(v[6], 0, 2)?.pairs)),
    ];
    for (kind, says, misuse) in misuses {
        let error = ModuleBuilder::new("misuse")
            .function("main", |b| {
                let mut v = Vec::new();
                for (name, element, shape) in sizes {
                    v.push(b.argument(name, TensorType::new(element, shape))?);
                }
                Ok(vec![misuse(b, &v)?])
            })
            .unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(says), "{error}");
    }
}
