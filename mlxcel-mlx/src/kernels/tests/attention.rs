//! Attention.

use super::*;

/// What attention is computed of: queries of the last positions.
#[derive(Clone, Copy, Default)]
pub(crate) struct Shape<'a> {
    pub(crate) tokens: usize,
    pub(crate) kv_heads: usize,
    /// Heads of queries for each of keys.
    pub(crate) group: usize,
    pub(crate) dim: usize,
    pub(crate) length: usize,
    pub(crate) window: Option<usize>,
    pub(crate) soft_cap: Option<f32>,
    /// By head of queries.
    pub(crate) sinks: Option<&'a [f32]>,
}

/// Attention by its definition, in double precision: for each output its terms.
pub(crate) fn attention(q: &[f32], k: &[f32], v: &[f32], scale: f32, shape: &Shape<'_>) -> Vec<Vec<f64>> {
    let Shape { tokens, kv_heads, group, dim, length, window, soft_cap, sinks } = *shape;
    let heads = kv_heads * group;
    let mut outputs = Vec::new();
    for (token, head) in (0..tokens).flat_map(|token| (0..heads).map(move |head| (token, head))) {
        let end = length - tokens + token + 1;
        let seen = window.map_or(0, |window| end.saturating_sub(window))..end;
        let key = |at: usize, i: usize| ((head / group) * length + at) * dim + i;
        let score = |at: usize| -> f64 {
            let query = &q[(token * heads + head) * dim..][..dim];
            let dot: f64 = (0..dim).map(|i| f64::from(query[i]) * f64::from(k[key(at, i)])).sum();
            let score = dot * f64::from(scale);
            soft_cap.map(f64::from).map_or(score, |cap| cap * (score / cap).tanh())
        };
        let scores: Vec<f64> = seen.clone().map(score).collect();
        let sink = sinks.map(|sinks| f64::from(sinks[head]));
        let most = scores.iter().copied().chain(sink).fold(f64::MIN, f64::max);
        let total: f64 = scores.iter().copied().chain(sink).map(|score| (score - most).exp()).sum();
        for i in 0..dim {
            let term = |(at, score): (usize, &f64)| (score - most).exp() / total * f64::from(v[key(at, i)]);
            outputs.push(seen.clone().zip(&scores).map(term).collect());
        }
    }
    outputs
}

#[test]
fn attention_matches_its_definition() {
    let mut numbers = Numbers(4);
    for (name, kernels) in every_way() {
        for round in 0..24 {
            let tokens = if round % 2 == 0 { 1 } else { numbers.within(2, 140) };
            let shape = Shape {
                tokens,
                kv_heads: numbers.within(1, 3),
                group: numbers.within(1, 5),
                dim: numbers.one_of(&[1, 16, 24, 64, 72]),
                length: tokens + numbers.one_of(&[0, 1, 63, 64, 150]),
                window: numbers.one_of(&[None, Some(1), Some(30), Some(64), Some(1000)]),
                ..Shape::default()
            };
            let (heads, dtype) = (shape.kv_heads * shape.group, numbers.one_of(&TYPES));
            let (q, q_values) = numbers.array(&[tokens, heads, shape.dim], DType::F32);
            let (k, k_values) = numbers.array(&[shape.kv_heads, shape.length, shape.dim], dtype);
            let (v, v_values) = numbers.array(&[shape.kv_heads, shape.length, shape.dim], dtype);
            let y = kernels.attention(&q, &k, &v, 0.7, shape.window).unwrap();
            assert_eq!(y.shape(), [tokens, heads, shape.dim]);
            let wanted = attention(&q_values, &k_values, &v_values, 0.7, &shape);
            let what = format!("{name} {k:?} {tokens} {:?}", shape.window);
            // Each weight is the exponential of a sum.
            assert_sums_of(64.0, &y.to_vec::<f32>().unwrap(), wanted.into_iter(), &what);
        }
    }
}

#[test]
fn a_slice_of_a_cache_is_read_in_place_and_nothing_around_it() {
    Device::Cpu.select().unwrap();
    let mut numbers = Numbers(5);
    let shape = Shape { tokens: 3, kv_heads: 2, group: 2, dim: 16, length: 70, ..Shape::default() };
    let (q, q_values) = numbers.array(&[3, 4, 16], DType::F32);
    let (k, k_values) = numbers.array(&[1, 2, 70, 16], DType::BF16);
    let (v, v_values) = numbers.array(&[1, 2, 70, 16], DType::BF16);
    let room = Array::full(&[1, 2, 256, 16], f32::NAN, DType::BF16).unwrap();
    let (start, stop) = ([0, 0, 100, 0], [1, 2, 170, 16]);
    let cached = |part: &Array| room.slice_update(part, &start, &stop).unwrap();
    let (keys, values) = (cached(&k), cached(&v));
    eval([&keys, &values]).unwrap();
    let part = |cache: &Array| cache.slice(&start, &stop).unwrap();
    // Queries come transposed, heads before tokens.
    let turned = q.transpose(&[1, 0, 2]).unwrap();
    eval([&turned]).unwrap();
    let back = turned.transpose(&[1, 0, 2]).unwrap();
    let y = Kernels::new(2).attention(&back, &part(&keys), &part(&values), 0.25, None).unwrap();
    let wanted = attention(&q_values, &k_values, &v_values, 0.25, &shape);
    assert_sums_of(64.0, &y.to_vec::<f32>().unwrap(), wanted.into_iter(), "part");
}
