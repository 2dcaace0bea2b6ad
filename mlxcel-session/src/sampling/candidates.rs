//! The candidate tokens of a sampling step.

use mlxcel_core::{Error, ErrorKind, Result, TokenId, most_likely};

/// A candidate token.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Candidate {
    /// The token.
    pub token: TokenId,
    /// Its logit, as modified by the steps so far. After temperature, tokens are sampled in proportion to
    /// `exp(score)`.
    pub score: f64,
}

impl Candidate {
    pub(super) fn new(token: TokenId, score: f64) -> Self {
        Self { token, score }
    }
}

impl From<(TokenId, f64)> for Candidate {
    fn from((token, score): (TokenId, f64)) -> Self {
        Self { token, score }
    }
}

/// The candidate tokens, ordered by id: what a [`SamplingStep`](super::SamplingStep) modifies.
///
/// A removed token stays removed.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidates {
    /// In the order of ids. One that was removed by itself has minus infinity, until others are.
    list: Vec<Candidate>,
    vocabulary_size: usize,
}

impl Candidates {
    /// All tokens, with their logits.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Device`] if a logit is not a number or the largest is infinite,
    /// [`ErrorKind::InvalidInput`] if there are none.
    pub(super) fn new(logits: &[f32]) -> Result<Self> {
        let mut best = f32::NEG_INFINITY;
        let mut broken = false;
        let candidate = |(token, &logit): (TokenId, &f32)| {
            broken |= logit.is_nan();
            best = if logit > best { logit } else { best };
            Candidate::new(token, f64::from(logit))
        };
        let list: Vec<Candidate> = (0..).zip(logits).map(candidate).collect();
        Self::of(list, logits.len(), broken, best)
    }

    /// The `count` most likely tokens of these logits, [settled](Self::settle), in one pass and little
    /// memory.
    ///
    /// # Errors
    ///
    /// Those of [`new`](Self::new).
    pub(super) fn most_likely(logits: &[f32], count: usize) -> Result<Self> {
        let (mut best, mut broken) = (f32::NEG_INFINITY, false);
        let candidates = (0..).zip(logits).filter_map(|(token, &logit)| {
            broken |= logit.is_nan();
            best = if logit > best { logit } else { best };
            (logit > f32::NEG_INFINITY).then_some((token, f64::from(logit)))
        });
        let mut list: Vec<_> = most_likely(candidates, count).into_iter().map(Candidate::from).collect();
        list.sort_unstable_by_key(|candidate| candidate.token);
        Self::of(list, logits.len(), broken, best)
    }

    /// Candidates of this many logits, unless one is not a number or the largest is infinite.
    fn of(list: Vec<Candidate>, vocabulary_size: usize, broken: bool, best: f32) -> Result<Self> {
        match vocabulary_size {
            0 => Err(Error::new(ErrorKind::InvalidInput, "sample", "there are no logits")),
            _ if broken || best.is_infinite() => Err(Error::not_a_number("sample")),
            _ => Ok(Self { list, vocabulary_size }),
        }
    }

    /// The size of the vocabulary.
    pub fn vocabulary_size(&self) -> usize {
        self.vocabulary_size
    }

    /// The candidates, ordered by id.
    pub fn iter(&self) -> impl Iterator<Item = Candidate> {
        self.list.iter().copied().filter(|candidate| candidate.score > f64::NEG_INFINITY)
    }

    /// The number of candidates.
    pub fn len(&self) -> usize {
        self.iter().count()
    }

    /// Whether there is no candidate left.
    pub fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    /// The score of `token`; `None` if it is not a candidate.
    pub fn score(&self, token: TokenId) -> Option<f64> {
        let score = self.list.get(self.index(token)?)?.score;
        (score > f64::NEG_INFINITY).then_some(score)
    }

    /// The most likely candidate; ties go to the lowest id. `None` if there is no candidate left.
    pub fn best(&self) -> Option<Candidate> {
        self.iter().reduce(|best, candidate| if candidate.score > best.score { candidate } else { best })
    }

    /// Sets the score of `token` to the result of `change`; minus infinity removes it. Does nothing if it is
    /// not a candidate.
    pub fn change(&mut self, token: TokenId, change: impl FnOnce(f64) -> f64) {
        if let Some(index) = self.index(token)
            && self.list[index].score > f64::NEG_INFINITY
        {
            self.list[index].score = change(self.list[index].score);
        }
    }

    /// Sets the score of every candidate to the result of `change`; minus infinity removes it.
    pub fn change_all(&mut self, mut change: impl FnMut(Candidate) -> f64) {
        for candidate in &mut self.list {
            if candidate.score > f64::NEG_INFINITY {
                candidate.score = change(*candidate);
            }
        }
    }

    /// Removes `token`.
    pub fn remove(&mut self, token: TokenId) {
        self.change(token, |_| f64::NEG_INFINITY);
    }

    /// Removes the candidates for which `keep` returns false.
    pub fn retain(&mut self, mut keep: impl FnMut(Candidate) -> bool) {
        self.list.retain(|candidate| candidate.score != f64::NEG_INFINITY && keep(*candidate));
    }

    /// The sum of `exp(score - best)` over all, where `best` is the largest score.
    pub(super) fn total(&self, best: f64) -> f64 {
        self.list.iter().map(|candidate| (candidate.score - best).exp()).sum()
    }

    /// Where `token` is in the list.
    fn index(&self, token: TokenId) -> Option<usize> {
        if self.list.len() == self.vocabulary_size {
            return Some(token as usize).filter(|&index| index < self.list.len());
        }
        self.list.binary_search_by_key(&token, |candidate| candidate.token).ok()
    }

    /// Ends the changes of logits: removed tokens are dropped, infinite scores exclude all others, and every
    /// score is finite.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] if no token is left or a score is not a number.
    pub(super) fn settle(&mut self) -> Result<()> {
        let refuse = |message: &'static str| Error::new(ErrorKind::InvalidInput, "sample", message);
        let mut best = f64::NEG_INFINITY;
        let (mut broken, mut removed) = (false, false);
        for candidate in &self.list {
            broken |= candidate.score.is_nan();
            removed |= candidate.score == f64::NEG_INFINITY;
            best = if candidate.score > best { candidate.score } else { best };
        }
        if broken {
            return Err(refuse("a sampling step produced a NaN score"));
        }
        if best == f64::NEG_INFINITY {
            return Err(refuse("no token is left to sample"));
        }
        if removed {
            self.list.retain(|candidate| candidate.score > f64::NEG_INFINITY);
        }
        if best == f64::INFINITY {
            self.list.retain(|candidate| candidate.score == f64::INFINITY);
            self.list.iter_mut().for_each(|candidate| candidate.score = 0.0);
        }
        Ok(())
    }

    /// Keeps these candidates alone.
    pub(super) fn keep(&mut self, mut kept: Vec<Candidate>) {
        kept.sort_unstable_by_key(|candidate| candidate.token);
        self.list = kept;
    }

    /// The candidates as they lie; of settled ones.
    pub(super) fn as_slice(&self) -> &[Candidate] {
        &self.list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removed_candidates_stay_removed() {
        let mut candidates = Candidates::new(&[1.0, 2.0, 3.0, 4.0]).unwrap();
        for settled in [false, true] {
            if settled {
                candidates.settle().unwrap();
            }
            assert_eq!(candidates.len(), if settled { 3 } else { 4 });
            candidates.remove(if settled { 1 } else { 3 });
            candidates.remove(4);
            candidates.change(3, |_| 5.0);
            candidates.change_all(|candidate| candidate.score + 1.0);
            assert_eq!((candidates.score(3), candidates.score(4)), (None, None));
            assert_eq!(candidates.iter().count(), if settled { 2 } else { 3 });
        }
        assert_eq!(candidates.iter().map(|c| (c.token, c.score)).collect::<Vec<_>>(), [(0, 3.0), (2, 5.0)]);
        assert_eq!((candidates.len(), candidates.best().map(|c| c.token)), (2, Some(2)));
        candidates.change(2, |_| f64::NEG_INFINITY);
        assert!(candidates.len() == 1 && !candidates.is_empty());
        candidates.retain(|candidate| candidate.token != 0);
        assert!(candidates.is_empty() && candidates.settle().is_err());
    }

    #[test]
    fn the_most_likely_candidates_are_finite() {
        let most_likely = |logits: &[f32]| Candidates::most_likely(logits, 3);
        assert_eq!(most_likely(&[0.0, f32::NEG_INFINITY, 1.0]).unwrap().len(), 2);
        for broken in [f32::NAN, f32::INFINITY] {
            assert_eq!(most_likely(&[0.0, broken, 1.0]).unwrap_err().kind(), ErrorKind::Device);
        }
        assert_eq!(most_likely(&[]).unwrap_err().kind(), ErrorKind::InvalidInput);
    }

    #[test]
    fn scores_that_are_not_numbers_are_refused() {
        let mut candidates = Candidates::new(&[1.0, 2.0, 3.0]).unwrap();
        candidates.change_all(|candidate| if candidate.token == 1 { 2.0 } else { f64::NAN });
        assert_eq!(candidates.settle().unwrap_err().kind(), ErrorKind::InvalidInput);
    }

    #[test]
    fn infinite_logits_exclude_all_others() {
        let mut candidates = Candidates::new(&[1.0, 2.0, 3.0]).unwrap();
        candidates.change(0, |_| f64::INFINITY);
        candidates.change(2, |_| f64::INFINITY);
        candidates.settle().unwrap();
        assert_eq!(candidates.as_slice(), [Candidate::new(0, 0.0), Candidate::new(2, 0.0)]);
    }
}
