//! Attention in double precision.

use super::*;
use crate::kernel_tests::rounding_to;

/// The first elements of a head rotated by the angles of a token, as `Builder::rope` pairs them; the others
/// as they are.
pub(super) fn rotated(head: &[f32], cos: &[f32], sin: &[f32]) -> Vec<f64> {
    let mut rotated: Vec<f64> = head.iter().map(|&x| f64::from(x)).collect();
    let pairs = cos.len();
    for (i, (&cos, &sin)) in cos.iter().zip(sin).enumerate() {
        let (cos, sin) = (f64::from(cos), f64::from(sin));
        let [a, b] = [i, i + pairs].map(|at| f64::from(head[at]));
        rotated[i] = a * cos - b * sin;
        rotated[i + pairs] = b * cos + a * sin;
    }
    rotated
}

/// The values of what a query sees, given as keys with their values, weighted by their scores.
pub(super) fn attend<'a>(
    query: &[f64],
    seen: impl Iterator<Item = (&'a [f32], &'a [f32])>,
    score: impl Fn(f64) -> f64,
    sink: Option<f64>,
) -> Vec<f64> {
    let dot = |key: &[f32]| query.iter().zip(key).map(|(q, &k)| q * f64::from(k)).sum::<f64>();
    let seen: Vec<_> = seen.map(|(key, value)| (score(dot(key)), value)).collect();
    let largest = seen.iter().map(|(score, _)| *score).chain(sink).fold(f64::NEG_INFINITY, f64::max);
    let mut total = sink.map_or(0.0, |sink| (sink - largest).exp());
    let mut mixed = vec![0.0; seen[0].1.len()];
    for (score, value) in seen {
        let weight = (score - largest).exp();
        total += weight;
        for (sum, &value) in mixed.iter_mut().zip(value) {
            *sum += weight * f64::from(value);
        }
    }
    mixed.into_iter().map(|sum| sum / total).collect()
}

/// The score of a product of a query and a key.
pub(super) fn score(product: f64, soft_cap: Option<f32>) -> f64 {
    let score = f64::from(SCALE) * product;
    soft_cap.map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh())
}

/// Compares results of type `out`, as bytes, with those wanted.
pub(super) fn compare(case: &impl std::fmt::Debug, out: ElementType, got: &[u8], wanted: &[f64]) {
    let results = as_f32(&TensorType::new(out, [wanted.len()]), got);
    assert_eq!(results.len(), wanted.len());
    for (i, (got, &wanted)) in results.into_iter().zip(wanted).enumerate() {
        let off = (f64::from(got) - wanted).abs();
        assert!(off <= 3e-6 + wanted.abs() * rounding_to(out), "{case:?}: {got} is not {wanted} at {i}");
    }
}

impl Case {
    /// The mixed values, `[tokens, heads, width]`, of these operands and what caches hold after the pass.
    pub(super) fn mixed(&self, operands: &[Tensor], caches: &[Vec<f32>]) -> Vec<f64> {
        let numbers = |at: usize| as_f32(operands[at].ty(), operands[at].bytes());
        let query = numbers(0);
        let angles = (self.pairs > 0).then(|| [numbers(3), numbers(4)]);
        let sinks = self.sinks.map(|_| numbers(if self.pairs > 0 { 6 } else { 4 }));
        let score = |product| score(product, self.soft_cap);
        let places =
            self.rows.iter().zip(&self.positions).zip(caches).flat_map(|((&row, &position), cache)| {
                let ring = self.window.is_some_and(|window| window + row <= self.length + 1);
                (position..position + row).map(move |own| (own, ring, cache))
            });
        let mut mixed = Vec::new();
        for (token, (own, ring, cache)) in places.enumerate() {
            let first = self.window.map_or(0, |window| match self.chunked {
                true => own - own % window,
                false => (own + 1).saturating_sub(window),
            });
            for head in 0..self.heads {
                let of_head = &query[(token * self.heads + head) * self.width..][..self.width];
                let angles = angles.as_ref().map_or([&[][..]; 2], |tables| {
                    [0, 1].map(|table| &tables[table][token * self.pairs..][..self.pairs])
                });
                let group = head / (self.heads / self.groups);
                let entry = |part: usize, position: usize| {
                    let slot = if ring { position % self.length } else { position };
                    let at = ((LAYER * 2 + part) * self.groups + group) * self.length + slot;
                    &cache[at * self.width..][..self.width]
                };
                let seen = (first..=own).map(|position| (entry(0, position), entry(1, position)));
                let sink = sinks.as_ref().map(|sinks| f64::from(sinks[head]));
                mixed.extend(attend(&rotated(of_head, angles[0], angles[1]), seen, score, sink));
            }
        }
        mixed
    }
}
