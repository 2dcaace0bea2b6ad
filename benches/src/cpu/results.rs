//! What a run found, as it is kept in JSON.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::machine::Machine;
use crate::spread::Spread;

/// A whole run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Results {
    /// The model's shapes, and what to know about them.
    pub(crate) model: String,
    pub(crate) remark: Option<String>,
    /// Values that a token adds to the KV cache.
    pub(crate) kv_values: usize,
    pub(crate) machine: Machine,
    pub(crate) versions: Vec<(String, String)>,
    pub(crate) threads: usize,
    pub(crate) rounds: usize,
    /// Tokens that a sequence has when it decodes, unless the figure names another number.
    pub(crate) position: usize,
    /// Bytes a second that memory gave, before and after each contestant.
    pub(crate) memory: Vec<f64>,
    pub(crate) contestants: Vec<Contestant>,
    /// Who was to be measured and could not be, and why.
    pub(crate) absent: Vec<(String, String)>,
}

/// Whose program a contestant is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Program {
    #[serde(rename = "mlxcel iree")]
    Iree,
    #[serde(rename = "mlxcel mlx")]
    Mlx,
    #[serde(rename = "llama.cpp")]
    LlamaCpp,
    #[serde(rename = "candle")]
    Candle,
    #[serde(rename = "mlx-lm")]
    MlxLm,
}

/// Figures of one contestant. Rates are tokens a second; a list has its samples in the order in which they were taken.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Contestant {
    pub(crate) name: String,
    pub(crate) program: Program,
    /// What the weights are stored as: `bf16`, `8bit`, `q8_0`, …
    pub(crate) weights: String,
    /// The precision in mlxcel's words, of ours.
    pub(crate) precision: Option<String>,
    /// Bytes of weights that a token reads.
    pub(crate) weight_bytes: f64,
    /// Bytes of the others: of experts that it is not sent to, and of an embedding that is not the head too.
    #[serde(default)]
    pub(crate) unread_bytes: f64,
    /// What the program says of itself.
    pub(crate) notes: String,
    /// Of one sequence, by the tokens that it has.
    pub(crate) decode: BTreeMap<usize, Vec<f64>>,
    /// Bytes a second that memory gave around each sample of the first of these.
    pub(crate) bus: Vec<f64>,
    /// Of several sequences together, by their number.
    pub(crate) batch: BTreeMap<usize, Vec<f64>>,
    /// By the tokens of the prompt.
    pub(crate) prefill: BTreeMap<usize, Vec<f64>>,
    /// Seconds of loading with everything cached, and of copying the same files' bytes into fresh memory just before.
    pub(crate) load: Vec<f64>,
    pub(crate) copy: Vec<f64>,
    /// Bytes of memory after decoding: the process's own, and of mapped files.
    pub(crate) private: Vec<f64>,
    pub(crate) mapped: Vec<f64>,
    /// Bytes of the KV cache then, as far as known.
    pub(crate) kv_bytes: Option<f64>,
    /// Seconds of compiling everything that was needed, nothing being there yet.
    pub(crate) cold_compile: Option<f64>,
    /// Seconds of compiling in the rounds, where there should be none.
    pub(crate) warm_compile: f64,
    /// How far the logits after a prompt are from those at `exact` of the same weights, and of the bfloat16 weights.
    pub(crate) error: Option<f64>,
    pub(crate) error_to_bf16: Option<f64>,
    /// Whether the most likely token is the same as there.
    pub(crate) same_token: Option<bool>,
}

impl Contestant {
    /// Nothing measured yet.
    pub(crate) fn new(name: String, program: Program, weights: &str, precision: Option<&str>) -> Self {
        Self {
            name,
            program,
            weights: weights.to_owned(),
            precision: precision.map(str::to_owned),
            weight_bytes: 0.0,
            unread_bytes: 0.0,
            notes: String::new(),
            decode: BTreeMap::new(),
            bus: Vec::new(),
            batch: BTreeMap::new(),
            prefill: BTreeMap::new(),
            load: Vec::new(),
            copy: Vec::new(),
            private: Vec::new(),
            mapped: Vec::new(),
            kv_bytes: None,
            cold_compile: None,
            warm_compile: 0.0,
            error: None,
            error_to_bf16: None,
            same_token: None,
        }
    }

    /// Whether it is ours.
    pub(crate) fn ours(&self) -> bool {
        matches!(self.program, Program::Iree | Program::Mlx)
    }

    /// The middle of what was measured at one point of a map; not a number where nothing was.
    pub(crate) fn median(of: &BTreeMap<usize, Vec<f64>>, at: usize) -> f64 {
        of.get(&at).map_or(f64::NAN, |samples| Spread::of(samples).median)
    }

    /// The part of the memory's speed that reading the weights took, sample by sample, in decoding at `position`.
    pub(crate) fn bus_shares(&self, position: usize) -> Spread {
        let rates = self.decode.get(&position).map_or(&[][..], Vec::as_slice);
        let shares: Vec<f64> =
            rates.iter().zip(&self.bus).map(|(rate, bus)| rate * self.weight_bytes / bus).collect();
        Spread::of(&shares)
    }
}

impl Results {
    /// The contestant of a program with such weights at such a precision.
    pub(crate) fn find(
        &self,
        program: Program,
        weights: &str,
        precision: Option<&str>,
    ) -> Option<&Contestant> {
        self.contestants
            .iter()
            .find(|c| c.program == program && c.weights == weights && c.precision.as_deref() == precision)
    }

    pub(crate) fn read(path: &Path) -> Result<Self> {
        let text = fs::read(path).with_context(|| format!("reading {}", path.display()))?;
        serde_json::from_slice(&text).with_context(|| format!("reading {}", path.display()))
    }

    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        fs::write(path, serde_json::to_string_pretty(self)?)
            .with_context(|| format!("writing {}", path.display()))
    }
}

/// How far `logits` are from `reference`: the root of the mean square of the difference over that of the reference.
pub(crate) fn distance(logits: &[f32], reference: &[f32]) -> f64 {
    let square = |value: f64| value * value;
    let apart: f64 = logits.iter().zip(reference).map(|(&a, &b)| square(f64::from(a) - f64::from(b))).sum();
    let whole: f64 = reference.iter().map(|&b| square(f64::from(b))).sum();
    (apart / whole).sqrt()
}

/// The index of the largest.
pub(crate) fn likeliest(logits: &[f32]) -> Option<usize> {
    logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).map(|(index, _)| index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bus_share_is_of_the_samples_own_moment() {
        let mut contestant = Contestant::new("x".to_owned(), Program::Iree, "bf16", Some("native"));
        contestant.weight_bytes = 2e9;
        contestant.decode.insert(128, vec![5.0, 8.0]);
        contestant.bus = vec![10e9, 20e9];
        let shares = contestant.bus_shares(128);
        assert_eq!((shares.least, shares.most), (0.8, 1.0));
    }

    #[test]
    fn the_distance_is_relative() {
        assert_eq!(distance(&[2.0, 2.0], &[2.0, 2.0]), 0.0);
        assert_eq!(distance(&[0.0, 4.0], &[0.0, 2.0]), 1.0);
        assert_eq!(likeliest(&[0.0, 4.0, -1.0]), Some(1));
    }
}
