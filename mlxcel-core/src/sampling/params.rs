//! The sampling parameters: one table, from which builders, names, validation and settings by name follow.
//!
//! A parameter is a row of the table below. If an engine can apply it, the row is all that this crate needs;
//! the host's step is a file of `mlxcel-session`.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher};

use super::number::{COUNT, FINITE, GROWTH, MASS, NOT_NEGATIVE, Number, POSITIVE, PROBABILITY, WINDOW};
use super::{Dry, DynamicTemperature, Mirostat, SamplingFields, SamplingNumber, Xtc};
use crate::error::{Error, ErrorKind, Result};
use crate::token::TokenId;

/// Where a number is: a field of the parameters, or a member of a group.
macro_rules! place {
    ($params:ident.$field:ident) => {
        Some(&mut $params.$field as &mut dyn Number)
    };
    ($params:ident.$field:ident.$member:ident) => {
        $params.$field.as_mut().map(|group| &mut group.$member as &mut dyn Number)
    };
}

/// Declares the parameters in the order in which they are applied. A row has
///
/// * the docs, the name in [`SamplingField`] and the field of [`SamplingParams`], whose default disables it,
/// * the builder, and the value that it sets,
/// * when the field has an effect,
/// * its numbers with their ranges: the field itself, or members of a group, of which the first makes a group
///   that is not there.
///
/// The first argument is a dollar sign, for the macro that this one writes.
macro_rules! parameters {
    ($d:tt
        $(
            $(#[doc = $doc:literal])*
            $name:ident => $field:ident: $type:ty, $with:ident($value:ident: $argument:ty) = $set:expr,
            if $active:expr,
            [$($(#[doc = $about:literal])* $number:ident $(= $member:ident $(($new:expr))?)? in $range:ident),*];
        )*
    ) => {
        /// Sampling parameters. The default is greedy decoding: the most likely token; ties go to the lowest id.
        ///
        /// The order of the steps is fixed, and that of transformers for steps that it has:
        ///
        /// 1. limits: a [`TokenMask`](crate::TokenMask), [`allowed_tokens`](Self::allowed_tokens),
        ///    [`forbidden_tokens`](Self::forbidden_tokens);
        /// 2. [`logit_bias`](Self::logit_bias), [`repetition_penalty`](Self::repetition_penalty),
        ///    [`presence_penalty`](Self::presence_penalty) and [`frequency_penalty`](Self::frequency_penalty),
        ///    [`dry`](Self::dry), [`no_repeat_ngram`](Self::no_repeat_ngram); then custom steps of the application (on the
        ///    host only);
        /// 3. with a [`temperature`](Self::temperature) of 0, the most likely token. Otherwise
        ///    [`top_n_sigma`](Self::top_n_sigma), temperature (fixed or [dynamic](Self::dynamic_temperature)),
        ///    [`top_k`](Self::top_k), [`top_p`](Self::top_p), [`min_p`](Self::min_p), [`typical_p`](Self::typical_p),
        ///    [`xtc`](Self::xtc), [`mirostat`](Self::mirostat) and the draw, each on the result of the previous one.
        ///
        /// Sampling is stateless: a function of these parameters, the seed, the position and the sequence's own tokens, so
        /// that batching, speculation, fork and rewind cannot change the text. Host sampling gives the same tokens for every
        /// engine; each engine that samples on its device has its own random generator.
        ///
        /// ```
        /// use mlxcel_core::SamplingParams;
        ///
        /// let params = SamplingParams::greedy().with_temperature(0.7).with_top_p(0.9).with_seed(1);
        /// assert_eq!(params.active_fields().to_string(), "temperature, top_p");
        /// ```
        #[derive(Clone, Debug, Default, PartialEq)]
        #[non_exhaustive]
        pub struct SamplingParams {
            $($(#[doc = $doc])* pub $field: $type,)*
            /// The seed of the random generator. Defaults to 0, so that programs are reproducible;
            /// [`with_random_seed`](Self::with_random_seed) sets a different one each time.
            pub seed: u64,
        }

        impl SamplingParams {
            $(
                #[doc = concat!("Sets [`", stringify!($field), "`](Self::", stringify!($field), ").")]
                #[must_use]
                pub fn $with(mut self, $value: $argument) -> Self {
                    self.$field = $set;
                    self
                }
            )*

            fn is_active(&self, field: SamplingField) -> bool {
                let active: fn(&Self) -> bool = match field {
                    $(SamplingField::$name => $active,)*
                };
                active(self)
            }
        }

        /// A parameter of [`SamplingParams`] that an engine may apply itself, in the order of application.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum SamplingField {
            $(
                #[doc = concat!("[`SamplingParams::", stringify!($field), "`].")]
                $name,
            )*
        }

        impl SamplingField {
            /// All fields, including those of later versions: for tests and listings. An engine must claim fields one
            /// by one, by name.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// The name of the field in [`SamplingParams`].
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($field),)*
                }
            }

            /// The documentation of the field.
            pub(super) fn about(self) -> &'static str {
                match self {
                    $(Self::$name => concat!($($doc),*),)*
                }
            }
        }

        impl SamplingNumber {
            /// All numbers, in the order in which they have to be set.
            pub const ALL: &[Self] = &[$($(
                Self {
                    name: stringify!($number),
                    field: SamplingField::$name,
                    about: concat!($($about),*),
                    range: &$range,
                    begin: |_params| { $($(_params.$field.get_or_insert($new);)?)? },
                    at: |params| place!(params.$field$(.$member)?),
                },
            )*)*];
        }

        /// Writes the builders of [`SamplingParams`] for a type with such parameters in a field.
        #[doc(hidden)]
        #[macro_export]
        macro_rules! __sampling_builders {
            ($d target:ident.$d field:ident) => {
                impl $d target {
                    $(
                        #[doc = concat!("Sets [`SamplingParams::", stringify!($field), "`].")]
                        #[must_use]
                        pub fn $with(mut self, $value: $argument) -> Self {
                            self.$d field = self.$d field.$with($value);
                            self
                        }
                    )*
                }
            };
        }
    };
}

parameters! { $
    /// Allows only these tokens; defaults to all.
    AllowedTokens => allowed_tokens: Option<Vec<TokenId>>,
        with_allowed_tokens(tokens: impl Into<Vec<TokenId>>) = Some(tokens.into()),
        if |all| all.allowed_tokens.is_some(), [];
    /// Forbids these tokens.
    ForbiddenTokens => forbidden_tokens: Vec<TokenId>,
        with_forbidden_tokens(tokens: impl Into<Vec<TokenId>>) = tokens.into(),
        if |all| !all.forbidden_tokens.is_empty(), [];
    /// Added to the logits of these tokens; minus infinity forbids one. Entries of one token are summed.
    LogitBias => logit_bias: Vec<(TokenId, f32)>,
        with_logit_bias(biases: impl Into<Vec<(TokenId, f32)>>) = biases.into(),
        if |all| !all.logit_bias.is_empty(), [];
    /// How many of the sequence's last tokens the repetition, presence and frequency penalties consider. Defaults to
    /// the whole sequence, as in transformers; the default of llama.cpp is 64, that of mlx-lm 20. 0 disables the
    /// penalties.
    PenaltyWindow => penalty_window: Option<u32>, with_penalty_window(tokens: u32) = Some(tokens),
        if |all| all.penalty_window.is_some() && all.has_penalty(),
        [penalty_window in WINDOW];
    /// Logits of tokens already in the sequence are divided (if positive) or multiplied (if negative) by it
    /// (arXiv:1909.05858). Above 0; 1 disables it.
    RepetitionPenalty => repetition_penalty: Option<f32>, with_repetition_penalty(penalty: f32) = Some(penalty),
        if |all| all.repetition_penalty.is_some_and(|penalty| penalty != 1.0),
        [repetition_penalty in POSITIVE];
    /// Subtracted once from the logit of each token already generated.
    PresencePenalty => presence_penalty: Option<f32>, with_presence_penalty(penalty: f32) = Some(penalty),
        if |all| all.presence_penalty.is_some_and(|penalty| penalty != 0.0),
        [presence_penalty in FINITE];
    /// Subtracted from the logit of each token for every time it was generated.
    FrequencyPenalty => frequency_penalty: Option<f32>, with_frequency_penalty(penalty: f32) = Some(penalty),
        if |all| all.frequency_penalty.is_some_and(|penalty| penalty != 0.0),
        [frequency_penalty in FINITE];
    /// Penalizes tokens that continue a repetition.
    Dry => dry: Option<Dry>, with_dry(dry: Dry) = Some(dry),
        if |all| all.dry.as_ref().is_some_and(|dry| dry.multiplier > 0.0),
        [
            /// Penalizes tokens that continue a repetition, with this strength (DRY). At least 0; 0 turns it off.
            dry_multiplier = multiplier (Dry::new(0.0)) in NOT_NEGATIVE,
            /// How the DRY penalty grows with each further repeated token. At least 1.
            dry_base = base in GROWTH,
            /// The shortest repetition that DRY penalizes, in tokens. At least 1.
            dry_allowed_length = allowed_length in COUNT,
            /// How many of the last tokens DRY searches; defaults to the whole sequence.
            dry_window = window in WINDOW
        ];
    /// Prevents repeated n-grams: removes tokens that would complete an n-gram that already occurs in the prompt or
    /// text (transformers' `no_repeat_ngram_size`). At least 1. If that would remove every token, none is removed.
    NoRepeatNgram => no_repeat_ngram: Option<u32>, with_no_repeat_ngram(n: u32) = Some(n),
        if |all| all.no_repeat_ngram.is_some(),
        [no_repeat_ngram in COUNT];
    /// Keeps tokens whose logit is within `n` standard deviations of the largest (arXiv:2411.07641), computed over the
    /// remaining logits. Above 0.
    TopNSigma => top_n_sigma: Option<f32>, with_top_n_sigma(n: f32) = Some(n),
        if |all| all.is_drawn() && all.top_n_sigma.is_some(),
        [top_n_sigma in POSITIVE];
    /// The logits are divided by it; 0 selects the most likely token. At least 0.
    Temperature => temperature: f32, with_temperature(temperature: f32) = temperature,
        if Self::is_drawn,
        [temperature in NOT_NEGATIVE];
    /// Adapts the temperature to the entropy of the distribution.
    DynamicTemperature => dynamic_temperature: Option<DynamicTemperature>,
        with_dynamic_temperature(dynamic: DynamicTemperature) = Some(dynamic),
        if |all| all.is_drawn() && all.dynamic_temperature.is_some_and(|dynamic| dynamic.range > 0.0),
        [
            /// How far the temperature moves with the entropy of the distribution, in each direction. At least 0; 0
            /// disables it.
            dynamic_temperature = range (DynamicTemperature::new(0.0)) in NOT_NEGATIVE,
            /// How the entropy maps to the dynamic temperature; 1 is linear. Above 0.
            dynamic_temperature_exponent = exponent in POSITIVE
        ];
    /// Keeps the `k` most likely tokens. At least 1.
    TopK => top_k: Option<u32>, with_top_k(k: u32) = Some(k),
        if |all| all.is_drawn() && all.top_k.is_some(),
        [top_k in COUNT];
    /// Nucleus sampling (arXiv:1904.09751): keeps the smallest set of most likely tokens whose probabilities sum to at
    /// least `p`. In (0, 1].
    TopP => top_p: Option<f32>, with_top_p(p: f32) = Some(p),
        if |all| all.is_drawn() && all.top_p.is_some_and(|p| p < 1.0),
        [top_p in MASS];
    /// Keeps tokens at least `p` times as likely as the most likely one (arXiv:2407.01082). In [0, 1].
    MinP => min_p: Option<f32>, with_min_p(p: f32) = Some(p),
        if |all| all.is_drawn() && all.min_p.is_some_and(|p| p > 0.0),
        [min_p in PROBABILITY];
    /// Locally typical sampling (arXiv:2202.00666): keeps the smallest set of tokens whose probabilities sum to at
    /// least `p`, in order of the distance of their surprise from the entropy. In (0, 1]. May remove the most likely
    /// token.
    TypicalP => typical_p: Option<f32>, with_typical_p(p: f32) = Some(p),
        if |all| all.is_drawn() && all.typical_p.is_some_and(|p| p < 1.0),
        [typical_p in MASS];
    /// Sometimes removes the most likely tokens.
    Xtc => xtc: Option<Xtc>, with_xtc(xtc: Xtc) = Some(xtc),
        if |all| all.is_drawn() && all.xtc.is_some_and(|xtc| xtc.probability > 0.0 && xtc.threshold <= 0.5),
        [
            /// The probability with which all but the least likely of the top choices are removed (XTC). From 0 to 1.
            xtc_probability = probability (Xtc::new(0.0, 0.1)) in PROBABILITY,
            /// The minimum probability of a top choice of XTC. From 0 to 1; above 0.5 nothing is removed.
            xtc_threshold = threshold in PROBABILITY
        ];
    /// Keeps the surprise of sampled tokens near a target.
    Mirostat => mirostat: Option<Mirostat>, with_mirostat(mirostat: Mirostat) = Some(mirostat),
        if |all| all.is_drawn() && all.mirostat.is_some(),
        [
            /// The target surprise of Mirostat 2, in bits. Above 0; llama.cpp's default is 5.
            mirostat_tau = tau (Mirostat::new(5.0, 0.1)) in POSITIVE,
            /// The learning rate of Mirostat 2. Above 0.
            mirostat_eta = eta in POSITIVE
        ];
}

impl SamplingParams {
    /// Greedy decoding.
    pub fn greedy() -> Self {
        Self::default()
    }

    setters! {
        /// Sets [`seed`](Self::seed).
        with_seed(seed: u64) => seed = seed;
    }

    /// Sets [`seed`](Self::seed) to a different number at each call, so that sampled text differs from run to
    /// run. Read the field to reproduce a text.
    #[must_use]
    pub fn with_random_seed(self) -> Self {
        // The standard library's keys for hash maps are random.
        let seed = std::collections::hash_map::RandomState::new().build_hasher().finish();
        self.with_seed(seed)
    }

    /// The fields that have an effect; none for greedy decoding. With a [`temperature`](Self::temperature) of
    /// 0, filters of the draw have none.
    pub fn active_fields(&self) -> SamplingFields {
        SamplingField::ALL.iter().copied().filter(|&field| self.is_active(field)).collect()
    }

    fn is_drawn(&self) -> bool {
        self.temperature > 0.0
    }

    fn has_penalty(&self) -> bool {
        [SamplingField::RepetitionPenalty, SamplingField::PresencePenalty, SamplingField::FrequencyPenalty]
            .into_iter()
            .any(|field| self.is_active(field))
    }

    /// For engines: [`logit_bias`](Self::logit_bias) summed by token.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] for a token outside the vocabulary, or if opposite infinities would be
    /// summed.
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
