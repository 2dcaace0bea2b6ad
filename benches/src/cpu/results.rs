//! The results of a run, as stored in JSON.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::machine::Machine;
use crate::peak::Arithmetic;
use crate::spread::Spread;

/// A whole run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Results {
    /// The model's shapes, and remarks on them.
    pub(crate) model: String,
    pub(crate) remark: Option<String>,
    /// Values per token in the KV cache.
    pub(crate) kv_values: usize,
    /// Weights that each token of a prompt is multiplied by, and those of the head, by which the last one
    /// is.
    #[serde(default)]
    pub(crate) weights_of_token: f64,
    #[serde(default)]
    pub(crate) weights_of_head: f64,
    pub(crate) machine: Machine,
    pub(crate) versions: Vec<(String, String)>,
    pub(crate) threads: usize,
    pub(crate) rounds: usize,
    /// The sequence length when decoding, unless the measurement names another.
    pub(crate) position: usize,
    /// Memory bandwidth in bytes per second, before and after each contestant.
    pub(crate) memory: Vec<f64>,
    pub(crate) contestants: Vec<Contestant>,
    /// Contestants that could not be measured, and why.
    pub(crate) absent: Vec<(String, String)>,
}

/// A contestant's program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Program {
    #[default]
    #[serde(rename = "mlxcel iree")]
    Iree,
    #[serde(rename = "mlxcel mlx")]
    Mlx,
    #[serde(rename = "llama.cpp")]
    LlamaCpp,
    #[serde(rename = "ik_llama.cpp")]
    IkLlamaCpp,
    #[serde(rename = "OpenVINO GenAI")]
    OpenVino,
    #[serde(rename = "ONNX Runtime GenAI")]
    OnnxRuntime,
    #[serde(rename = "candle")]
    Candle,
    #[serde(rename = "mistral.rs")]
    MistralRs,
    #[serde(rename = "mlx-lm")]
    MlxLm,
}

/// Measurements of one contestant. Rates are tokens per second; a list has its samples in the order of
/// measurement.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Contestant {
    pub(crate) name: String,
    pub(crate) program: Program,
    /// The storage type of the weights: `bf16`, `8bit`, `q8_0`, …
    pub(crate) weights: String,
    /// The precision in mlxcel's terms, for our contestants.
    pub(crate) precision: Option<String>,
    /// Bytes of weights that a token reads.
    pub(crate) weight_bytes: f64,
    /// Bytes of weights that a token does not read: unchosen experts, and an embedding that is not also the
    /// head.
    #[serde(default)]
    pub(crate) unread_bytes: f64,
    /// What the program reports about itself.
    pub(crate) notes: String,
    /// One sequence, by its tokens.
    pub(crate) decode: BTreeMap<usize, Vec<f64>>,
    /// Memory bandwidth in bytes per second around each sample of the first of these.
    pub(crate) bus: Vec<f64>,
    /// Several sequences together, by their number.
    pub(crate) batch: BTreeMap<usize, Vec<f64>>,
    /// By prompt length.
    pub(crate) prefill: BTreeMap<usize, Vec<f64>>,
    /// How weights are multiplied by activations, if it is known.
    #[serde(default)]
    pub(crate) arithmetic: Option<Arithmetic>,
    /// The weights that can be multiplied like this in a second, around each sample of each prompt.
    #[serde(default)]
    pub(crate) peak: Vec<f64>,
    /// Seconds to load with everything cached, and to copy the same files' bytes into fresh memory just
    /// before.
    pub(crate) load: Vec<f64>,
    pub(crate) copy: Vec<f64>,
    /// Bytes of memory after decoding: the process's own, and of mapped files.
    pub(crate) private: Vec<f64>,
    pub(crate) mapped: Vec<f64>,
    /// Bytes of the KV cache after decoding, if known.
    pub(crate) kv_bytes: Option<f64>,
    /// Seconds to compile everything that was needed, with an empty cache.
    pub(crate) cold_compile: Option<f64>,
    /// Seconds of compiling in the rounds, which should be 0.
    pub(crate) warm_compile: f64,
    /// The distance of the logits after a prompt from those at `exact` of the same weights, and of the
    /// bfloat16 weights.
    pub(crate) error: Option<f64>,
    pub(crate) error_to_bf16: Option<f64>,
    /// Whether the most likely token is that of bfloat16 weights at `exact`.
    pub(crate) same_token: Option<bool>,
}

impl Contestant {
    /// A contestant without measurements.
    pub(crate) fn new(name: String, program: Program, weights: &str, precision: Option<&str>) -> Self {
        Self {
            name,
            program,
            weights: weights.to_owned(),
            precision: precision.map(str::to_owned),
            ..Self::default()
        }
    }

    pub(crate) fn ours(&self) -> bool {
        matches!(self.program, Program::Iree | Program::Mlx)
    }

    /// The median of the samples at one point of a map; NaN without samples.
    pub(crate) fn median(of: &BTreeMap<usize, Vec<f64>>, at: usize) -> f64 {
        of.get(&at).map_or(f64::NAN, |samples| Spread::of(samples).median)
    }

    /// The share of memory bandwidth used by reading weights, sample by sample, when decoding at `position`.
    pub(crate) fn bus_shares(&self, position: usize) -> Spread {
        let rates = self.decode.get(&position).map_or(&[][..], Vec::as_slice);
        let shares: Vec<f64> =
            rates.iter().zip(&self.bus).map(|(rate, bus)| rate * self.weight_bytes / bus).collect();
        Spread::of(&shares)
    }
}

impl Results {
    /// The share of the arithmetic peak that a prompt of `tokens` reaches by its products with weights,
    /// sample by sample. Attention is not counted.
    pub(crate) fn peak_shares(&self, contestant: &Contestant, tokens: usize) -> Spread {
        let rates = contestant.prefill.get(&tokens).map_or(&[][..], Vec::as_slice);
        let of_token = self.weights_of_token + self.weights_of_head / tokens as f64;
        let shares: Vec<f64> =
            rates.iter().zip(&contestant.peak).map(|(rate, peak)| rate * of_token / peak).collect();
        Spread::of(&shares)
    }

    /// The contestant of a program with these weights at this precision.
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

    /// Results of these contestants.
    #[cfg(test)]
    pub(crate) fn example(contestants: Vec<Contestant>) -> Self {
        Self {
            model: "small".to_owned(),
            kv_values: 1,
            threads: 2,
            rounds: 1,
            position: 128,
            memory: vec![2e10],
            contestants,
            ..Self::default()
        }
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

/// The distance of `logits` from `reference`: the RMS of the difference over that of the reference.
pub(crate) fn distance(logits: &[f32], reference: &[f32]) -> f64 {
    let square = |value: f64| value * value;
    let apart: f64 = logits.iter().zip(reference).map(|(&a, &b)| square(f64::from(a) - f64::from(b))).sum();
    let whole: f64 = reference.iter().map(|&b| square(f64::from(b))).sum();
    (apart / whole).sqrt()
}

/// The index of the largest logit.
pub(crate) fn argmax(logits: &[f32]) -> Option<usize> {
    logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).map(|(index, _)| index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bus_share_uses_the_bandwidth_around_each_sample() {
        let mut contestant = Contestant::new("x".to_owned(), Program::Iree, "bf16", Some("native"));
        contestant.weight_bytes = 2e9;
        contestant.decode.insert(128, vec![5.0, 8.0]);
        contestant.bus = vec![10e9, 20e9];
        let shares = contestant.bus_shares(128);
        assert_eq!((shares.least, shares.most), (0.8, 1.0));
    }

    #[test]
    fn the_share_of_the_peak_counts_the_head_once_a_prompt() {
        let mut contestant = Contestant::new("x".to_owned(), Program::Iree, "4bit", Some("native"));
        contestant.prefill.insert(4, vec![10.0, 20.0]);
        contestant.peak = vec![100.0, 100.0];
        let results = Results { weights_of_token: 2.0, weights_of_head: 4.0, ..Results::example(Vec::new()) };
        let shares = results.peak_shares(&contestant, 4);
        assert_eq!((shares.least, shares.most), (0.3, 0.6));
        assert!(results.peak_shares(&contestant, 8).median.is_nan());
    }

    #[test]
    fn the_distance_is_relative() {
        assert_eq!(distance(&[2.0, 2.0], &[2.0, 2.0]), 0.0);
        assert_eq!(distance(&[0.0, 4.0], &[0.0, 2.0]), 1.0);
        assert_eq!(argmax(&[0.0, 4.0, -1.0]), Some(1));
    }
}
