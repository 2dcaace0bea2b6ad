//! The state of the engine's thread: the network, the states of sequences, and the step computed ahead.

use std::collections::HashMap;

use mlxcel_core::{Error, FaultPoint, Faults, Result, RowResult, TokenId};
use mlxcel_models::{LowRank, WeightId};

use super::network::Network;
use super::pass::{Pass, Results, answers, cache_ids};
use super::request::{
    CacheId, Choice, Earlier, Output, PassFailure, PassReply, PassRequest, RowReply, RowRequest,
};
use super::sampling::Counted;
use super::snapshot;
use super::state::{Overwritten, States};
use crate::array::{Array, eval, eval_async};

/// The state of the engine's thread.
pub(super) struct Engine {
    network: Network,
    vocabulary: usize,
    look_ahead: bool,
    caches: HashMap<CacheId, States>,
    /// What caches may return to, without their draft tokens; none for those that were empty.
    kept: HashMap<CacheId, Option<Overwritten>>,
    /// Caches lost in a look-ahead pass, with the error.
    lost: HashMap<CacheId, Error>,
    /// Passes started before their request, over disjoint caches.
    ahead: Vec<Ahead>,
    faults: Option<Faults>,
}

/// A decoding pass with tokens that the previous pass chose.
struct Ahead {
    rows: Vec<RowRequest>,
    results: Option<Results>,
    /// The rows' recurrent states before it, if the model has any.
    before: Vec<Overwritten>,
}

impl Ahead {
    /// Whether it computes `rows`.
    fn is(&self, rows: &[RowRequest]) -> bool {
        let same = |(own, other): (&RowRequest, &RowRequest)| {
            let choices = match (own.output.only_choice(), other.output.only_choice()) {
                (Some(own), Some(other)) => {
                    own.plan == other.plan && own.top == other.top && own.mask == other.mask
                }
                _ => false,
            };
            // Neither returns hidden states: nothing is started after those that do.
            choices
                && other.output_states == 0
                && own.cache == other.cache
                && own.position == other.position
                && own.length == other.length
                && own.tokens == other.tokens
        };
        self.rows.len() == rows.len() && self.rows.iter().zip(rows).all(same)
    }

    fn touches(&self, cache: CacheId) -> bool {
        cache_ids(&self.rows).any(|own| own == cache)
    }
}

impl Engine {
    pub(super) fn new(network: Network, vocabulary: usize, look_ahead: bool, faults: Option<Faults>) -> Self {
        Self {
            network,
            vocabulary,
            look_ahead,
            caches: HashMap::new(),
            kept: HashMap::new(),
            lost: HashMap::new(),
            ahead: Vec::new(),
            faults,
        }
    }

    /// The bytes of weights on the device.
    pub(super) fn weight_bytes(&self) -> u64 {
        self.network.weights.bytes
    }

    /// The maximum payload size of a snapshot of a sequence of `capacity` tokens; `None` on overflow.
    pub(super) fn snapshot_bytes(&self, capacity: usize) -> Option<u64> {
        let states = self.network.layout.kept_bytes(capacity)?;
        u64::try_from(states.checked_add(snapshot::words(capacity)?)?).ok()
    }

    /// Frees a cache.
    pub(super) fn forget(&mut self, cache: CacheId) {
        self.take_back(&[cache]);
        self.caches.remove(&cache);
        self.kept.remove(&cache);
        self.lost.remove(&cache);
    }

    /// Forks the cache `from` to `to`. Nothing is copied before one of the two is written to.
    pub(super) fn fork(&mut self, from: CacheId, to: CacheId) -> Result<()> {
        self.take_back_recurrent(from);
        if let Some(cache) = self.cache(from)? {
            let copy = cache.clone();
            self.caches.insert(to, copy);
        }
        Ok(())
    }

    /// Returns a cache to what was kept before its draft tokens.
    pub(super) fn return_to_kept(&mut self, cache: CacheId) {
        self.take_back(&[cache]);
        match (self.kept.remove(&cache), self.caches.get_mut(&cache)) {
            (Some(Some(kept)), Some(states)) => states.put_back(kept),
            (Some(None), _) => drop(self.caches.remove(&cache)),
            _ => {}
        }
    }

    /// Keeps what the caches of `rows` may return to, as long as they may.
    fn keep(&mut self, rows: &[RowRequest]) {
        for row in rows {
            match row.earlier {
                Earlier::Keep { end } => {
                    let states = self.caches.get(&row.cache);
                    let kept = states.map(|states| states.overwritten(&self.network.layout, end));
                    self.kept.insert(row.cache, kept);
                }
                Earlier::Leave => {}
                Earlier::Drop => drop(self.kept.remove(&row.cache)),
            }
        }
    }

    /// The content of a cache for the first `position` positions.
    pub(super) fn read(&mut self, cache: CacheId, position: usize) -> Result<Vec<u8>> {
        self.take_back_recurrent(cache);
        self.check_fault(FaultPoint::ReadBack, "snapshot")?;
        match self.cache(cache)? {
            Some(cache) if position > 0 => cache.read(&self.network.layout, position),
            _ => Ok(Vec::new()),
        }
    }

    /// Creates a cache from the bytes of [`read`](Self::read), and returns its size in bytes.
    pub(super) fn write(&mut self, cache: CacheId, position: usize, bytes: &[u8]) -> Result<u64> {
        self.check_fault(FaultPoint::Allocation, "restore")?;
        let written = States::from_bytes(&self.network.layout, position, bytes)?;
        let size = written.bytes();
        self.caches.insert(cache, written);
        Ok(size)
    }

    /// Puts an adapter into a slot that no sequence uses.
    pub(super) fn set_adapter(&mut self, slot: usize, products: &HashMap<WeightId, LowRank>) -> Result<()> {
        self.check_fault(FaultPoint::Copy, "load adapter")?;
        let activation = self.network.numerics.activation;
        self.network.adapters.set(slot, products, activation)
    }

    /// Whether a cache was lost in a look-ahead pass.
    pub(super) fn has_lost(&self, cache: CacheId) -> bool {
        self.lost.contains_key(&cache)
    }

    /// A cache; none before the first token.
    fn cache(&self, id: CacheId) -> Result<Option<&States>> {
        match self.lost.get(&id) {
            Some(error) => Err(error.clone()),
            None => Ok(self.caches.get(&id)),
        }
    }

    /// Runs a pass. Rows whose caches a look-ahead pass lost return its error; the others run.
    pub(super) fn run(&mut self, request: PassRequest) -> Result<PassReply, PassFailure> {
        let lost: Vec<_> = cache_ids(&request.rows).map(|cache| self.lost.get(&cache).cloned()).collect();
        let rows =
            request.rows.into_iter().zip(&lost).filter_map(|(row, lost)| lost.is_none().then_some(row));
        let rows: Vec<_> = rows.collect();
        let mut reply = if rows.is_empty() { PassReply::default() } else { self.run_rows(rows)? };
        let mut answered = reply.rows.into_iter();
        let answers = lost.into_iter().map(|lost| match lost {
            Some(error) => Some(RowReply { answer: Err(error), states: Vec::new(), kv_bytes: 0 }),
            None => answered.next(),
        });
        reply.rows = answers.flatten().collect();
        Ok(reply)
    }

    fn run_rows(&mut self, rows: Vec<RowRequest>) -> Result<PassReply, PassFailure> {
        let begun = self.ahead.iter().position(|ahead| ahead.is(&rows));
        let begun = begun.map(|index| self.ahead.swap_remove(index).results);
        // Any other look-ahead pass over these caches was started with another token than this request's.
        self.take_back(&cache_ids(&rows).collect::<Vec<_>>());
        self.keep(&rows);
        let results = match begun {
            Some(results) => results,
            None => self.begin(&rows)?,
        };
        self.begin_next(&rows, results.as_ref());
        self.finish(&rows, results).map_err(|error| self.fail(&rows, error))
    }

    /// Builds and starts a pass.
    fn begin(&mut self, rows: &[RowRequest]) -> Result<Option<Results>, PassFailure> {
        let pass = self.build(rows).map_err(|error| PassFailure { error, harmless: true })?;
        self.start(rows, pass).map_err(|error| self.fail(rows, error))
    }

    fn build(&self, rows: &[RowRequest]) -> Result<Pass> {
        self.check_fault(FaultPoint::Allocation, "step")?;
        let tokens: Vec<TokenId> = rows.iter().flat_map(|row| row.tokens.iter().copied()).collect();
        let tokens = Array::from_slice(&tokens, &[tokens.len()])?;
        let counted = choices(rows).map(|choice| Counted::new(&choice.history, self.vocabulary));
        Pass::build(&self.network, rows, &tokens, &self.caches_of(rows)?, counted.collect::<Result<_>>()?)
    }

    fn caches_of(&self, rows: &[RowRequest]) -> Result<Vec<Option<&States>>> {
        cache_ids(rows).map(|cache| self.cache(cache)).collect()
    }

    /// Replaces the caches of a pass and starts it on the device.
    ///
    /// An array is written in place if there is no other handle on it, so the earlier caches must be dropped
    /// by then.
    fn start(&mut self, rows: &[RowRequest], pass: Pass) -> Result<Option<Results>> {
        self.caches.extend(cache_ids(rows).zip(pass.states));
        let caches = cache_ids(rows).filter_map(|cache| self.caches.get(&cache));
        let arrays = caches.flat_map(States::arrays).chain(pass.results.as_ref().map(Results::array));
        if self.look_ahead {
            eval_async(arrays)?
        } else {
            eval(arrays)?
        };
        self.check_fault(FaultPoint::Dispatch, "step")?;
        Ok(pass.results)
    }

    /// Starts the most likely next decoding pass. If it fails, the request for it returns the error.
    fn begin_next(&mut self, rows: &[RowRequest], results: Option<&Results>) {
        let Some(results) = results.filter(|_| self.look_ahead && rows.iter().all(|row| self.may_go_on(row)))
        else {
            return;
        };
        // It was not started: nothing is lost.
        let Ok(Some((next, pass))) = self.build_next(rows, results) else { return };
        let before = match self.network.layout.is_recurrent() {
            true => {
                let states = cache_ids(&next).filter_map(|id| self.caches.get(&id));
                states.map(|states| states.recurrent(&self.network.layout)).collect()
            }
            false => Vec::new(),
        };
        match self.start(&next, pass) {
            Ok(results) => self.ahead.push(Ahead { rows: next, results, before }),
            Err(error) => self.lose(&cache_ids(&next).collect::<Vec<_>>(), &error),
        }
    }

    /// Drops caches whose look-ahead pass failed; requests for them return the error.
    pub(super) fn lose(&mut self, caches: &[CacheId], error: &Error) {
        self.drop_caches(caches);
        self.lost.extend(caches.iter().map(|&cache| (cache, error.clone())));
    }

    /// The pass after `rows` with the tokens that they choose, which are not read back yet.
    fn build_next(&self, rows: &[RowRequest], results: &Results) -> Result<Option<(Vec<RowRequest>, Pass)>> {
        let Some(chosen) = &results.chosen else { return Ok(None) };
        let mut counted = Vec::with_capacity(rows.len());
        for (index, (row, choice)) in rows.iter().zip(choices(rows)).enumerate() {
            let generated = row.position + row.tokens.len() >= choice.plan.prompt_length();
            counted.push(match results.counted.get(index).and_then(Option::as_ref) {
                Some(counted) => Some(counted.with(&chosen.slice_axis(0, index, index + 1)?, generated)?),
                None => None,
            });
        }
        let next: Vec<RowRequest> = rows.iter().map(next_row).collect();
        let pass = Pass::build(&self.network, &next, chosen, &self.caches_of(&next)?, counted)?;
        Ok(Some((next, pass)))
    }

    /// Waits for a pass, and returns its rows' results.
    fn finish(&mut self, rows: &[RowRequest], results: Option<Results>) -> Result<PassReply> {
        self.check_fault(FaultPoint::ReadBack, "step")?;
        let words = match &results {
            Some(results) => results.array().to_vec::<u32>()?,
            None => Vec::new(),
        };
        let widths = [self.network.hidden_size(), self.network.state_width()];
        let answers = answers(rows, &words, self.vocabulary, widths)?;
        for (row, _) in rows.iter().zip(&answers).filter(|(_, (answer, _))| answer.is_err()) {
            self.take_back(&[row.cache]);
            self.caches.remove(&row.cache);
        }
        // The look-ahead pass was started with these tokens.
        let tokens = answers.iter().filter_map(|(answer, _)| match answer {
            Ok(RowResult::Tokens(tokens)) => tokens.last().map(|token| token.token),
            _ => None,
        });
        let tokens: Vec<TokenId> = tokens.collect();
        let first = rows.first().map(|row| row.cache);
        if let Some(ahead) =
            self.ahead.iter_mut().find(|ahead| first.is_some_and(|cache| ahead.touches(cache)))
        {
            ahead.rows.iter_mut().zip(tokens).for_each(|(row, token)| row.tokens = vec![token]);
        }
        let count = rows.iter().map(|row| row.tokens.len()).sum::<usize>();
        let states = rows.iter().map(|row| size_of_val(row.input_states.as_slice())).sum::<usize>();
        let kv_bytes = |row: &RowRequest| {
            let kept = self.kept.get(&row.cache).and_then(Option::as_ref).map_or(0, Overwritten::bytes);
            self.caches.get(&row.cache).map_or(0, States::bytes) + kept
        };
        Ok(PassReply {
            rows: answers
                .into_iter()
                .zip(rows)
                .map(|((answer, states), row)| RowReply { answer, states, kv_bytes: kv_bytes(row) })
                .collect(),
            uploaded_bytes: (count * size_of::<TokenId>() + states + self.network.uploaded_bytes(count))
                as u64,
            read_back_bytes: (words.len() * size_of::<u32>()) as u64,
        })
    }

    /// Whether the chosen token of a row may be fed next, with a plan that does not change between steps. Not
    /// for rows with hidden states: a draft head needs the next ones, and draft tokens follow in its model.
    fn may_go_on(&self, row: &RowRequest) -> bool {
        let next = row.position + row.tokens.len();
        next < row.capacity
            && row.input_states.is_empty()
            && row.output_states == 0
            && self.network.epochs.at(next + 1) == self.network.epochs.at(row.length)
            && row.output.only_choice().is_some_and(|choice| choice.mask.is_none())
    }

    /// Discards look-ahead passes over any of these caches. The positions they wrote will be overwritten;
    /// recurrent states are restored.
    fn take_back(&mut self, caches: &[CacheId]) {
        let (taken, kept) = std::mem::take(&mut self.ahead)
            .into_iter()
            .partition::<Vec<_>, _>(|ahead| caches.iter().any(|&cache| ahead.touches(cache)));
        self.ahead = kept;
        for ahead in taken {
            for (id, before) in cache_ids(&ahead.rows).zip(ahead.before) {
                if let Some(states) = self.caches.get_mut(&id) {
                    states.put_back(before);
                }
            }
        }
    }

    /// [`take_back`](Self::take_back) for a cache to be read, if the look-ahead pass changed it.
    fn take_back_recurrent(&mut self, cache: CacheId) {
        if self.network.layout.is_recurrent() {
            self.take_back(&[cache]);
        }
    }

    /// Drops the caches of rows whose pass failed.
    fn fail(&mut self, rows: &[RowRequest], error: Error) -> PassFailure {
        self.drop_caches(&cache_ids(rows).collect::<Vec<_>>());
        PassFailure { error, harmless: false }
    }

    fn drop_caches(&mut self, caches: &[CacheId]) {
        self.take_back(caches);
        for cache in caches {
            self.caches.remove(cache);
        }
    }

    /// Fails if a test injects a fault here.
    fn check_fault(&self, point: FaultPoint, operation: &'static str) -> Result<()> {
        self.faults.as_ref().map_or(Ok(()), |faults| faults.check(point, operation))
    }
}

fn choices(rows: &[RowRequest]) -> impl Iterator<Item = &Choice> {
    rows.iter().flat_map(|row| row.output.choices())
}

/// The row after `row`, with a token that is not read back yet.
fn next_row(row: &RowRequest) -> RowRequest {
    let output = match row.output.only_choice() {
        Some(choice) => Output::Tokens(vec![Choice { history: Vec::new(), ..choice.clone() }]),
        None => Output::Nothing,
    };
    RowRequest {
        cache: row.cache,
        position: row.position + row.tokens.len(),
        length: row.position + row.tokens.len() + 1,
        // A placeholder for the unknown token.
        tokens: vec![TokenId::MAX],
        types: Vec::new(),
        input_states: Vec::new(),
        capacity: row.capacity,
        adapter: row.adapter,
        earlier: Earlier::Drop,
        output,
        output_states: 0,
    }
}

#[cfg(test)]
mod tests;
