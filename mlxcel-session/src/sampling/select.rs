//! The most likely candidates whose weights reach a sum.

use mlxcel_core::most_likely;

use super::Candidate;

/// The least number of most likely candidates whose weights reach `enough`, at least one, most likely first.
/// `candidates` are in the order of their ids.
pub(super) fn reaching(
    candidates: &[Candidate],
    weight: impl Fn(&Candidate) -> f64,
    enough: f64,
) -> Vec<Candidate> {
    // Mostly a few have nearly all of the weight.
    let mut count = 64;
    loop {
        let scores = candidates.iter().map(|candidate| (candidate.token, candidate.score));
        let mut first: Vec<_> = most_likely(scores, count).into_iter().map(Candidate::from).collect();
        let mut before = 0.0;
        let needed = first.iter().take_while(|&candidate| {
            let needed = before < enough;
            before += weight(candidate);
            needed
        });
        let needed = needed.count();
        if needed < first.len() || first.len() == candidates.len() {
            first.truncate(needed.max(1));
            return first;
        }
        count *= 16;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fewest_candidates_that_reach_a_sum_are_kept() {
        let scores = (0..1000_u32).map(|i| f64::from((i * 7919) % 97) - f64::from(i % 5));
        let candidates: Vec<Candidate> = (0..).zip(scores).map(Candidate::from).collect();
        let scores = candidates.iter().map(|candidate| (candidate.token, candidate.score));
        let sorted: Vec<_> = most_likely(scores, 1000).into_iter().map(Candidate::from).collect();
        for enough in [0.0f64, 0.5, 1.0, 63.5, 64.0, 64.5, 900.0, 1e9] {
            let needed = enough.ceil().clamp(1.0, 1000.0) as usize;
            assert_eq!(reaching(&candidates, |_| 1.0, enough), sorted[..needed], "{enough}");
        }
    }
}
