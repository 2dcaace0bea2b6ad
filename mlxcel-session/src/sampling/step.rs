//! What a sampling step is.

use std::fmt;

use mlxcel_core::{Result, SamplingContext, TokenId, TokenMask};

use super::Candidates;
use super::random::Random;

/// One step on the way from logits to a token: it changes scores or removes candidates.
///
/// The steps of [`SamplingParams`](crate::SamplingParams) are of this kind, and an application brings its own by
/// [`Options::with_step`](crate::Options::with_step). Own steps run in their order after bias and penalties and before
/// temperature and filters, for greedy choice too; only the host can run them, so the engine has to hand out logits.
///
/// A step is a function of its arguments alone: it keeps nothing from token to token, so that batching, rewinding and computing
/// anew cannot change what a sequence says.
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
    /// The name by which it is listed.
    fn name(&self) -> &str;

    /// Changes the candidates. Removing all of them is an error of the generation.
    ///
    /// # Errors
    ///
    /// Whatever keeps it from doing so; the generation ends with it.
    fn apply(&self, candidates: &mut Candidates, context: &StepContext<'_>) -> Result<()>;
}

/// What a [`SamplingStep`] knows besides the candidates.
#[derive(Clone, Copy, Debug)]
pub struct StepContext<'a> {
    sequence: &'a SamplingContext<'a>,
    random: &'a Random,
}

impl<'a> StepContext<'a> {
    pub(super) fn new(sequence: &'a SamplingContext<'a>, random: &'a Random) -> Self {
        Self { sequence, random }
    }

    /// All tokens of the sequence so far.
    pub fn tokens(&self) -> &'a [TokenId] {
        self.sequence.tokens
    }

    /// The last `window` tokens of the sequence, or all of them.
    pub fn last_tokens(&self, window: Option<u32>) -> &'a [TokenId] {
        let window = window.map_or(usize::MAX, |window| window as usize);
        &self.tokens()[self.tokens().len().saturating_sub(window)..]
    }

    /// The tokens that were generated.
    pub fn generated(&self) -> &'a [TokenId] {
        self.sequence.generated()
    }

    /// The natural log probability of each generated token under the distribution that it was drawn from, oldest first.
    pub fn drawn(&self) -> &'a [f32] {
        self.sequence.drawn
    }

    /// The tokens that may be chosen; all where there is none.
    pub fn mask(&self) -> Option<&'a TokenMask> {
        self.sequence.mask
    }

    /// A number in [0, 1) that depends on the seed, the position and `number` alone. The draw takes number 0 and XTC number 1;
    /// own steps take numbers from 16 on.
    pub fn uniform(&self, number: u16) -> f64 {
        self.random.uniform(self.tokens().len(), number)
    }
}
