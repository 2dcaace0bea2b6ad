//! How the next token is chosen.

use std::collections::BTreeMap;

use super::{Dry, DynamicTemperature, Mirostat, SamplingField, SamplingFields, Xtc};
use crate::{Error, ErrorKind, Result, TokenId};

/// How the next token is chosen; the default is greedy: the most likely token, ties go to the lowest id.
///
/// The order is one and fixed, that of transformers where it has the step:
///
/// 1. what may be chosen at all: a [`TokenMask`](crate::TokenMask), [`allowed_tokens`](Self::allowed_tokens),
///    [`forbidden_tokens`](Self::forbidden_tokens);
/// 2. [`logit_bias`](Self::logit_bias), [`repetition_penalty`](Self::repetition_penalty),
///    [`presence_penalty`](Self::presence_penalty) and [`frequency_penalty`](Self::frequency_penalty), [`dry`](Self::dry),
///    [`no_repeat_ngram`](Self::no_repeat_ngram); then the application's own steps, where the host samples;
/// 3. with a [`temperature`](Self::temperature) of 0 the most likely token. Else [`top_n_sigma`](Self::top_n_sigma),
///    temperature (fixed or [dynamic](Self::dynamic_temperature)), [`top_k`](Self::top_k), [`top_p`](Self::top_p),
///    [`min_p`](Self::min_p), [`typical_p`](Self::typical_p), [`xtc`](Self::xtc), [`mirostat`](Self::mirostat) and the draw, each
///    over what the one before left.
///
/// The draw is stateless: a function of these parameters, the seed, the position and the sequence's own tokens, so that
/// batching, look-ahead, fork and rewind cannot change what a sequence says. What it makes of the seed is its sampler's own:
/// draws on the host are the same for every engine, draws on a device those of that engine.
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
    /// Logits are divided by it before the draw; 0 chooses the most likely token. At least 0.
    pub temperature: f32,
    /// Moves the temperature with the entropy of the distribution.
    pub dynamic_temperature: Option<DynamicTemperature>,
    /// Only tokens whose logit is within `n` standard deviations of the largest may be drawn (arXiv:2411.07641). The deviation
    /// is that of all logits that are left. Above 0.
    pub top_n_sigma: Option<f32>,
    /// Only the `k` most likely tokens may be drawn. At least 1.
    pub top_k: Option<u32>,
    /// Only the least set of most likely tokens whose probabilities reach `p` may be drawn (nucleus sampling,
    /// arXiv:1904.09751). In (0, 1].
    pub top_p: Option<f32>,
    /// Only tokens at least `p` times as likely as the most likely one may be drawn (arXiv:2407.01082). In [0, 1].
    pub min_p: Option<f32>,
    /// Only the least set of tokens whose probabilities reach `p` may be drawn, those first whose surprise is nearest to the
    /// entropy (locally typical sampling, arXiv:2202.00666). In (0, 1]. It may remove the most likely token.
    pub typical_p: Option<f32>,
    /// Sometimes removes the most likely tokens.
    pub xtc: Option<Xtc>,
    /// Holds the surprise of what is drawn near a target.
    pub mirostat: Option<Mirostat>,
    /// Logits of tokens already in the sequence are divided (if positive) or multiplied (if negative) by it
    /// (arXiv:1909.05858). Above 0; 1 does nothing.
    pub repetition_penalty: Option<f32>,
    /// Subtracted once from the logit of each token already generated.
    pub presence_penalty: Option<f32>,
    /// Subtracted from the logit of each token for every time it was generated.
    pub frequency_penalty: Option<f32>,
    /// How many of the sequence's last tokens the repetition, presence and frequency penalties look at. Defaults to the whole
    /// sequence, as in transformers; llama.cpp's default is 64, that of mlx-lm 20. 0 turns the penalties off.
    pub penalty_window: Option<u32>,
    /// No run of `n` tokens occurs twice: a token that would complete one that the sequence holds, the prompt included, is
    /// removed (transformers' `no_repeat_ngram_size`). At least 1. Where that would leave no token, none is removed.
    pub no_repeat_ngram: Option<u32>,
    /// Penalizes going on with a repetition.
    pub dry: Option<Dry>,
    /// Added to the logits of these tokens; minus infinity forbids one. Entries of one token are summed.
    pub logit_bias: Vec<(TokenId, f32)>,
    /// Only these tokens may be chosen; defaults to all.
    pub allowed_tokens: Option<Vec<TokenId>>,
    /// These tokens are never chosen.
    pub forbidden_tokens: Vec<TokenId>,
    /// What the draws depend on besides the position. Defaults to 0, so that a program says the same each time it runs;
    /// [`with_random_seed`](Self::with_random_seed) takes another one each time.
    pub seed: u64,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self::greedy()
    }
}

impl SamplingParams {
    /// Always the most likely token.
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

    /// The fields that change something; none of them for greedy choice. Filters of a draw do not count where
    /// [`temperature`](Self::temperature) is 0, since nothing is drawn.
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

    /// For engines: what [`logit_bias`](Self::logit_bias) adds to the logit of each token that it names, entries of one token
    /// summed.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] for a token beyond the vocabulary, and for infinities that have no sum.
    pub fn biases(&self, vocabulary_size: usize) -> Result<BTreeMap<TokenId, f64>> {
        let mut biases = BTreeMap::new();
        for &(token, bias) in &self.logit_bias {
            let refuse = |message: &'static str| {
                Error::new(ErrorKind::InvalidInput, "step", message)
                    .with_context("field", SamplingField::LogitBias.as_str())
                    .with_context("token", token)
            };
            if token as usize >= vocabulary_size {
                return Err(refuse("the token is beyond the vocabulary")
                    .with_context("vocabulary_size", vocabulary_size));
            }
            let sum: &mut f64 = biases.entry(token).or_default();
            *sum += f64::from(bias);
            if sum.is_nan() {
                return Err(refuse("the biases of the token have no sum"));
            }
        }
        Ok(biases)
    }
}
