//! Groups of sampling parameters.

use crate::token::TokenId;

/// Dynamic temperature, by the entropy of the distribution (llama.cpp's `dynatemp`).
///
/// With the entropy `H` of the softmax of the `n` candidates, the temperature is
/// `low + (high - low) * (H / ln n) ^ exponent`, where `low` and `high` are
/// [`temperature`](crate::SamplingParams::temperature) less and plus [`range`](Self::range), and `low` is at
/// least 0.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct DynamicTemperature {
    /// How far the temperature moves in each direction. At least 0; 0 disables it.
    pub range: f32,
    /// How the entropy maps to the temperature; 1 is linear. Above 0.
    pub exponent: f32,
}

impl DynamicTemperature {
    /// This range in each direction, with a linear mapping.
    pub fn new(range: f32) -> Self {
        Self { range, exponent: 1.0 }
    }

    setters! {
        /// Sets [`exponent`](Self::exponent).
        with_exponent(exponent: f32) => exponent = exponent;
    }
}

/// "Don't repeat yourself": a penalty for tokens that continue a repetition, growing with its length (as in
/// llama.cpp and text-generation-webui's pull request 5677).
///
/// If the last `n` tokens also occur earlier in the text, with `n` at least
/// [`allowed_length`](Self::allowed_length), the logit of the token that followed them there is reduced by
/// `multiplier * base ^ (n - allowed_length)`.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Dry {
    /// How strong the penalty is. At least 0; 0 turns it off.
    pub multiplier: f32,
    /// How the penalty grows with each further repeated token. At least 1.
    pub base: f32,
    /// The shortest repetition that is penalized, in tokens. At least 1.
    pub allowed_length: u32,
    /// How many of the last tokens are searched; defaults to the whole sequence.
    pub window: Option<u32>,
    /// Sequence breakers: repetitions do not extend across these tokens, and they are never penalized.
    /// Usually tokens with a line break or a quotation mark.
    pub breakers: Vec<TokenId>,
}

impl Dry {
    /// A penalty of this strength, with llama.cpp's defaults: base 1.75 and allowed length 2; over the whole
    /// sequence, with no breakers.
    pub fn new(multiplier: f32) -> Self {
        Self { multiplier, base: 1.75, allowed_length: 2, window: None, breakers: Vec::new() }
    }

    setters! {
        /// Sets [`base`](Self::base).
        with_base(base: f32) => base = base;
        /// Sets [`allowed_length`](Self::allowed_length).
        with_allowed_length(tokens: u32) => allowed_length = tokens;
        /// Sets [`window`](Self::window).
        with_window(tokens: u32) => window = Some(tokens);
        /// Sets [`breakers`](Self::breakers).
        with_breakers(tokens: impl Into<Vec<TokenId>>) => breakers = tokens.into();
    }
}

/// "Exclude top choices": sometimes removes all but the least likely of the tokens that reach a threshold (as
/// llama.cpp and text-generation-webui's pull request 6335).
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Xtc {
    /// The probability that it applies to a token. From 0 to 1; 0 disables it.
    pub probability: f32,
    /// The minimum probability of a top choice. From 0 to 1; above 0.5 nothing is removed, since at most one
    /// token can reach it.
    pub threshold: f32,
}

impl Xtc {
    /// With this probability, for tokens that have at least `threshold`.
    pub fn new(probability: f32, threshold: f32) -> Self {
        Self { probability, threshold }
    }
}

/// Mirostat 2 (arXiv:2007.14966, algorithm 2): samples only tokens whose surprise is at most `mu` bits, and
/// adapts `mu` so that the surprise of sampled tokens stays near [`tau`](Self::tau).
///
/// `mu` starts at `2 * tau`; each sampled token changes it by `-eta * (surprise - tau)`.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Mirostat {
    /// The target surprise, in bits. Above 0; llama.cpp's default is 5.
    pub tau: f32,
    /// The learning rate of `mu`. Above 0; llama.cpp's default is 0.1.
    pub eta: f32,
}

impl Mirostat {
    /// With this target surprise and learning rate.
    pub fn new(tau: f32, eta: f32) -> Self {
        Self { tau, eta }
    }
}
