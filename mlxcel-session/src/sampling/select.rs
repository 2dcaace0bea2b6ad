//! The most likely of many candidates, without sorting all of them.

use super::Candidate;

/// The `count` most likely of `candidates`, in no order. They come in the order of their ids.
pub(super) fn most_likely(candidates: impl Iterator<Item = Candidate>, count: usize) -> Vec<Candidate> {
    let mut kept = Vec::new();
    if count == 0 {
        return kept;
    }
    // The least score that is still of interest: once there are twice as many as wanted, half of them go.
    let mut least = f64::NEG_INFINITY;
    let mut full = false;
    for candidate in candidates {
        if full && candidate.score <= least {
            continue;
        }
        kept.push(candidate);
        if kept.len() >= count.saturating_mul(2) {
            least = cut(&mut kept, count);
            full = true;
        }
    }
    cut(&mut kept, count);
    kept
}

/// Cuts `kept` to its `count` most likely; the score of the last of them.
fn cut(kept: &mut Vec<Candidate>, count: usize) -> f64 {
    if kept.len() > count {
        kept.select_nth_unstable_by(count - 1, Candidate::more_likely);
        kept.truncate(count);
    }
    kept.last().map_or(f64::NEG_INFINITY, |last| last.score)
}

/// The `count` most likely of `candidates`, most likely first.
pub(super) fn most_likely_first(candidates: impl Iterator<Item = Candidate>, count: usize) -> Vec<Candidate> {
    let mut kept = most_likely(candidates, count);
    kept.sort_unstable_by(Candidate::more_likely);
    kept
}

/// The least number of most likely candidates whose weights reach `enough`, at least one, most likely first.
pub(super) fn reaching(
    candidates: &[Candidate],
    weight: impl Fn(&Candidate) -> f64,
    enough: f64,
) -> Vec<Candidate> {
    // Mostly a few have nearly all of the weight.
    let mut count = 64;
    loop {
        let mut first = most_likely_first(candidates.iter().copied(), count);
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
    fn top_k_selection_equals_sorting_and_truncating() {
        // Many ties, and runs in both directions.
        let scores = (0..1000_u32).map(|i| f64::from((i * 7919) % 97) - f64::from(i % 5));
        let candidates: Vec<Candidate> =
            (0..).zip(scores).map(|(token, score)| Candidate::new(token, score)).collect();
        let mut sorted = candidates.clone();
        sorted.sort_by(Candidate::more_likely);
        for count in [0, 1, 2, 63, 500, 999, 1000, 5000] {
            let found = most_likely_first(candidates.iter().copied(), count);
            assert_eq!(found, sorted[..count.min(1000)], "{count}");
        }
        for enough in [0.0f64, 0.5, 1.0, 63.5, 64.0, 64.5, 900.0, 1e9] {
            let needed = enough.ceil().clamp(1.0, 1000.0) as usize;
            assert_eq!(reaching(&candidates, |_| 1.0, enough), sorted[..needed], "{enough}");
        }
    }
}
