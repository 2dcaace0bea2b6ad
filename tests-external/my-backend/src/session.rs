//! The session: sequences of tokens, and what follows them.

use std::collections::BTreeMap;

use mlxcel_core::{
    Answer, Capabilities, Control, Error, ErrorKind, FaultPoint, Faults, InferenceSession, Positions, Result,
    Row, RowResult, SampledToken, SamplingParams, SamplingPlace, SequenceId, SequenceState, SessionStats,
    Snapshot, StateIdentity, StepOutput, TokenId, TokenMask, Want,
};

use crate::Counter;

pub(crate) struct Counting {
    model: Counter,
    sequences: BTreeMap<SequenceId, Sequence>,
    opened: u64,
    stats: SessionStats,
}

#[derive(Clone, Default)]
struct Sequence {
    tokens: Vec<TokenId>,
    poisoned: bool,
}

fn error(kind: ErrorKind, operation: &'static str, message: &'static str) -> Error {
    Error::new(kind, operation, message)
}

impl Counting {
    pub(crate) fn new(model: Counter) -> Self {
        Self { model, sequences: BTreeMap::new(), opened: 0, stats: SessionStats::default() }
    }

    fn find(&self, operation: &'static str, id: SequenceId) -> Result<&Sequence> {
        self.sequences
            .get(&id)
            .ok_or_else(|| error(ErrorKind::NotFound, operation, "the sequence is not open"))
    }

    fn healthy(&self, operation: &'static str, id: SequenceId) -> Result<&Sequence> {
        let sequence = self.find(operation, id)?;
        if sequence.poisoned {
            return Err(error(ErrorKind::Poisoned, operation, "the device failed; close the sequence"));
        }
        Ok(sequence)
    }

    fn insert(&mut self, operation: &'static str, sequence: Sequence) -> Result<SequenceId> {
        if self.sequences.len() >= self.model.capabilities.sequences {
            return Err(error(ErrorKind::CapacityExceeded, operation, "the session is full"));
        }
        let id = SequenceId::new(self.opened);
        self.opened += 1;
        self.sequences.insert(id, sequence);
        Ok(id)
    }

    fn check(&self, row: &Row<'_>, earlier: &[Row<'_>]) -> Result<()> {
        let sequence = self.healthy("step", row.sequence)?;
        let vocabulary = self.model.info.vocabulary_size;
        let known = row.tokens.iter().all(|&token| (token as usize) < vocabulary);
        if !known || row.tokens.is_empty() || earlier.iter().any(|other| other.sequence == row.sequence) {
            return Err(error(ErrorKind::InvalidInput, "step", "the row's tokens or sequence cannot be"));
        }
        match (row.want.answer, row.want.positions) {
            (Answer::Nothing, _) | (Answer::Logits, Positions::Last) => {}
            (Answer::Token { plan, masks, top: 0 }, Positions::Last) => {
                let claimed = self.model.capabilities.sampling;
                let mut active = plan.params().active_fields().iter();
                if plan.place() != SamplingPlace::Device || active.any(|field| !claimed.contains(field)) {
                    return Err(error(ErrorKind::Unsupported, "step", "the plan is not for this device"));
                }
                if masks.iter().any(|mask| mask.is_empty() || mask.vocabulary_size() != vocabulary) {
                    return Err(error(ErrorKind::InvalidInput, "step", "the mask allows nothing here"));
                }
            }
            _ => return Err(error(ErrorKind::Unsupported, "step", "the want is not claimed")),
        }
        if sequence.tokens.len() + row.tokens.len() > self.model.capabilities.context {
            return Err(error(ErrorKind::CapacityExceeded, "step", "the tokens do not fit"));
        }
        Ok(())
    }

    /// The logits after the tokens of a sequence: a hill around their sum, of a height that depends on their
    /// number.
    fn logits(&self, tokens: &[TokenId]) -> Vec<f32> {
        let vocabulary = self.model.info.vocabulary_size;
        let (index, sum) = tokens.iter().fold((1, 7usize), |(index, sum), &token| {
            (index + 1, (sum * 5 + token as usize * index + index) % vocabulary)
        });
        let steep = 0.25 + (index % 4) as f32 * 0.125;
        (0..vocabulary).map(|token| -steep * token.abs_diff(sum) as f32).collect()
    }

    fn answer(&self, want: &Want<'_>, tokens: &[TokenId]) -> Result<RowResult> {
        match want.answer {
            Answer::Nothing => Ok(RowResult::Extended),
            Answer::Token { plan, masks, .. } => {
                let logits = self.logits(tokens);
                let token = choose(plan.params(), masks.first(), &logits, tokens.len())
                    .ok_or_else(|| error(ErrorKind::InvalidInput, "step", "no token is left to choose"))?;
                let total: f64 = logits.iter().map(|&logit| f64::from(logit).exp()).sum();
                let logprob = f64::from(logits[token as usize]) - total.ln();
                Ok(RowResult::Tokens(vec![SampledToken::new(token, logprob as f32)]))
            }
            _ => Ok(RowResult::Logits(vec![self.logits(tokens)])),
        }
    }
}

/// Bias, temperature, top-k, and a draw that depends on seed and position alone.
fn choose(
    params: &SamplingParams,
    mask: Option<&TokenMask>,
    logits: &[f32],
    position: usize,
) -> Option<TokenId> {
    let mut scores: Vec<(TokenId, f64)> = (0..).zip(logits.iter().map(|&logit| f64::from(logit))).collect();
    for &(token, bias) in &params.logit_bias {
        scores.get_mut(token as usize)?.1 += f64::from(bias);
    }
    scores.retain(|&(token, score)| score > f64::NEG_INFINITY && mask.is_none_or(|mask| mask.allows(token)));
    scores.sort_by(|a, b| b.1.total_cmp(&a.1));
    let best = *scores.first()?;
    if params.temperature == 0.0 {
        return Some(best.0);
    }
    if let Some(k) = params.top_k {
        scores.truncate(k as usize);
    }
    for (_, score) in &mut scores {
        *score =
            if *score == best.1 { 1.0 } else { ((*score - best.1) / f64::from(params.temperature)).exp() };
    }
    let mut left = uniform(params.seed, position) * scores.iter().map(|(_, weight)| weight).sum::<f64>();
    let drawn = scores.iter().find(|(_, weight)| {
        left -= weight;
        left < 0.0
    });
    drawn.or(scores.last()).map(|&(token, _)| token)
}

/// A number in [0, 1): some rounds of multiplying and folding.
fn uniform(seed: u64, position: usize) -> f64 {
    let mut state = seed ^ (position as u64).rotate_left(32);
    for _ in 0..4 {
        state = (state ^ state >> 29).wrapping_add(0x2545_f491_4f6c_dd1d).wrapping_mul(0xd129_42f0_3a87_5b4d);
    }
    (state >> 11) as f64 / (1u64 << 53) as f64
}

impl InferenceSession for Counting {
    fn capabilities(&self) -> &Capabilities {
        &self.model.capabilities
    }

    fn open(&mut self) -> Result<SequenceId> {
        self.insert("open sequence", Sequence::default())
    }

    fn close(&mut self, sequence: SequenceId) -> Result<()> {
        self.find("close sequence", sequence)?;
        self.sequences.remove(&sequence);
        Ok(())
    }

    fn state(&self, sequence: SequenceId) -> Result<SequenceState> {
        let found = self.find("read state", sequence)?;
        let mut state = SequenceState::new(found.tokens.len(), self.model.capabilities.context);
        state.poisoned = found.poisoned;
        Ok(state)
    }

    /// All rows that may run are one pass.
    fn step(&mut self, rows: &[Row<'_>], control: &Control<'_>, out: &mut StepOutput) -> Result<()> {
        out.clear();
        if rows.is_empty() {
            return Err(error(ErrorKind::InvalidInput, "step", "a step must have at least one row"));
        }
        let checks: Vec<Result<()>> = (0..rows.len())
            .map(|index| {
                self.check(&rows[index], &rows[..index])?;
                control.check("step")?;
                rows[index].check("step")
            })
            .collect();
        let runs = checks.iter().any(Result::is_ok);
        let device = |faults: &Faults| faults.check(FaultPoint::Dispatch, "step");
        let fault = self.model.faults.as_ref().filter(|_| runs).and_then(|faults| device(faults).err());
        self.stats.passes += u64::from(runs && fault.is_none());
        for (row, check) in rows.iter().zip(checks) {
            let result = check.and_then(|()| {
                let sequence = self.sequences.entry(row.sequence).or_default();
                if let Some(fault) = &fault {
                    sequence.poisoned = true;
                    return Err(fault.clone());
                }
                sequence.tokens.extend_from_slice(row.tokens);
                self.stats.tokens += row.tokens.len() as u64;
                self.answer(&row.want, &self.healthy("step", row.sequence)?.tokens)
            });
            out.push(result);
        }
        Ok(())
    }

    fn stats(&self) -> SessionStats {
        self.stats
    }

    fn rewind(&mut self, sequence: SequenceId, position: usize) -> Result<()> {
        if position > self.healthy("rewind", sequence)?.tokens.len() {
            return Err(error(ErrorKind::InvalidInput, "rewind", "the sequence is shorter than that"));
        }
        self.sequences.entry(sequence).or_default().tokens.truncate(position);
        Ok(())
    }

    fn fork(&mut self, sequence: SequenceId) -> Result<SequenceId> {
        let copy = self.healthy("fork", sequence)?.clone();
        self.insert("fork", copy)
    }

    fn snapshot(&mut self, sequence: SequenceId) -> Result<Snapshot> {
        let tokens = &self.healthy("snapshot", sequence)?.tokens;
        let payload: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
        Ok(Snapshot::new(StateIdentity::of(&self.model.info), tokens.len(), payload))
    }

    fn restore(&mut self, snapshot: &Snapshot) -> Result<SequenceId> {
        StateIdentity::of(&self.model.info).check(snapshot.identity())?;
        if snapshot.position() > self.model.capabilities.context {
            return Err(error(
                ErrorKind::InvalidInput,
                "restore",
                "the snapshot is longer than the capacity",
            ));
        }
        let words = snapshot.payload().chunks_exact(4);
        let whole = words.remainder().is_empty();
        let tokens: Vec<TokenId> =
            words.filter_map(|word| Some(TokenId::from_le_bytes(word.try_into().ok()?))).collect();
        let known = tokens.iter().all(|&token| (token as usize) < self.model.info.vocabulary_size);
        if !whole || !known || tokens.len() != snapshot.position() {
            return Err(error(ErrorKind::Corrupt, "restore", "the payload is not a sequence of this model"));
        }
        self.insert("restore", Sequence { tokens, poisoned: false })
    }
}
