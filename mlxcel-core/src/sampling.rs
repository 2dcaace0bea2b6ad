//! What to draw, and who draws it: parameters, negotiation, masks.

use std::collections::BTreeMap;
use std::fmt;

use crate::{Capabilities, Error, ErrorKind, Result, TokenId};

/// One field of [`SamplingParams`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SamplingField {
    /// [`SamplingParams::temperature`].
    Temperature,
    /// [`SamplingParams::top_k`].
    TopK,
    /// [`SamplingParams::top_p`].
    TopP,
    /// [`SamplingParams::min_p`].
    MinP,
    /// [`SamplingParams::repetition_penalty`].
    RepetitionPenalty,
    /// [`SamplingParams::presence_penalty`].
    PresencePenalty,
    /// [`SamplingParams::frequency_penalty`].
    FrequencyPenalty,
    /// [`SamplingParams::logit_bias`].
    LogitBias,
}

impl SamplingField {
    /// Every field.
    pub const ALL: [Self; 8] = [
        Self::Temperature,
        Self::TopK,
        Self::TopP,
        Self::MinP,
        Self::RepetitionPenalty,
        Self::PresencePenalty,
        Self::FrequencyPenalty,
        Self::LogitBias,
    ];

    /// The name of the field in [`SamplingParams`].
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Temperature => "temperature",
            Self::TopK => "top_k",
            Self::TopP => "top_p",
            Self::MinP => "min_p",
            Self::RepetitionPenalty => "repetition_penalty",
            Self::PresencePenalty => "presence_penalty",
            Self::FrequencyPenalty => "frequency_penalty",
            Self::LogitBias => "logit_bias",
        }
    }
}

/// A set of [`SamplingField`]s.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SamplingFields(u16);

impl SamplingFields {
    /// No field: greedy choice alone.
    pub const NONE: Self = Self(0);

    /// The set with `field` in it.
    #[must_use]
    pub fn with(self, field: SamplingField) -> Self {
        Self(self.0 | 1 << field as u16)
    }

    /// Whether `field` is in the set.
    pub fn contains(self, field: SamplingField) -> bool {
        self.0 & 1 << field as u16 != 0
    }

    /// The fields that are in both sets.
    #[must_use]
    pub fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// The fields in the set.
    pub fn iter(self) -> impl Iterator<Item = SamplingField> {
        SamplingField::ALL.into_iter().filter(move |&field| self.contains(field))
    }
}

impl FromIterator<SamplingField> for SamplingFields {
    fn from_iter<I: IntoIterator<Item = SamplingField>>(fields: I) -> Self {
        fields.into_iter().fold(Self::NONE, Self::with)
    }
}

impl fmt::Display for SamplingFields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, field) in self.iter().enumerate() {
            write!(f, "{}{}", if i == 0 { "" } else { ", " }, field.as_str())?;
        }
        Ok(())
    }
}

/// How the next token is chosen; the default is greedy: the likeliest token, of equals the lowest id.
///
/// The fields are applied in the order of transformers: logit bias, repetition penalty, presence and frequency penalties; then,
/// where the temperature is above 0, temperature, top-k, top-p, min-p and the draw, each over what the one before left.
///
/// The draw is stateless: a function of these parameters, the seed, the position and the sequence's own tokens, so that
/// batching, look-ahead, fork and rewind cannot change what a sequence says. What it makes of the seed is its sampler's own:
/// draws on the host are the same for every engine, draws on a device those of that engine.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct SamplingParams {
    /// Logits are divided by it before the draw; 0 chooses the likeliest token. At least 0.
    pub temperature: f32,
    /// Only the `k` likeliest tokens may be drawn. At least 1.
    pub top_k: Option<u32>,
    /// Only the least set of likeliest tokens whose probabilities reach `p` may be drawn (nucleus sampling,
    /// arXiv:1904.09751). In (0, 1].
    pub top_p: Option<f32>,
    /// Only tokens at least `p` times as likely as the likeliest may be drawn (arXiv:2407.01082). In [0, 1].
    pub min_p: Option<f32>,
    /// Logits of tokens already in the sequence are divided (if positive) or multiplied (if negative) by it
    /// (arXiv:1909.05858). Above 0; 1 does nothing.
    pub repetition_penalty: Option<f32>,
    /// Subtracted once from the logit of each token already generated.
    pub presence_penalty: Option<f32>,
    /// Subtracted from the logit of each token for every time it was generated.
    pub frequency_penalty: Option<f32>,
    /// Added to the logits of these tokens.
    pub logit_bias: Vec<(TokenId, f32)>,
    /// What the draws depend on besides the position.
    pub seed: u64,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self::greedy()
    }
}

impl SamplingParams {
    /// Always the likeliest token.
    pub fn greedy() -> Self {
        Self {
            temperature: 0.0,
            top_k: None,
            top_p: None,
            min_p: None,
            repetition_penalty: None,
            presence_penalty: None,
            frequency_penalty: None,
            logit_bias: Vec::new(),
            seed: 0,
        }
    }

    /// The fields that change something; none of them for greedy choice. Filters of a draw do not count where
    /// [`temperature`](Self::temperature) is 0, since nothing is drawn.
    pub fn active_fields(&self) -> SamplingFields {
        let drawn = self.temperature > 0.0;
        let active = |field: &SamplingField| match field {
            SamplingField::Temperature => drawn,
            SamplingField::TopK => drawn && self.top_k.is_some(),
            SamplingField::TopP => drawn && self.top_p.is_some_and(|p| p < 1.0),
            SamplingField::MinP => drawn && self.min_p.is_some_and(|p| p > 0.0),
            SamplingField::RepetitionPenalty => self.repetition_penalty.is_some_and(|p| p != 1.0),
            SamplingField::PresencePenalty => self.presence_penalty.is_some_and(|p| p != 0.0),
            SamplingField::FrequencyPenalty => self.frequency_penalty.is_some_and(|p| p != 0.0),
            SamplingField::LogitBias => !self.logit_bias.is_empty(),
        };
        SamplingField::ALL.into_iter().filter(active).collect()
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

    /// Refuses values outside their range.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] that names the field and its value.
    pub fn validate(&self) -> Result<()> {
        let check = |valid: bool, field: SamplingField, range: &'static str, value: &dyn fmt::Display| {
            if valid {
                return Ok(());
            }
            Err(Error::new(ErrorKind::InvalidInput, "check sampling parameters", range)
                .with_context("field", field.as_str())
                .with_context("value", value))
        };
        let (t, finite) = (self.temperature, "it must be a finite number");
        check(
            t.is_finite() && t >= 0.0,
            SamplingField::Temperature,
            "it must be a finite number of at least 0",
            &t,
        )?;
        if let Some(k) = self.top_k {
            check(k >= 1, SamplingField::TopK, "it must be at least 1", &k)?;
        }
        if let Some(p) = self.top_p {
            check(p > 0.0 && p <= 1.0, SamplingField::TopP, "it must be above 0 and at most 1", &p)?;
        }
        if let Some(p) = self.min_p {
            check((0.0..=1.0).contains(&p), SamplingField::MinP, "it must be from 0 to 1", &p)?;
        }
        if let Some(p) = self.repetition_penalty {
            check(
                p.is_finite() && p > 0.0,
                SamplingField::RepetitionPenalty,
                "it must be finite and above 0",
                &p,
            )?;
        }
        if let Some(p) = self.presence_penalty {
            check(p.is_finite(), SamplingField::PresencePenalty, finite, &p)?;
        }
        if let Some(p) = self.frequency_penalty {
            check(p.is_finite(), SamplingField::FrequencyPenalty, finite, &p)?;
        }
        self.logit_bias.iter().try_for_each(|(_, bias)| {
            check(!bias.is_nan(), SamplingField::LogitBias, "it must be a number", bias)
        })
    }
}

/// Who chooses the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SamplingPlace {
    /// The engine, on its device: [`Want::Next`](crate::Want::Next).
    Device,
    /// The application's sampler, from [`Want::Logits`](crate::Want::Logits).
    Host,
}

/// [`SamplingParams`] together with where they are applied: settled before the run, and printable.
///
/// ```
/// use mlxcel_core::{Capabilities, SamplingParams, SamplingPlace, SamplingPlan};
///
/// let engine = Capabilities::new(1, 1024).with_logits(true);
/// let mut params = SamplingParams::greedy();
/// assert_eq!(SamplingPlan::negotiate(&params, &engine)?.place(), SamplingPlace::Device);
/// params.temperature = 0.7;
/// let plan = SamplingPlan::negotiate(&params, &engine)?;
/// assert_eq!(plan.to_string(), "temperature on the host");
/// # Ok::<(), mlxcel_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingPlan {
    params: SamplingParams,
    place: SamplingPlace,
    prompt_length: usize,
}

impl SamplingPlan {
    /// Always the likeliest token, chosen by the engine: every engine can.
    pub fn greedy() -> Self {
        Self { params: SamplingParams::greedy(), place: SamplingPlace::Device, prompt_length: 0 }
    }

    /// Settles where `params` are applied by an engine with `capabilities`: on the device where it applies every active
    /// field, else on the host where it hands out logits.
    ///
    /// The fields of one draw build on one another, so they are applied in one place.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] for a value out of range, [`ErrorKind::Unsupported`] for the first field that neither
    /// side can apply; both name the field.
    pub fn negotiate(params: &SamplingParams, capabilities: &Capabilities) -> Result<Self> {
        params.validate()?;
        let missing = params.active_fields().iter().find(|&field| !capabilities.sampling.contains(field));
        let place = match missing {
            None => SamplingPlace::Device,
            Some(_) if capabilities.logits => SamplingPlace::Host,
            Some(field) => {
                return Err(Error::unsupported(
                    "negotiate sampling",
                    "the engine neither applies this field nor hands out logits",
                )
                .with_context("field", field.as_str()));
            }
        };
        Ok(Self { params: params.clone(), place, prompt_length: 0 })
    }

    /// Tells how many of a sequence's first tokens were given and not generated: the presence and frequency penalties leave
    /// them out. None where it is not told. [`TokenStream`](crate::TokenStream) tells it for its own plan.
    #[must_use]
    pub fn with_prompt_length(mut self, tokens: usize) -> Self {
        self.prompt_length = tokens;
        self
    }

    /// How many of a sequence's first tokens were given and not generated.
    pub fn prompt_length(&self) -> usize {
        self.prompt_length
    }

    /// The parameters.
    pub fn params(&self) -> &SamplingParams {
        &self.params
    }

    /// Who chooses the token.
    pub fn place(&self) -> SamplingPlace {
        self.place
    }

    /// Whether this is plain greedy choice.
    pub fn is_greedy(&self) -> bool {
        self.params.active_fields() == SamplingFields::NONE
    }
}

impl fmt::Display for SamplingPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = match self.place {
            SamplingPlace::Device => "on the device",
            SamplingPlace::Host => "on the host",
        };
        if self.is_greedy() {
            return write!(f, "greedy {place}");
        }
        write!(f, "{} {place}", self.params.active_fields())
    }
}

/// The tokens that may be chosen, as a set over the vocabulary; for constrained generation.
///
/// Honoured by engines that claim [`Capabilities::token_masks`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenMask {
    words: Vec<u64>,
    size: usize,
}

impl TokenMask {
    /// A mask over a vocabulary of `size` that allows nothing yet.
    pub fn none(size: usize) -> Self {
        Self { words: vec![0; size.div_ceil(64)], size }
    }

    /// A mask over a vocabulary of `size` that allows exactly `tokens`; those beyond the vocabulary are left out.
    pub fn allowing(size: usize, tokens: impl IntoIterator<Item = TokenId>) -> Self {
        let mut mask = Self::none(size);
        tokens.into_iter().for_each(|token| mask.allow(token));
        mask
    }

    /// Allows `token`; nothing happens where it is beyond the vocabulary.
    pub fn allow(&mut self, token: TokenId) {
        if (token as usize) < self.size {
            self.words[token as usize / 64] |= 1 << (token % 64);
        }
    }

    /// Whether `token` may be chosen.
    pub fn allows(&self, token: TokenId) -> bool {
        (token as usize) < self.size && self.words[token as usize / 64] >> (token % 64) & 1 == 1
    }

    /// The size of the vocabulary that it was made for.
    pub fn vocabulary_size(&self) -> usize {
        self.size
    }

    /// How many tokens may be chosen.
    pub fn count(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether no token may be chosen.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|&word| word == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_that_nobody_applies_is_named() {
        let mut params = SamplingParams::greedy();
        params.temperature = 1.0;
        params.min_p = Some(0.1);
        let engine =
            Capabilities::new(1, 8).with_sampling(SamplingFields::NONE.with(SamplingField::Temperature));
        let error = SamplingPlan::negotiate(&params, &engine).unwrap_err();
        assert_eq!((error.kind(), error.context("field")), (ErrorKind::Unsupported, Some("min_p")));
    }

    #[test]
    fn a_value_out_of_range_is_refused_by_field() {
        for (change, field) in [
            ((|p| p.temperature = f32::NAN) as fn(&mut SamplingParams), "temperature"),
            (|p| p.top_k = Some(0), "top_k"),
            (|p| p.top_p = Some(1.5), "top_p"),
            (|p| p.min_p = Some(-0.1), "min_p"),
            (|p| p.repetition_penalty = Some(0.0), "repetition_penalty"),
            (|p| p.presence_penalty = Some(f32::INFINITY), "presence_penalty"),
            (|p| p.frequency_penalty = Some(f32::NAN), "frequency_penalty"),
            (|p| p.logit_bias = vec![(0, f32::NAN)], "logit_bias"),
        ] {
            let mut params = SamplingParams::greedy();
            change(&mut params);
            assert_eq!(params.validate().unwrap_err().context("field"), Some(field));
        }
    }

    #[test]
    fn a_mask_allows_what_it_was_told_and_nothing_beyond_the_vocabulary() {
        let mask = TokenMask::allowing(70, [0, 69, 70, 1000]);
        let allowed: Vec<_> = (0..2000).filter(|&token| mask.allows(token)).collect();
        assert_eq!(allowed, [0, 69]);
        assert!(TokenMask::none(70).is_empty() && !mask.is_empty() && mask.count() == 2);
    }
}
