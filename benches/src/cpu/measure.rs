//! One turn of a contestant.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};

use super::contestants::{Effort, Entry};
use super::copy::plain_copy;
use super::results::{Contestant, Program};
use crate::bandwidth::Probe;
use crate::peak::Peaks;
use crate::worker::Worker;

/// The measurements of a turn.
pub(super) struct Plan {
    pub(super) threads: usize,
    /// Prompt lengths, ascending.
    pub(super) prefills: Vec<usize>,
    /// Sequence lengths when decoding, ascending.
    pub(super) positions: Vec<usize>,
    /// Numbers of sequences in a batch, ascending; above one.
    pub(super) batches: Vec<usize>,
    /// Tokens decoded per measurement, and for contestants that take seconds for each.
    pub(super) decode: usize,
    pub(super) little_decode: usize,
    /// How many times a short measurement is repeated in a turn.
    pub(super) repeats: usize,
}

impl Plan {
    /// The maximum length of a sequence.
    pub(super) fn capacity(&self) -> usize {
        let decoded = self.decode * (self.batches.len() + self.positions.len());
        let longest = self.positions.iter().chain(&self.prefills).copied().max().unwrap_or(0);
        longest + decoded + 1
    }

    /// The maximum number of sequences in a batch.
    pub(super) fn sequences(&self) -> usize {
        self.batches.iter().copied().max().unwrap_or(1)
    }

    /// Starts the contestant, measures everything once (short measurements a few times) and ends it. Returns
    /// the logits after a prompt of `logits_of` tokens, if that is not zero.
    pub(super) fn turn(
        &self,
        entry: &mut Entry,
        probe: &Probe,
        memory: &mut Vec<f64>,
        scratch: &Path,
        logits_of: usize,
    ) -> Result<Vec<f32>> {
        let little = entry.effort == Effort::Little;
        let (count, repeats) = if little { (self.little_decode, 1) } else { (self.decode, self.repeats) };
        if let Some(weights) = &entry.weights {
            // The first copy loads the files into the system's cache.
            plain_copy(weights, self.threads)?;
            entry.result.copy.push(plain_copy(weights, self.threads)?);
        }
        let mut worker = Worker::start(&entry.result.name, entry.command())?;
        entry.versions.clone_from(&worker.hello.versions);
        let result = &mut entry.result;
        result.load.push(worker.hello.load_seconds);
        result.notes = worker.hello.notes.clone();
        if let (Program::LlamaCpp, Some(bytes)) = (result.program, worker.hello.weight_bytes) {
            result.weight_bytes = bytes as f64 - result.unread_bytes;
        }
        // Creates now what is created on first use.
        if !little {
            worker.decode(1, &[8])?;
        }

        let before = probe.measure(self.threads);
        let (position, further) = self.positions.split_first().context("no position to decode at")?;
        for _ in 0..repeats {
            let seconds = worker.decode(count, &[*position])?;
            add(&mut result.decode, &[*position], &seconds, |_, seconds| count as f64 / seconds);
        }
        if let Some(memory) = worker.memory() {
            result.private.push(memory.private);
            result.mapped.push(memory.mapped);
        }
        if result.ours() {
            result.kv_bytes = Some(worker.state()?.kv_bytes as f64);
        }
        let after = probe.measure(self.threads);
        result.bus.extend(std::iter::repeat_n((before + after) / 2.0, repeats));
        memory.extend([before, after]);

        let peak = |result: &Contestant| {
            result.arithmetic.and_then(|arithmetic| Peaks::measure(self.threads).of(arithmetic))
        };
        let before = peak(result);
        for tokens in if little { &self.prefills[..1] } else { &self.prefills } {
            for _ in 0..repeats {
                let seconds = worker.prefill(*tokens)?;
                add(&mut result.prefill, &[*tokens], &[seconds], |tokens, seconds| tokens as f64 / seconds);
            }
        }
        if let (Some(before), Some(after)) = (before, peak(result)) {
            result.peak.extend(std::iter::repeat_n((before + after) / 2.0, repeats));
        }
        if matches!(entry.effort, Effort::Long | Effort::Usual) && !self.batches.is_empty() {
            let seconds = worker.batch(count, *position, &self.batches)?;
            add(&mut result.batch, &self.batches, &seconds, |n, seconds| (n * count) as f64 / seconds);
        }
        if entry.effort == Effort::Long && !further.is_empty() {
            let seconds = worker.decode(count, further)?;
            add(&mut result.decode, further, &seconds, |_, seconds| count as f64 / seconds);
        }
        let logits = match logits_of {
            0 => Vec::new(),
            tokens => worker.logits(tokens, &scratch.join("logits.f32"))?,
        };
        if result.ours() {
            result.warm_compile += worker.state()?.compile_seconds;
        }
        Ok(logits)
    }
}

/// Adds a rate at each of `points`.
fn add(
    to: &mut BTreeMap<usize, Vec<f64>>,
    points: &[usize],
    seconds: &[f64],
    rate: impl Fn(usize, f64) -> f64,
) {
    for (&point, &seconds) in points.iter().zip(seconds) {
        to.entry(point).or_default().push(rate(point, seconds));
    }
}
