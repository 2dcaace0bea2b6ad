//! Sampling parameters.

use std::collections::BTreeMap;

use super::{Dry, DynamicTemperature, Mirostat, SamplingField, SamplingFields, Xtc};
use crate::{Error, ErrorKind, Result, TokenId};

/// Sampling parameters. The default is greedy decoding: the most likely token; ties go to the lowest id.
///
/// The order of the steps is fixed, and that of transformers for steps that it has:
///
/// 1. limits: a [`TokenMask`](crate::TokenMask), [`allowed_tokens`](Self::allowed_tokens),
///    [`forbidden_tokens`](Self::forbidden_tokens);
/// 2. [`logit_bias`](Self::logit_bias), [`repetition_penalty`](Self::repetition_penalty),
///    [`presence_penalty`](Self::presence_penalty) and [`frequency_penalty`](Self::frequency_penalty),
///    [`dry`](Self::dry), [`no_repeat_ngram`](Self::no_repeat_ngram); then custom steps of the application (on the host
///    only);
/// 3. with a [`temperature`](Self::temperature) of 0, the most likely token. Otherwise
///    [`top_n_sigma`](Self::top_n_sigma), temperature (fixed or [dynamic](Self::dynamic_temperature)),
///    [`top_k`](Self::top_k), [`top_p`](Self::top_p), [`min_p`](Self::min_p), [`typical_p`](Self::typical_p),
///    [`xtc`](Self::xtc), [`mirostat`](Self::mirostat) and the draw, each on the result of the previous one.
///
/// Sampling is stateless: a function of these parameters, the seed, the position and the sequence's own tokens, so that
/// batching, speculation, fork and rewind cannot change the text. Host sampling gives the same tokens for every engine;
/// each engine that samples on its device has its own random generator.
///
/// ```
/// use mlxcel_core::SamplingParams;
///
/// let params = SamplingParams::greedy().with_temperature(0.7).with_top_p(0.9).with_seed(1);
/// assert_eq!(params.active_fields().to_string(), "temperature, top_p");
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct SamplingParams {
    /// The logits are divided by it; 0 selects the most likely token. At least 0.
    pub temperature: f32,
    /// Adapts the temperature to the entropy of the distribution.
    pub dynamic_temperature: Option<DynamicTemperature>,
    /// Keeps tokens whose logit is within `n` standard deviations of the largest (arXiv:2411.07641), computed over the
    /// remaining logits. Above 0.
    pub top_n_sigma: Option<f32>,
    /// Keeps the `k` most likely tokens. At least 1.
    pub top_k: Option<u32>,
    /// Nucleus sampling (arXiv:1904.09751): keeps the smallest set of most likely tokens whose probabilities sum to at
    /// least `p`. In (0, 1].
    pub top_p: Option<f32>,
    /// Keeps tokens at least `p` times as likely as the most likely one (arXiv:2407.01082). In [0, 1].
    pub min_p: Option<f32>,
    /// Locally typical sampling (arXiv:2202.00666): keeps the smallest set of tokens whose probabilities sum to at
    /// least `p`, in order of the distance of their surprise from the entropy. In (0, 1]. May remove the most likely
    /// token.
    pub typical_p: Option<f32>,
    /// Sometimes removes the most likely tokens.
    pub xtc: Option<Xtc>,
    /// Keeps the surprise of sampled tokens near a target.
    pub mirostat: Option<Mirostat>,
    /// Logits of tokens already in the sequence are divided (if positive) or multiplied (if negative) by it
    /// (arXiv:1909.05858). Above 0; 1 disables it.
    pub repetition_penalty: Option<f32>,
    /// Subtracted once from the logit of each token already generated.
    pub presence_penalty: Option<f32>,
    /// Subtracted from the logit of each token for every time it was generated.
    pub frequency_penalty: Option<f32>,
    /// How many of the sequence's last tokens the repetition, presence and frequency penalties consider. Defaults to
    /// the whole sequence, as in transformers; the default of llama.cpp is 64, that of mlx-lm 20. 0 disables the
    /// penalties.
    pub penalty_window: Option<u32>,
    /// Prevents repeated n-grams: removes tokens that would complete an n-gram that already occurs in the prompt or
    /// text (transformers' `no_repeat_ngram_size`). At least 1. If that would remove every token, none is removed.
    pub no_repeat_ngram: Option<u32>,
    /// Penalizes tokens that continue a repetition.
    pub dry: Option<Dry>,
    /// Added to the logits of these tokens; minus infinity forbids one. Entries of one token are summed.
    pub logit_bias: Vec<(TokenId, f32)>,
    /// Allows only these tokens; defaults to all.
    pub allowed_tokens: Option<Vec<TokenId>>,
    /// Forbids these tokens.
    pub forbidden_tokens: Vec<TokenId>,
    /// The seed of the random generator. Defaults to 0, so that programs are reproducible;
    /// [`with_random_seed`](Self::with_random_seed) sets a different one each time.
    pub seed: u64,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self::greedy()
    }
}

impl SamplingParams {
    /// Greedy decoding.
    pub fn greedy() -> Self {
        Self {
            temperature: 0.0,
            dynamic_temperature: None,
            top_n_sigma: None,
            top_k: None,
            top_p: None,
            min_p: None,
            typical_p: None,
            xtc: None,
            mirostat: None,
            repetition_penalty: None,
            presence_penalty: None,
            frequency_penalty: None,
            penalty_window: None,
            no_repeat_ngram: None,
            dry: None,
            logit_bias: Vec::new(),
            allowed_tokens: None,
            forbidden_tokens: Vec::new(),
            seed: 0,
        }
    }

    /// The fields that have an effect; none for greedy decoding. With a [`temperature`](Self::temperature) of 0,
    /// filters of the draw have none.
    pub fn active_fields(&self) -> SamplingFields {
        SamplingField::ALL.iter().copied().filter(|&field| self.is_active(field)).collect()
    }

    fn is_active(&self, field: SamplingField) -> bool {
        let drawn = self.temperature > 0.0;
        let repetition = self.repetition_penalty.is_some_and(|p| p != 1.0);
        let presence = self.presence_penalty.is_some_and(|p| p != 0.0);
        let frequency = self.frequency_penalty.is_some_and(|p| p != 0.0);
        match field {
            SamplingField::AllowedTokens => self.allowed_tokens.is_some(),
            SamplingField::ForbiddenTokens => !self.forbidden_tokens.is_empty(),
            SamplingField::LogitBias => !self.logit_bias.is_empty(),
            SamplingField::PenaltyWindow => {
                self.penalty_window.is_some() && (repetition || presence || frequency)
            }
            SamplingField::RepetitionPenalty => repetition,
            SamplingField::PresencePenalty => presence,
            SamplingField::FrequencyPenalty => frequency,
            SamplingField::Dry => self.dry.as_ref().is_some_and(|dry| dry.multiplier > 0.0),
            SamplingField::NoRepeatNgram => self.no_repeat_ngram.is_some(),
            SamplingField::Temperature => drawn,
            SamplingField::DynamicTemperature => {
                drawn && self.dynamic_temperature.is_some_and(|t| t.range > 0.0)
            }
            SamplingField::TopNSigma => drawn && self.top_n_sigma.is_some(),
            SamplingField::TopK => drawn && self.top_k.is_some(),
            SamplingField::TopP => drawn && self.top_p.is_some_and(|p| p < 1.0),
            SamplingField::MinP => drawn && self.min_p.is_some_and(|p| p > 0.0),
            SamplingField::TypicalP => drawn && self.typical_p.is_some_and(|p| p < 1.0),
            SamplingField::Xtc => {
                drawn && self.xtc.is_some_and(|xtc| xtc.probability > 0.0 && xtc.threshold <= 0.5)
            }
            SamplingField::Mirostat => drawn && self.mirostat.is_some(),
        }
    }

    /// For engines: [`logit_bias`](Self::logit_bias) summed by token.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] for a token outside the vocabulary, or if opposite infinities would be summed.
    pub fn biases(&self, vocabulary_size: usize) -> Result<BTreeMap<TokenId, f64>> {
        let mut biases = BTreeMap::new();
        for &(token, bias) in &self.logit_bias {
            let refuse = |message: &'static str| {
                Error::new(ErrorKind::InvalidInput, "step", message)
                    .with_context("field", SamplingField::LogitBias.as_str())
                    .with_context("token", token)
            };
            if token as usize >= vocabulary_size {
                return Err(refuse("the token is outside the vocabulary")
                    .with_context("vocabulary_size", vocabulary_size));
            }
            let sum: &mut f64 = biases.entry(token).or_default();
            *sum += f64::from(bias);
            if sum.is_nan() {
                return Err(refuse("the token has both a positive and a negative infinite bias"));
            }
        }
        Ok(biases)
    }
}
