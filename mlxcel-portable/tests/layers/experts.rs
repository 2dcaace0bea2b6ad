//! Experts and the choice of them, against loops over the same numbers.

use half::bf16;
use mlxcel_graph::layers::{self, expert_block};
use mlxcel_stablehlo::ElementType;

use crate::layers::support::{halves, random, run, tensor};

use ElementType::{BF16, F32, I32};

/// Numbers of few bits, which every floating-point type holds exactly, and whose products have exact sums in
/// f32.
fn small(count: usize, seed: u64) -> Vec<f32> {
    let mut next = random(seed);
    (0..count).map(|_| (next() % 65) as f32 / 32.0 - 1.0).collect()
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
            layers::expert_linear(b, v[0], v[1], v[2], None, F32)?,
            layers::expert_linear(b, v[0], v[1], v[2], Some(v[3]), BF16)?,
            layers::expert_linear(b, v[4], v[1], v[2], Some(v[3]), F32)?,
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
        let (wide, narrow) = (layers::top_k(b, v[0], 4)?, layers::top_k(b, v[1], 4)?);
        Ok(vec![wide.0, wide.1, narrow.0, narrow.1])
    });
    assert_eq!(results[0].as_slice::<f32>().unwrap(), values);
    assert_eq!(results[1].as_slice::<i32>().unwrap(), indices.as_flattened());
    assert_eq!(results[2].as_slice::<bf16>().unwrap(), halves(&values));
    assert_eq!(results[3].as_slice::<i32>().unwrap(), indices.as_flattened());
    // Indices chosen among NaN values are still valid.
    let results = run(&[tensor(&[1, 5], &[f32::NAN, 1.0, f32::NAN, 2.0, f32::NAN])], |b, v| {
        Ok(vec![layers::top_k(b, v[0], 3)?.1])
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
                let groups = layers::group_by_expert(b, v[0], experts, block)?;
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
