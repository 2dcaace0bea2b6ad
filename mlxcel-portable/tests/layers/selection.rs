//! Selection of positions by the scores of an indexer, against sorting.

use std::ops::Range;

use mlxcel_graph::cached::{PositionSelection, PositionSelectionOperands, Selected, select_positions};
use mlxcel_portable::eval::Tensor;
use mlxcel_stablehlo::{ElementType, Module, TensorType};

use crate::layers::support::{Rows, numbers, run, zeros};

use ElementType::{F32, I32};

const HEADS: usize = 2;
const WIDTH: usize = 3;
const LENGTH: usize = 40;

/// Numbers of which many are equal, and whose products are exact.
fn coarse(count: usize, seed: u32) -> Vec<f32> {
    numbers(count, seed).into_iter().map(|number| (number * 2.0).round() / 2.0).collect()
}

/// Tokens of a sequence, fed as rows to the caches: the masks of the rows, if there are any, and the caches.
fn step(rows: &[Range<usize>], count: usize, caches: Vec<Tensor>) -> (Vec<Tensor>, Vec<Tensor>) {
    let rows = Rows(rows);
    let part =
        |shape: &[usize], seed| rows.part(shape, &coarse(LENGTH * shape.iter().product::<usize>(), seed));
    let mut arguments =
        vec![part(&[HEADS, WIDTH], 1), part(&[WIDTH], 2), part(&[HEADS], 3), rows.positions()];
    arguments.extend(caches);
    let mut results = run(&arguments, |b, values| {
        let [query, key, weights, positions, ref caches @ ..] = *values else { unreachable!() };
        let operands = PositionSelectionOperands { query, key, weights, positions, caches };
        let what = PositionSelection { rows: &rows.counts(), layer: 1, count, rate: 1 };
        let Selected { masks, caches } = select_positions(b, &operands, &what)?;
        Ok([caches, masks].concat())
    });
    (results.split_off(rows.0.len()), results)
}

/// What is selected for the tokens, by sorting.
fn sorted(tokens: Range<usize>, count: usize, length: usize) -> Vec<bool> {
    let [queries, keys, weights] =
        [(HEADS * WIDTH, 1), (WIDTH, 2), (HEADS, 3)].map(|(size, seed)| coarse(LENGTH * size, seed));
    let of_token = |token: usize| {
        let score = |position: usize| {
            let of_head = |head: usize| {
                let query = &queries[(token * HEADS + head) * WIDTH..][..WIDTH];
                let key = &keys[position * WIDTH..][..WIDTH];
                let product: f32 = query.iter().zip(key).map(|(q, k)| q * k).sum();
                weights[token * HEADS + head] * product.max(0.0)
            };
            (0..HEADS).map(of_head).sum::<f32>()
        };
        let mut positions: Vec<_> = (0..=token).collect();
        // Sorting is stable.
        positions.sort_by(|&a, &b| score(b).partial_cmp(&score(a)).unwrap());
        let mut selected = vec![false; length];
        positions.iter().take(count).for_each(|&position| selected[position] = true);
        selected
    };
    tokens.flat_map(of_token).collect()
}

fn empty(length: usize) -> Tensor {
    zeros(F32, &[2, length, WIDTH])
}

#[test]
fn the_highest_scores_are_selected_for_chunks_and_batches() {
    for count in [1, 2, 5, 16, 17, 33, 39] {
        let (first, one) = step(&[0..20], count, vec![empty(LENGTH)]);
        assert_eq!(first[0].as_slice::<bool>().unwrap(), sorted(0..20, count, LENGTH), "{count}");
        let (_, two) = step(&[0..7], count, vec![empty(35)]);
        let (masks, caches) = step(&[20..38, 7..8], count, [one, two].concat());
        assert_eq!(masks[0].as_slice::<bool>().unwrap(), sorted(20..38, count, LENGTH), "{count}");
        assert_eq!(masks[1].as_slice::<bool>().unwrap(), sorted(7..8, count, 35), "{count}");
        let bytes = caches[0].bytes();
        assert!(bytes[..bytes.len() / 2].iter().all(|&byte| byte == 0), "layer 0 is as it was");
    }
}

#[test]
fn nothing_is_computed_where_all_positions_are_selected() {
    for count in [LENGTH, LENGTH + 1, usize::MAX] {
        let (masks, caches) = step(&[0..20], count, vec![empty(LENGTH)]);
        assert!(masks.is_empty(), "{count}");
        let keys = &caches[0].as_slice::<f32>().unwrap()[LENGTH * WIDTH..][..20 * WIDTH];
        assert_eq!(keys, &coarse(LENGTH * WIDTH, 2)[..20 * WIDTH]);
    }
}

#[test]
fn operands_of_the_wrong_shape_are_rejected() {
    for (cache, count, message) in [
        ([1, LENGTH, WIDTH], 4, "room for 3"),
        ([2, 2, WIDTH], 4, "room for 3"),
        ([2, LENGTH, WIDTH + 1], 4, "room for 3"),
        ([2, LENGTH, WIDTH], 0, "at least one"),
    ] {
        let made = Module::of_function("test", "main", |b| {
            let query = b.argument("q", TensorType::new(F32, [3, HEADS, WIDTH]))?;
            let key = b.argument("k", TensorType::new(F32, [3, WIDTH]))?;
            let weights = b.argument("w", TensorType::new(F32, [3, HEADS]))?;
            let positions = b.argument("positions", TensorType::new(I32, [1]))?;
            let cache = b.argument("cache", TensorType::new(F32, cache))?;
            let operands = PositionSelectionOperands { query, key, weights, positions, caches: &[cache] };
            let selected =
                select_positions(b, &operands, &PositionSelection { rows: &[3], layer: 1, count, rate: 1 })?;
            Ok(selected.caches)
        });
        assert!(made.unwrap_err().to_string().contains(message));
    }
}
