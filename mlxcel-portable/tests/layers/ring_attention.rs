//! Attention over rings, with soft caps, with sinks and without positions, against a plain computation.

use std::ops::Range;

use half::bf16;
use mlxcel_graph::cached::{CachedAttention, CachedAttentionOperands, cached_attention};
use mlxcel_portable::eval::Tensor;
use mlxcel_stablehlo::{ElementType, ErrorKind, Module, TensorType};

use crate::layers::support::{near, numbers, run_cached, zeros};

use ElementType::{BF16, F32, I8, I32};

const HEADS: usize = 4;
const GROUPS: usize = 2;
const WIDTH: usize = 6;
const PAIRS: usize = 2;
const SCALE: f32 = 0.9;
/// The positions of the sequence that is fed.
const SEQUENCE: usize = 60;

/// The attention that is tested; queries are scaled up so that caps and sinks count.
#[derive(Clone, Copy, Debug)]
struct Kind {
    window: Option<usize>,
    chunked: bool,
    soft_cap: Option<f32>,
    sinks: bool,
    rotary: bool,
    element: ElementType,
}

const PLAIN: Kind =
    Kind { window: None, chunked: false, soft_cap: None, sinks: false, rotary: true, element: F32 };

/// Tokens of the sequence, and behind them tokens of padding.
#[derive(Clone, Debug)]
struct Row {
    tokens: Range<usize>,
    padding: usize,
}

fn row(tokens: Range<usize>, padding: usize) -> Row {
    Row { tokens, padding }
}

fn queries() -> Vec<f32> {
    numbers(SEQUENCE * HEADS * WIDTH, 1).iter().map(|value| 3.0 * value).collect()
}

fn keys() -> Vec<f32> {
    numbers(SEQUENCE * GROUPS * WIDTH, 2)
}

fn values() -> Vec<f32> {
    numbers(SEQUENCE * GROUPS * WIDTH, 3)
}

fn angles() -> [Vec<f32>; 2] {
    [numbers(SEQUENCE * PAIRS, 4), numbers(SEQUENCE * PAIRS, 5)]
}

const SINKS: [f32; HEADS] = [0.5, -2.0, 1.5, 3.0];

impl Kind {
    fn cache(&self, length: usize) -> Tensor {
        let width = if self.element == I8 { WIDTH + 4 } else { WIDTH };
        zeros(self.element, &[2, 2, GROUPS, length, width])
    }

    /// What the rows' own tokens get, and the caches.
    fn step(&self, rows: &[Row], caches: Vec<Tensor>) -> (Vec<f32>, Vec<Tensor>) {
        let part = |all: &[f32], size: usize| -> Vec<f32> {
            let of_row = |row: &Row| {
                let own = &all[row.tokens.start * size..row.tokens.end * size];
                [own, &vec![7.5; row.padding * size]].concat()
            };
            rows.iter().flat_map(of_row).collect()
        };
        let counts: Vec<usize> = rows.iter().map(|row| row.tokens.len() + row.padding).collect();
        let tokens: usize = counts.iter().sum();
        let positions: Vec<i32> = rows.iter().map(|row| row.tokens.start as i32).collect();
        let heads = |heads: usize, all: Vec<f32>| {
            Tensor::from_slice([tokens, heads, WIDTH], &part(&all, heads * WIDTH)).unwrap()
        };
        let tables = angles().map(|all| Tensor::from_slice([tokens, PAIRS], &part(&all, PAIRS)).unwrap());
        let mut arguments = vec![heads(HEADS, queries()), heads(GROUPS, keys()), heads(GROUPS, values())];
        arguments.extend(tables);
        arguments.push(Tensor::from_slice([rows.len()], &positions).unwrap());
        arguments.push(Tensor::from_slice([HEADS], &SINKS.map(bf16::from_f32)).unwrap());
        let (mixed, caches) = run_cached(&arguments, caches, |b, values| {
            let [query, key, value, cos, sin, positions, sinks, ref caches @ ..] = *values else {
                unreachable!()
            };
            let operands = CachedAttentionOperands {
                query,
                key,
                value,
                rotary: self.rotary.then_some((cos, sin)),
                positions,
                sinks: self.sinks.then_some(sinks),
                caches,
            };
            let what = CachedAttention {
                rows: &counts,
                layer: 1,
                scale: SCALE,
                soft_cap: self.soft_cap,
                window: self.window,
                chunked: self.chunked,
                out: F32,
            };
            cached_attention(b, &operands, &what)
        });
        let (mut mixed, mut own) = (&mixed[..], Vec::new());
        for row in rows {
            let (tokens, rest) = mixed.split_at((row.tokens.len() + row.padding) * HEADS * WIDTH);
            own.extend_from_slice(&tokens[..row.tokens.len() * HEADS * WIDTH]);
            mixed = rest;
        }
        (own, caches)
    }

    /// The sequence, fed as one row in steps of these tokens and paddings through a cache of this length.
    fn fed(&self, steps: &[(usize, usize)], length: usize) -> Vec<f32> {
        let (mut start, mut caches, mut all) = (0, vec![self.cache(length)], Vec::new());
        for &(tokens, padding) in steps {
            let (mixed, updated) = self.step(&[row(start..start + tokens, padding)], caches);
            all.extend(mixed);
            caches = updated;
            start += tokens;
        }
        all
    }

    fn rotated(&self, all: &[f32], token: usize) -> Vec<f64> {
        let mut head: Vec<f64> = all.iter().map(|&value| f64::from(value)).collect();
        if self.rotary {
            let [cos, sin] = angles();
            for i in 0..PAIRS {
                let [cos, sin] = [&cos, &sin].map(|table| f64::from(table[token * PAIRS + i]));
                let (low, high) = (head[i], head[i + PAIRS]);
                head[i] = low * cos - high * sin;
                head[i + PAIRS] = high * cos + low * sin;
            }
        }
        head
    }

    /// What the tokens of the sequence get, by the formula.
    fn plain(&self, tokens: Range<usize>) -> Vec<f32> {
        let (queries, keys, values) = (queries(), keys(), values());
        let mut out = Vec::new();
        for token in tokens {
            for (head, sink) in SINKS.into_iter().enumerate() {
                let group = head / (HEADS / GROUPS);
                let at = |position: usize| (position * GROUPS + group) * WIDTH;
                let query = (token * HEADS + head) * WIDTH;
                let query = self.rotated(&queries[query..query + WIDTH], token);
                let first = self.window.map_or(0, |window| match self.chunked {
                    true => token - token % window,
                    false => (token + 1).saturating_sub(window),
                });
                let score = |position: usize| {
                    let key = self.rotated(&keys[at(position)..at(position) + WIDTH], position);
                    let product: f64 = query.iter().zip(&key).map(|(q, k)| q * k).sum();
                    let score = product * f64::from(SCALE);
                    self.soft_cap.map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh())
                };
                let powers: Vec<f64> = (first..=token).map(|position| score(position).exp()).collect();
                let sink = if self.sinks { f64::from(bf16::from_f32(sink).to_f32()).exp() } else { 0.0 };
                let total = powers.iter().sum::<f64>() + sink;
                for i in 0..WIDTH {
                    let sum: f64 = (powers.iter().zip(first..))
                        .map(|(power, position)| power * f64::from(values[at(position) + i]))
                        .sum();
                    out.push((sum / total) as f32);
                }
            }
        }
        out
    }
}

/// Chunks, single tokens and padding, around the ring several times.
const STEPS: &[(usize, usize)] = &[
    (4, 0),
    (1, 0),
    (3, 1),
    (4, 0),
    (1, 0),
    (1, 0),
    (2, 2),
    (4, 0),
    (1, 3),
    (1, 0),
    (4, 0),
    (1, 0),
    (4, 0),
    (3, 1),
];

fn tokens() -> usize {
    STEPS.iter().map(|step| step.0).sum()
}

#[test]
fn every_kind_of_attention_matches_its_formula() {
    let window = Some(5);
    let kinds = [
        Kind { window, ..PLAIN },
        Kind { window, chunked: true, ..PLAIN },
        Kind { soft_cap: Some(1.5), ..PLAIN },
        Kind { sinks: true, ..PLAIN },
        Kind { rotary: false, ..PLAIN },
        Kind { window, soft_cap: Some(0.8), sinks: true, rotary: false, ..PLAIN },
    ];
    for kind in kinds {
        // 5 - 1 + 4 slots are just enough.
        let length = if kind.window.is_some() { 8 } else { 40 };
        near(&kind.fed(STEPS, length), &kind.plain(0..tokens()), 3e-6);
    }
}

#[test]
fn a_ring_cache_matches_a_full_cache() {
    for (window, element) in [(5, F32), (5, BF16), (5, I8), (1, F32), (7, BF16)] {
        let kind = Kind { window: Some(window), element, ..PLAIN };
        let whole = kind.fed(STEPS, SEQUENCE);
        for length in [window + 3, window + 4, 13, 16] {
            near(&kind.fed(STEPS, length), &whole, 1e-6);
        }
        near(&whole, &kind.plain(0..tokens()), if element == F32 { 3e-6 } else { 6e-2 });
    }
}

#[test]
fn a_ring_matches_a_full_cache_for_chunks() {
    for window in [1, 4, 5, 7] {
        let kind = Kind { window: Some(window), chunked: true, ..PLAIN };
        for length in [window + 3, 13, SEQUENCE] {
            near(&kind.fed(STEPS, length), &kind.plain(0..tokens()), 3e-6);
        }
    }
}

#[test]
fn a_ring_of_a_window_is_enough_for_single_tokens() {
    let kind = Kind { window: Some(6), ..PLAIN };
    near(&kind.fed(&[(1, 0); 20], 6), &kind.plain(0..20), 3e-6);
}

#[test]
fn each_row_has_its_own_position_in_its_ring() {
    let kind = Kind { window: Some(5), sinks: true, ..PLAIN };
    let fill = |steps: &[(usize, usize)]| {
        let (mut start, mut caches) = (0, vec![kind.cache(9)]);
        for &(tokens, padding) in steps {
            caches = kind.step(&[row(start..start + tokens, padding)], caches).1;
            start += tokens;
        }
        caches.remove(0)
    };
    let caches = vec![fill(&[(4, 0), (4, 1), (4, 0), (4, 0)]), fill(&[(3, 0)]), fill(&[(4, 0), (1, 0)])];
    let rows = [row(16..20, 1), row(3..4, 0), row(5..6, 0)];
    let (mixed, caches) = kind.step(&rows, caches);
    near(&mixed, &[kind.plain(16..20), kind.plain(3..4), kind.plain(5..6)].concat(), 3e-6);
    let (mixed, _) = kind.step(&[row(20..21, 0), row(4..5, 0), row(6..7, 0)], caches);
    near(&mixed, &[kind.plain(20..21), kind.plain(4..5), kind.plain(6..7)].concat(), 3e-6);
}

#[test]
fn attention_attributes_are_printed_and_invalid_ones_are_rejected() {
    type Change = fn(&mut CachedAttentionOperands<'_, '_>, &mut CachedAttention<'_>);
    let text = |change: Change| {
        let made = Module::of_function("test", "main", |b| {
            let query = b.argument("q", TensorType::new(F32, [3, HEADS, WIDTH]))?;
            let key = b.argument("k", TensorType::new(F32, [3, GROUPS, WIDTH]))?;
            let angles = b.argument("angles", TensorType::new(F32, [3, PAIRS]))?;
            let positions = b.argument("positions", TensorType::new(I32, [1]))?;
            let sinks = b.argument("sinks", TensorType::new(BF16, [HEADS]))?;
            let cache = b.argument("kv", TensorType::new(F32, [1, 2, GROUPS, 8, WIDTH]))?;
            let mut operands = CachedAttentionOperands {
                query,
                key,
                value: key,
                rotary: Some((angles, angles)),
                positions,
                sinks: Some(sinks),
                caches: &[cache],
            };
            let mut what = CachedAttention {
                rows: &[3],
                layer: 0,
                scale: 1.0,
                soft_cap: None,
                window: None,
                chunked: false,
                out: F32,
            };
            change(&mut operands, &mut what);
            Ok(vec![cached_attention(b, &operands, &what)?.0])
        });
        made.map(|module| module.to_string())
    };
    let plain = text(|operands, _| operands.sinks = None).unwrap();
    for word in ["soft_cap", "sinks =", "rotary"] {
        assert!(!plain.contains(word), "{word}");
    }
    let sinks = text(|operands, _| operands.rotary = None).unwrap();
    assert!(sinks.contains("rotary = false") && sinks.contains("sinks = true"));
    assert!(text(|_, what| what.soft_cap = Some(30.0)).unwrap().contains("soft_cap = "));
    let wrong: [(Change, ErrorKind); 4] = [
        (|_, what| what.soft_cap = Some(0.0), ErrorKind::Attribute),
        (|_, what| what.window = Some(0), ErrorKind::Attribute),
        (|operands, _| operands.sinks = Some(operands.positions), ErrorKind::Element),
        (|operands, _| operands.sinks = operands.rotary.map(|tables| tables.0), ErrorKind::Shape),
    ];
    for (change, kind) in wrong {
        assert_eq!(text(change).unwrap_err().kind(), kind);
    }
}
