//! Sampling steps.

use std::fmt;

use mlxcel_core::{Result, SamplingContext, TokenId, TokenMask};

use super::Candidates;
use super::random::Random;

/// One step from logits to a token: it changes scores or removes candidates.
///
/// The fields of [`SamplingParams`](crate::SamplingParams) are such steps, and an application adds custom
/// ones with [`Options::with_step`](crate::Options::with_step). Custom steps run in order after bias and
/// penalties and before temperature and filters, also for greedy decoding. They run on the host, so the
/// engine has to claim [`Capabilities::logits`](crate::Capabilities::logits).
///
/// A step is a pure function of its arguments: it keeps no state between tokens, so that batching, rewinding
/// and recomputing cannot change the text.
///
/// ```
/// use std::sync::Arc;
///
/// use mlxcel_session::{Candidates, Options, Result, SamplingStep, StepContext};
///
/// /// No token twice in a row.
/// #[derive(Debug)]
/// struct NoStutter;
///
/// impl SamplingStep for NoStutter {
///     fn name(&self) -> &str {
///         "no_stutter"
///     }
///
///     fn apply(&self, candidates: &mut Candidates, context: &StepContext<'_>) -> Result<()> {
///         if let Some(&last) = context.tokens().last() {
///             candidates.remove(last);
///         }
///         Ok(())
///     }
/// }
///
/// let options = Options::default().with_step(Arc::new(NoStutter));
/// assert_eq!(options.steps.len(), 1);
/// ```
pub trait SamplingStep: fmt::Debug + Send + Sync {
    /// The name, for listings.
    fn name(&self) -> &str;

    /// Modifies the candidates. If it removes all of them, the generation fails.
    ///
    /// # Errors
    ///
    /// Any error; the generation fails with it.
    fn apply(&self, candidates: &mut Candidates, context: &StepContext<'_>) -> Result<()>;
}

/// The context of a [`SamplingStep`]: the sequence, the mask and the random numbers.
#[derive(Clone, Copy, Debug)]
pub struct StepContext<'a> {
    sequence: &'a SamplingContext<'a>,
    random: &'a Random,
}

impl<'a> StepContext<'a> {
    pub(super) fn new(sequence: &'a SamplingContext<'a>, random: &'a Random) -> Self {
        Self { sequence, random }
    }

    /// All tokens of the sequence so far, prompt included.
    pub fn tokens(&self) -> &'a [TokenId] {
        self.sequence.tokens
    }

    /// The last `window` tokens of the sequence; all of them for `None`.
    pub fn last_tokens(&self, window: Option<u32>) -> &'a [TokenId] {
        let window = window.map_or(usize::MAX, |window| window as usize);
        &self.tokens()[self.tokens().len().saturating_sub(window)..]
    }

    /// The generated tokens.
    pub fn generated(&self) -> &'a [TokenId] {
        self.sequence.generated()
    }

    /// The natural log probability of each generated token under the distribution it was sampled from, oldest
    /// first.
    pub fn drawn(&self) -> &'a [f32] {
        self.sequence.drawn
    }

    /// The allowed tokens; `None` allows all.
    pub fn mask(&self) -> Option<&'a TokenMask> {
        self.sequence.mask
    }

    /// A random number in [0, 1) that depends only on the seed, the position and `number`. Sampling uses
    /// number 0 and XTC number 1; custom steps use numbers from 16 on.
    pub fn uniform(&self, number: u16) -> f64 {
        self.random.uniform(self.tokens().len(), number)
    }
}
