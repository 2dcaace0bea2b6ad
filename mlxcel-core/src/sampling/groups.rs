//! Parameters that belong together.

use crate::TokenId;

/// A temperature that follows how sure the model is (dynamic temperature, as llama.cpp's `dynatemp`).
///
/// With the entropy `H` of the softmax of the `n` candidates, the temperature is
/// `low + (high - low) * (H / ln n) ^ exponent`, where `low` and `high` are [`temperature`](crate::SamplingParams::temperature)
/// less and plus [`range`](Self::range), and `low` is at least 0.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct DynamicTemperature {
    /// How far the temperature moves to either side. At least 0; 0 fixes it.
    pub range: f32,
    /// How the entropy maps to the temperature; 1 is linear. Above 0.
    pub exponent: f32,
}

impl DynamicTemperature {
    /// A range to either side, with a linear mapping.
    pub fn new(range: f32) -> Self {
        Self { range, exponent: 1.0 }
    }

    /// Sets [`exponent`](Self::exponent).
    #[must_use]
    pub fn with_exponent(mut self, exponent: f32) -> Self {
        self.exponent = exponent;
        self
    }
}

/// "Don't repeat yourself": a penalty for each token that would go on with a repetition, which grows with the repetition's
/// length (as llama.cpp and text-generation-webui's pull request 5677).
///
/// Where the last `n` tokens also stand earlier in the text, `n` at least [`allowed_length`](Self::allowed_length), the logit of
/// the token that followed them there is lowered by `multiplier * base ^ (n - allowed_length)`.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Dry {
    /// How strong the penalty is. At least 0; 0 turns it off.
    pub multiplier: f32,
    /// How the penalty grows with each further repeated token. At least 1.
    pub base: f32,
    /// The shortest repetition that is penalized, in tokens. At least 1.
    pub allowed_length: u32,
    /// How many of the last tokens are looked at; defaults to the whole sequence.
    pub window: Option<u32>,
    /// Tokens across which no repetition is looked for, and which are never penalized, such as those with a line break or a
    /// quotation mark in them.
    pub breakers: Vec<TokenId>,
}

impl Dry {
    /// A penalty of this strength, with llama.cpp's defaults: base 1.75 and allowed length 2; over the whole sequence, with
    /// no breakers.
    pub fn new(multiplier: f32) -> Self {
        Self { multiplier, base: 1.75, allowed_length: 2, window: None, breakers: Vec::new() }
    }

    /// Sets [`base`](Self::base).
    #[must_use]
    pub fn with_base(mut self, base: f32) -> Self {
        self.base = base;
        self
    }

    /// Sets [`allowed_length`](Self::allowed_length).
    #[must_use]
    pub fn with_allowed_length(mut self, tokens: u32) -> Self {
        self.allowed_length = tokens;
        self
    }

    /// Sets [`window`](Self::window).
    #[must_use]
    pub fn with_window(mut self, tokens: u32) -> Self {
        self.window = Some(tokens);
        self
    }

    /// Sets [`breakers`](Self::breakers).
    #[must_use]
    pub fn with_breakers(mut self, tokens: impl Into<Vec<TokenId>>) -> Self {
        self.breakers = tokens.into();
        self
    }
}

/// "Exclude top choices": sometimes removes all but the least likely of the tokens that reach a threshold (as llama.cpp and
/// text-generation-webui's pull request 6335).
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Xtc {
    /// How often it happens. From 0 to 1; 0 turns it off.
    pub probability: f32,
    /// The probability from which a token is a top choice. From 0 to 1; above 0.5 nothing is removed, since two tokens cannot
    /// reach it.
    pub threshold: f32,
}

impl Xtc {
    /// With this probability, for tokens that have at least `threshold`.
    pub fn new(probability: f32, threshold: f32) -> Self {
        Self { probability, threshold }
    }
}

/// Mirostat 2 (arXiv:2007.14966, algorithm 2): draws only tokens whose surprise is at most `mu` bits, and moves `mu` so that
/// the surprise of what is drawn stays near [`tau`](Self::tau).
///
/// `mu` begins at `2 * tau`; each drawn token moves it by `-eta * (surprise - tau)`.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Mirostat {
    /// The surprise to hold, in bits. Above 0; llama.cpp's default is 5.
    pub tau: f32,
    /// How fast `mu` moves. Above 0; llama.cpp's default is 0.1.
    pub eta: f32,
}

impl Mirostat {
    /// With this surprise and learning rate.
    pub fn new(tau: f32, eta: f32) -> Self {
        Self { tau, eta }
    }
}
