//! Attention over caches and rings, with soft caps, with sinks and without positions, against a plain
//! computation.

use std::ops::Range;

use half::bf16;
use mlxcel_graph::cached::{CachedAttention, CachedAttentionOperands, cached_attention};
use mlxcel_portable::eval::Tensor;
use mlxcel_stablehlo::{ElementType, ErrorKind, Module, Result, TensorType};

use crate::layers::support::{near, numbers, rotate, run_cached, zeros};

use ElementType::{BF16, F16, F32, I8, I32};

const HEADS: usize = 4;
const GROUPS: usize = 2;
const WIDTH: usize = 6;
const PAIRS: usize = 2;
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
    scale: f32,
}

const PLAIN: Kind = Kind {
    window: None,
    chunked: false,
    soft_cap: None,
    sinks: false,
    rotary: true,
    element: F32,
    scale: 0.9,
};

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
            let rotary = self.rotary.then_some((cos, sin));
            let sinks = self.sinks.then_some(sinks);
            let operands = CachedAttentionOperands { query, key, value, rotary, positions, sinks, caches };
            let what = CachedAttention {
                rows: &counts,
                layer: 1,
                scale: self.scale,
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

    /// The sequence, fed as one row in steps of these tokens and paddings through a cache of this length; and
    /// the cache.
    fn fed(&self, steps: &[(usize, usize)], length: usize) -> (Vec<f32>, Tensor) {
        let (mut start, mut caches, mut all) = (0, vec![self.cache(length)], Vec::new());
        for &(tokens, padding) in steps {
            let (mixed, updated) = self.step(&[row(start..start + tokens, padding)], caches);
            all.extend(mixed);
            caches = updated;
            start += tokens;
        }
        (all, caches.remove(0))
    }

    fn rotated(&self, all: &[f32], token: usize) -> Vec<f64> {
        let mut head: Vec<f64> = all.iter().map(|&value| f64::from(value)).collect();
        if self.rotary {
            rotate(&mut head, &angles().map(|table| table[token * PAIRS..][..PAIRS].to_vec()));
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
                    let score = product * f64::from(self.scale);
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
fn steps() -> Vec<(usize, usize)> {
    let tokens = [4, 1, 3, 4, 1, 1, 2, 4, 1, 1, 4, 1, 4, 3];
    let padding = [0, 0, 1, 0, 0, 0, 2, 0, 3, 0, 0, 0, 0, 1];
    tokens.into_iter().zip(padding).collect()
}

fn tokens() -> usize {
    steps().iter().map(|step| step.0).sum()
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
        near(&kind.fed(&steps(), length).0, &kind.plain(0..tokens()), 3e-6);
    }
}

#[test]
fn a_ring_cache_matches_a_full_cache() {
    for (window, element) in [(5, F32), (5, BF16), (5, I8), (1, F32), (7, BF16)] {
        let kind = Kind { window: Some(window), element, ..PLAIN };
        let (whole, _) = kind.fed(&steps(), SEQUENCE);
        for length in [window + 3, window + 4, 13, 16] {
            near(&kind.fed(&steps(), length).0, &whole, 1e-6);
        }
        near(&whole, &kind.plain(0..tokens()), if element == F32 { 3e-6 } else { 6e-2 });
    }
}

#[test]
fn a_ring_matches_a_full_cache_for_chunks() {
    for window in [1, 4, 5, 7] {
        let kind = Kind { window: Some(window), chunked: true, ..PLAIN };
        for length in [window + 3, 13, SEQUENCE] {
            near(&kind.fed(&steps(), length).0, &kind.plain(0..tokens()), 3e-6);
        }
    }
}

#[test]
fn a_ring_of_a_window_is_enough_for_single_tokens() {
    let kind = Kind { window: Some(6), ..PLAIN };
    near(&kind.fed(&[(1, 0); 20], 6).0, &kind.plain(0..20), 3e-6);
}

#[test]
fn each_row_has_its_own_position_in_its_cache() {
    for (kind, length) in [(Kind { window: Some(5), sinks: true, ..PLAIN }, 9), (PLAIN, 24)] {
        let fill = |steps: &[(usize, usize)]| kind.fed(steps, length).1;
        let caches = vec![fill(&[(4, 0), (4, 1), (4, 0), (4, 0)]), fill(&[(3, 0)]), fill(&[(4, 0), (1, 0)])];
        let rows = [row(16..20, 1), row(3..4, 0), row(5..6, 0)];
        let (mixed, caches) = kind.step(&rows, caches);
        near(&mixed, &[kind.plain(16..20), kind.plain(3..4), kind.plain(5..6)].concat(), 3e-6);
        let (mixed, _) = kind.step(&[row(20..21, 0), row(4..5, 0), row(6..7, 0)], caches);
        near(&mixed, &[kind.plain(20..21), kind.plain(4..5), kind.plain(6..7)].concat(), 3e-6);
    }
}

#[test]
fn a_sequence_gives_the_same_results_for_any_chunking() {
    for window in [None, Some(3)] {
        for element in [F32, BF16, F16, I8] {
            let kind = Kind { window, element, ..PLAIN };
            near(&kind.fed(&[(4, 0), (2, 0), (1, 0)], 12).0, &kind.fed(&[(7, 0)], 12).0, 1e-6);
        }
    }
}

#[test]
fn narrow_caches_are_close_and_limited_to_their_layer() {
    let fed = |element| Kind { element, scale: 0.7 / 3.0, ..PLAIN }.fed(&[(9, 0)], 12);
    let (wanted, _) = fed(F32);
    for (element, tolerance) in [(BF16, 1e-2), (F16, 2e-3), (I8, 1e-2)] {
        let (got, cache) = fed(element);
        near(&got, &wanted, tolerance);
        let (first, second) = cache.bytes().split_at(cache.bytes().len() / 2);
        assert!(first.iter().all(|&byte| byte == 0), "layer 0 is as it was");
        assert!(second.iter().any(|&byte| byte != 0));
    }
}

/// Attention of three tokens over a cache of this type, with a change to its operands and attributes.
fn changed(
    cache: TensorType,
    change: impl FnOnce(&mut CachedAttentionOperands<'_, '_>, &mut CachedAttention<'_>),
) -> Result<Module> {
    Module::of_function("test", "main", |b| {
        let query = b.argument("q", TensorType::new(F32, [3, HEADS, WIDTH]))?;
        let key = b.argument("k", TensorType::new(F32, [3, GROUPS, WIDTH]))?;
        let angles = b.argument("angles", TensorType::new(F32, [3, PAIRS]))?;
        let positions = b.argument("positions", TensorType::new(I32, [1]))?;
        let sinks = Some(b.argument("sinks", TensorType::new(BF16, [HEADS]))?);
        let caches = &[b.argument("kv", cache)?];
        let rotary = Some((angles, angles));
        let mut operands =
            CachedAttentionOperands { query, key, value: key, rotary, positions, sinks, caches };
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
    })
}

#[test]
fn attention_attributes_are_printed_and_invalid_ones_are_rejected() {
    type Change = fn(&mut CachedAttentionOperands<'_, '_>, &mut CachedAttention<'_>);
    let text = |change: Change| {
        let made = changed(TensorType::new(F32, [1, 2, GROUPS, 8, WIDTH]), change);
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
        let made = changed(TensorType::new(element, cache), |operands, what| {
            operands.sinks = None;
            (what.rows, what.layer) = (rows, layer);
        });
        let error = made.unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(words), "{error}");
    }
}
