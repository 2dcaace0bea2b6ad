//! Latent attention, and pairs of neighbours for rotary embedding, against plain computations.

use std::ops::Range;

use mlxcel_graph::cached::{LatentAttention, LatentAttentionOperands, latent_attention};
use mlxcel_graph::layers;
use mlxcel_portable::eval::Tensor;
use mlxcel_stablehlo::{ElementType, Module, TensorType};

use crate::layers::support::{Rows, near, numbers, rotate, run, run_cached, zeros};

use ElementType::{BF16, F32, I32};

const HEADS: usize = 3;
const RANK: usize = 5;
const PAIRS: usize = 2;
const WIDTH: usize = RANK + 2 * PAIRS;
const LENGTH: usize = 12;
const SCALE: f32 = 0.8;

/// Tokens of a sequence, fed as rows to the caches.
fn step(rows: &[Range<usize>], caches: Vec<Tensor>) -> (Vec<f32>, Vec<Tensor>) {
    let rows = Rows(rows);
    let part =
        |shape: &[usize], seed| rows.part(shape, &numbers(LENGTH * shape.iter().product::<usize>(), seed));
    let arguments =
        [part(&[HEADS, WIDTH], 1), part(&[WIDTH], 2), part(&[PAIRS], 3), part(&[PAIRS], 4), rows.positions()];
    run_cached(&arguments, caches, |b, values| {
        let [query, entry, cos, sin, positions, ref caches @ ..] = *values else { unreachable!() };
        let operands = LatentAttentionOperands { query, entry, cos, sin, positions, caches, selected: &[] };
        let what = LatentAttention { rows: &rows.counts(), layer: 1, scale: SCALE, out: F32 };
        latent_attention(b, &operands, &what)
    })
}

fn rotated(entry: &[f32], token: usize) -> Vec<f64> {
    let mut entry: Vec<f64> = entry.iter().map(|&value| f64::from(value)).collect();
    let angles = [3, 4].map(|seed| numbers(LENGTH * PAIRS, seed)[token * PAIRS..][..PAIRS].to_vec());
    rotate(&mut entry[RANK..], &angles);
    entry
}

/// What the tokens get, by the formula.
fn plain(tokens: Range<usize>) -> Vec<f32> {
    let (queries, entries) = (numbers(LENGTH * HEADS * WIDTH, 1), numbers(LENGTH * WIDTH, 2));
    let mut out = Vec::new();
    for token in tokens {
        let seen: Vec<_> =
            (0..=token).map(|at| rotated(&entries[at * WIDTH..(at + 1) * WIDTH], at)).collect();
        for head in 0..HEADS {
            let start = (token * HEADS + head) * WIDTH;
            let query = rotated(&queries[start..start + WIDTH], token);
            let product = |entry: &Vec<f64>| query.iter().zip(entry).map(|(q, k)| q * k).sum::<f64>();
            let powers: Vec<f64> =
                seen.iter().map(|entry| (product(entry) * f64::from(SCALE)).exp()).collect();
            let total: f64 = powers.iter().sum();
            out.extend((0..RANK).map(|i| {
                (powers.iter().zip(&seen).map(|(power, entry)| power * entry[i]).sum::<f64>() / total) as f32
            }));
        }
    }
    out
}

fn empty(element: ElementType) -> Tensor {
    zeros(element, &[2, LENGTH, WIDTH])
}

#[test]
fn latent_attention_matches_its_formula_for_chunks_and_batches() {
    for (element, tolerance) in [(F32, 2e-6), (BF16, 2e-2)] {
        let (first, one) = step(&[0..4], vec![empty(element)]);
        near(&first, &plain(0..4), tolerance);
        let (other, two) = step(&[0..7], vec![empty(element)]);
        near(&other, &plain(0..7), tolerance);
        let (both, caches) = step(&[4..7, 7..8], [one, two].concat());
        near(&both, &[plain(4..7), plain(7..8)].concat(), tolerance);
        let bytes = caches[0].bytes();
        assert!(bytes[..bytes.len() / 2].iter().all(|&byte| byte == 0), "layer 0 is as it was");
    }
}

#[test]
fn a_latent_cache_of_the_wrong_shape_is_rejected() {
    for cache in [[1, LENGTH, WIDTH], [2, 2, WIDTH], [2, LENGTH, WIDTH - 1]] {
        let made = Module::of_function("test", "main", |b| {
            let query = b.argument("q", TensorType::new(F32, [3, HEADS, WIDTH]))?;
            let entry = b.argument("e", TensorType::new(F32, [3, WIDTH]))?;
            let cos = b.argument("cos", TensorType::new(F32, [3, PAIRS]))?;
            let positions = b.argument("positions", TensorType::new(I32, [1]))?;
            let cache = b.argument("kv", TensorType::new(F32, cache))?;
            let operands = LatentAttentionOperands {
                query,
                entry,
                cos,
                sin: cos,
                positions,
                caches: &[cache],
                selected: &[],
            };
            let what = LatentAttention { rows: &[3], layer: 1, scale: 1.0, out: F32 };
            Ok(vec![latent_attention(b, &operands, &what)?.0])
        });
        assert!(made.unwrap_err().to_string().contains("room for 3"));
    }
}

#[test]
fn interleaved_pairs_become_rope_pairs() {
    let x: Vec<f32> = (0..14).map(|i| i as f32).collect();
    let x = Tensor::from_slice([1, 2, 7], &x).unwrap();
    let results = run(&[x], |b, values| {
        Ok(vec![layers::deinterleave(b, values[0], 6)?, layers::deinterleave(b, values[0], 0)?])
    });
    let wanted = [0, 2, 4, 1, 3, 5, 6, 7, 9, 11, 8, 10, 12, 13].map(|i| i as f32);
    assert_eq!(results[0].as_slice::<f32>().unwrap(), wanted);
    assert_eq!(results[1].as_slice::<f32>().unwrap()[..3], [0.0, 1.0, 2.0]);
    for (shape, dim) in [(vec![1, 2, 7], 3), (vec![1, 2, 7], 8), (vec![2, 7], 2)] {
        let made = Module::of_function("test", "main", |b| {
            let x = b.argument("x", TensorType::new(F32, shape))?;
            Ok(vec![layers::deinterleave(b, x, dim)?])
        });
        assert!(made.is_err());
    }
}
