//! Compressed positions, attention to them, and matrices with sums of one.

use mlxcel_models::walk::Entries;
use mlxcel_models::{AttentionCore, Compressor};

use super::Naive;
use super::tensor::{Tensor, dot, softmax};

/// Columns divided by their sums, and rows between.
pub(super) fn balanced(x: &Tensor, epsilon: f32, iterations: usize) -> Tensor {
    let &[tokens, count, _] = &x.shape[..] else { panic!("{:?}", x.shape) };
    let mut data = x.data.to_vec();
    for matrix in data.chunks_exact_mut(count * count) {
        for iteration in 0..iterations {
            if iteration > 0 {
                for row in matrix.chunks_exact_mut(count) {
                    let sum = row.iter().sum::<f32>() + epsilon;
                    row.iter_mut().for_each(|x| *x /= sum);
                }
            }
            for column in 0..count {
                let sum = (0..count).map(|row| matrix[row * count + column]).sum::<f32>() + epsilon;
                (0..count).for_each(|row| matrix[row * count + column] /= sum);
            }
        }
    }
    Tensor::new([tokens, count, count], data)
}

impl Naive<'_> {
    pub(super) fn compressed(&self, x: &Tensor, compressor: &Compressor) -> Tensor {
        let Compressor { rate, overlapping, width, gate_bias, .. } = *compressor;
        let series = if overlapping { 2 } else { 1 };
        let bias = self.weight(gate_bias);
        assert_eq!((x.width(), &bias.shape[..]), (2 * series * width, &[rate, series * width][..]));
        let rows = x.rows().collect::<Vec<_>>();
        x.map_rows(|token, _| {
            let begin = (token + 1).checked_sub(rate).filter(|begin| begin % rate == 0);
            let Some(begin) = begin else { return vec![0.0; width] };
            // For each position of the windows its series and its place in the window.
            let own = (begin..=token).map(|at| (at, series - 1, at - begin));
            let before =
                (begin.saturating_sub(rate)..begin).map(|at| (at, 0, at % rate)).filter(|_| overlapping);
            let parts: Vec<_> = before.chain(own).collect();
            let element = |element: usize| {
                let at = |series: usize| series * width + element;
                let gate = |&(position, own, place): &(usize, usize, usize)| {
                    rows[position][series * width + at(own)] + bias.data[place * series * width + at(own)]
                };
                let weights = softmax(&parts.iter().map(gate).collect::<Vec<_>>());
                parts
                    .iter()
                    .zip(weights)
                    .map(|(&(position, own, _), weight)| weight * rows[position][at(own)])
                    .sum()
            };
            (0..width).map(element).collect()
        })
    }

    pub(super) fn attend_compressed(
        &self,
        query: &Tensor,
        key: &Tensor,
        entries: &Entries<Tensor>,
        core: &AttentionCore,
    ) -> Tensor {
        let Entries { entry, rate, slot: _, selected } = entries;
        let heads = query.shape[1];
        let (keys, entries) = (key.rows().collect::<Vec<_>>(), entry.rows().collect::<Vec<_>>());
        let sinks = self.weight(core.sinks.unwrap());
        let mixed = query.map_rows(|index, query| {
            let (token, head) = (index / heads, index % heads);
            let window = &keys[(token + 1).saturating_sub(core.window.unwrap())..=token];
            let closed = match selected {
                Some(slot) => self.selected[slot][token].clone(),
                None => (0..=token).skip(rate - 1).step_by(*rate).collect(),
            };
            let seen: Vec<_> =
                window.iter().copied().chain(closed.into_iter().map(|at| entries[at])).collect();
            let mut scores: Vec<_> = seen.iter().map(|key| dot(query, key) * core.scale).collect();
            scores.push(sinks.data[head]);
            let weights = softmax(&scores);
            let sum =
                |element: usize| seen.iter().zip(&weights).map(|(key, weight)| weight * key[element]).sum();
            (0..query.len()).map(sum).collect()
        });
        Tensor::new([query.shape[0], heads * query.width()], mixed.data.to_vec())
    }
}
