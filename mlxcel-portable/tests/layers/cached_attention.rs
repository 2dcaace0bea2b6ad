//! Attention over caches, against attention over all tokens at once.

use std::ops::Range;

use mlxcel_graph::cached::{CachedAttention, CachedAttentionOperands, cached_attention};
use mlxcel_portable::eval::Tensor;
use mlxcel_stablehlo::{ElementType, ErrorKind, Module, TensorType};

use crate::layers::support::{Rows, near, numbers, run_cached, zeros};

use ElementType::{BF16, F16, F32, I8, I32};

const HEADS: usize = 4;
const GROUPS: usize = 2;
const WIDTH: usize = 6;
const PAIRS: usize = 2;
const LAYERS: usize = 2;
const LENGTH: usize = 12;

fn empty_cache(element: ElementType) -> Tensor {
    let width = if element == I8 { WIDTH + 4 } else { WIDTH };
    zeros(element, &[LAYERS, 2, GROUPS, LENGTH, width])
}

/// Tokens of a sequence that starts at position 0, fed as rows to the caches.
fn step(rows: &[Range<usize>], caches: Vec<Tensor>, window: Option<usize>) -> (Vec<f32>, Vec<Tensor>) {
    let element = caches[0].ty().element;
    let rows = Rows(rows);
    let part =
        |shape: &[usize], seed| rows.part(shape, &numbers(LENGTH * shape.iter().product::<usize>(), seed));
    let arguments = [
        part(&[HEADS, WIDTH], 1),
        part(&[GROUPS, WIDTH], 2),
        part(&[GROUPS, WIDTH], 3),
        part(&[PAIRS], 4),
        part(&[PAIRS], 5),
        rows.positions(),
    ];
    run_cached(&arguments, caches, |b, values| {
        let [query, key, value, cos, sin, positions, ref caches @ ..] = *values else { unreachable!() };
        let operands = CachedAttentionOperands {
            query,
            key,
            value,
            rotary: Some((cos, sin)),
            positions,
            sinks: None,
            caches,
        };
        assert_eq!(b.ty(caches[0]).element, element);
        let what = CachedAttention {
            rows: &rows.counts(),
            layer: 1,
            scale: 0.7,
            soft_cap: None,
            window,
            chunked: false,
            out: F32,
        };
        cached_attention(b, &operands, &what)
    })
}

#[test]
fn a_sequence_gives_the_same_results_for_any_chunking() {
    for window in [None, Some(3)] {
        for element in [F32, BF16, F16, I8] {
            let (whole, _) = step(&[0..7], vec![empty_cache(element)], window);
            let (first, caches) = step(&[0..4], vec![empty_cache(element)], window);
            let (second, caches) = step(&[4..6], caches, window);
            let (third, _) = step(&[6..7], caches, window);
            near(&[first, second, third].concat(), &whole, 1e-6);
        }
    }
}

#[test]
fn each_row_attends_to_its_own_cache() {
    let (_, one) = step(&[0..3], vec![empty_cache(F32)], None);
    let (_, other) = step(&[0..5], vec![empty_cache(F32)], None);
    let (alone, _) = step(&[3..4], one.clone(), None);
    let (chunk, _) = step(&[5..9], other.clone(), None);
    let caches = [other, one].concat();
    let (both, caches) = step(&[5..9, 3..4], caches, None);
    near(&both, &[chunk, alone].concat(), 1e-6);
    assert_eq!(caches.len(), 2);
}

#[test]
fn narrow_caches_are_close_and_limited_to_their_layer() {
    let (wanted, _) = step(&[0..9], vec![empty_cache(F32)], None);
    for (element, tolerance) in [(BF16, 1e-2), (F16, 2e-3), (I8, 1e-2)] {
        let (got, caches) = step(&[0..9], vec![empty_cache(element)], None);
        near(&got, &wanted, tolerance);
        let bytes = caches[0].bytes();
        assert!(bytes[..bytes.len() / 2].iter().all(|&byte| byte == 0), "layer 0 is as it was");
        assert!(bytes[bytes.len() / 2..].iter().any(|&byte| byte != 0));
    }
}

#[test]
fn mismatched_operands_are_rejected() {
    type Case = (&'static [usize], usize, [usize; 5], ElementType, ErrorKind, &'static str);
    let cases: [Case; 7] = [
        (&[2], 0, [2, 2, 2, 8, 6], F32, ErrorKind::Shape, "add up to N"),
        (&[3, 0], 0, [2, 2, 2, 8, 6], F32, ErrorKind::Shape, "add up to N"),
        (&[3], 2, [2, 2, 2, 8, 6], F32, ErrorKind::Shape, "with layer 2"),
        (&[3], 0, [2, 2, 1, 8, 6], F32, ErrorKind::Shape, "is not [layers, 2, 2"),
        (&[3], 0, [2, 2, 2, 2, 6], F32, ErrorKind::Shape, "room for 3"),
        (&[3], 0, [2, 2, 2, 8, 6], I8, ErrorKind::Shape, "length, 10]"),
        (&[3], 0, [2, 2, 2, 8, 6], I32, ErrorKind::Element, "of floats or i8"),
    ];
    for (rows, layer, cache, element, kind, words) in cases {
        let made = Module::of_function("test", "main", |b| {
            let query = b.argument("q", TensorType::new(F32, [3, HEADS, WIDTH]))?;
            let key = b.argument("k", TensorType::new(F32, [3, GROUPS, WIDTH]))?;
            let angles = b.argument("angles", TensorType::new(F32, [3, PAIRS]))?;
            let positions = b.argument("positions", TensorType::new(I32, [1]))?;
            let cache = b.argument("kv", TensorType::new(element, cache))?;
            let operands = CachedAttentionOperands {
                query,
                key,
                value: key,
                rotary: Some((angles, angles)),
                positions,
                sinks: None,
                caches: &[cache],
            };
            let what = CachedAttention {
                rows,
                layer,
                scale: 1.0,
                soft_cap: None,
                window: None,
                chunked: false,
                out: F32,
            };
            Ok(vec![cached_attention(b, &operands, &what)?.0])
        });
        let error = made.unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(words), "{error}");
    }
}
