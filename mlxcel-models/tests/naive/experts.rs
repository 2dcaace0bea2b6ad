//! Experts: their choice, and the way of tokens to them and back.

use super::tensor::{Tensor, largest};

/// Which expert each row of a dispatched tensor is for.
pub(crate) struct Routing {
    experts: Vec<usize>,
    chosen: usize,
}

impl Routing {
    /// A row for each expert of each token.
    pub(super) fn dispatch(x: &Tensor, chosen: &Tensor, experts: usize) -> (Tensor, Self) {
        let routing =
            Self { experts: chosen.data.iter().map(|&x| x as usize).collect(), chosen: chosen.width() };
        assert!(routing.experts.iter().all(|&expert| expert < experts));
        let copies =
            x.rows().flat_map(|row| std::iter::repeat_n(row, routing.chosen)).flatten().copied().collect();
        (Tensor::new([routing.experts.len(), x.width()], copies), routing)
    }

    /// The expert of a row.
    pub(super) fn expert(&self, row: usize) -> usize {
        self.experts[row]
    }

    /// The weighted sum of what the experts of each token made.
    pub(super) fn combine(&self, x: &Tensor, weights: Option<&Tensor>) -> Tensor {
        let rows = x.rows().collect::<Vec<_>>();
        let ones = Tensor::new([rows.len() / self.chosen, self.chosen], vec![1.0; rows.len()]);
        weights.unwrap_or(&ones).map_rows(|token, weights| {
            let own = &rows[token * self.chosen..][..self.chosen];
            let sum =
                |element: usize| own.iter().zip(weights).map(|(row, weight)| weight * row[element]).sum();
            (0..x.width()).map(sum).collect()
        })
    }
}

/// Scores of the groups with the largest sums of two, and none of the others.
pub(super) fn of_best_groups(scores: &Tensor, groups: usize, kept: usize) -> Tensor {
    let size = scores.width() / groups;
    scores.map_rows(|_, scores| {
        let score = |group: &[f32]| {
            let mut sorted = group.to_vec();
            sorted.sort_by(|a, b| b.total_cmp(a));
            sorted[0] + sorted[1]
        };
        let of_groups = scores.chunks_exact(size).map(score).collect::<Vec<_>>();
        let best = largest(&of_groups, kept);
        let keep = |(index, &score)| if best.contains(&(index / size)) { score } else { f32::NEG_INFINITY };
        scores.iter().enumerate().map(keep).collect()
    })
}

/// Two experts of each token, and their weights.
pub(super) fn sparse_mixer(logits: &Tensor, tolerance: f32) -> (Tensor, Tensor) {
    let rows = logits.rows().map(|logits| {
        let best = largest(logits, 2);
        let weight = |place: usize| {
            let most = logits[best[place]];
            let close = |(index, logit): &(usize, &f32)| {
                let far = (most - **logit) / logit.abs().max(most) > tolerance;
                !best[..place].contains(index) && !far
            };
            let powers = logits.iter().enumerate().filter(close).map(|(_, logit)| (logit - most).exp());
            powers.sum::<f32>().recip()
        };
        ([best[0] as f32, best[1] as f32], [weight(0), weight(1)])
    });
    let (indices, weights): (Vec<_>, Vec<_>) = rows.unzip();
    let tokens = logits.shape[0];
    (Tensor::new([tokens, 2], indices.concat()), Tensor::new([tokens, 2], weights.concat()))
}
