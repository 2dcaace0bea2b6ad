//! Speculative decoding: tokens are guessed ahead and verified by one pass, and no token changes.
//!
//! What a generation says is a function of its prompt, its options and the model, draws included: a guess is right exactly where it
//! equals what is chosen in its place, by the same plan, masks and penalties. So a guesser decides how many tokens a pass brings and
//! never which.

mod draft_model;
mod earlier;
mod governor;
mod lookup;
mod speculator;

use std::fmt;
use std::sync::{Arc, Mutex};

pub use draft_model::DraftModel;
pub use earlier::EarlierTexts;
use governor::Costs;
pub use lookup::PromptLookup;
pub(crate) use speculator::Speculator;

use mlxcel_core::{Result, SamplingParams, TokenId};

/// Guesses what follows a text, for one generation.
pub trait Drafter: Send {
    /// Up to `most` tokens that may follow `tokens`, prompt and text so far; none where it has no idea. The next call's tokens begin
    /// with these, and go on with what was chosen.
    ///
    /// # Errors
    ///
    /// Whatever keeps it from guessing: the generation goes on without it.
    fn draft(&mut self, tokens: &[TokenId], most: usize) -> Result<Vec<TokenId>>;
}

/// What a [`Drafter`] is made for.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct DraftContext<'a> {
    /// How many tokens the model knows.
    pub vocabulary_size: usize,
    /// How its tokens are chosen.
    pub sampling: &'a SamplingParams,
}

/// Makes a [`Drafter`] for each generation; shared by all that are asked for with one [`Speculation`].
pub trait DraftSource: fmt::Debug + Send + Sync {
    /// A drafter for one generation.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) where it knows other tokens than the model.
    fn drafter(&self, context: &DraftContext<'_>) -> Result<Box<dyn Drafter>>;

    /// Hears a text that is whole, its prompt included. Does nothing by default.
    fn learn(&self, tokens: &[TokenId]) {
        let _ = tokens;
    }
}

/// How tokens are guessed ahead: for [`Options::speculation`](crate::Options::speculation).
///
/// Clones share what they learn: earlier texts, and what verifying guesses costs on this machine. So one value is made for a model, and
/// its clones go into the options of all generations.
///
/// How many tokens are guessed follows from measurements: what a pass over several tokens costs, and how many guesses were right. Where
/// guessing does not pay it is left off, but for a fiftieth of the time, which tells when it pays again. It needs an engine that claims
/// [`Capabilities::verification`](crate::Capabilities) and `rewind`, and is left off elsewhere.
///
/// ```
/// use mlxcel_session::{Options, Speculation};
///
/// let speculation = Speculation::auto();
/// let options = Options::new(200).with_speculation(speculation.clone());
/// # assert!(options.speculation.is_some());
/// ```
#[derive(Clone)]
pub struct Speculation {
    sources: Vec<Arc<dyn DraftSource>>,
    most: usize,
    width: Option<usize>,
    costs: Arc<Mutex<Costs>>,
}

impl Speculation {
    /// Guesses by `source`.
    pub fn new(source: impl DraftSource + 'static) -> Self {
        Self { sources: vec![Arc::new(source)], most: 15, width: None, costs: Arc::default() }
    }

    /// Guesses that the text repeats what prompt or text have said: [`PromptLookup`].
    pub fn lookup() -> Self {
        Self::new(PromptLookup::default())
    }

    /// Guesses by prompt and text, and else by the earlier texts of these options: [`PromptLookup`] and [`EarlierTexts`].
    pub fn auto() -> Self {
        Self::lookup().or(EarlierTexts::default())
    }

    /// Adds a source that is asked where those before have no guess.
    #[must_use]
    pub fn or(mut self, source: impl DraftSource + 'static) -> Self {
        self.sources.push(Arc::new(source));
        self
    }

    /// Sets the most tokens that are guessed at once; 15 by default, since engines verify up to 16 tokens at little more than the cost of
    /// one.
    #[must_use]
    pub fn with_most(mut self, tokens: usize) -> Self {
        self.most = tokens;
        self
    }

    /// Guesses so many tokens at once, whatever that costs, as far as there are guesses: for measurements and tests.
    #[must_use]
    pub fn with_width(mut self, tokens: usize) -> Self {
        self.width = Some(tokens);
        self
    }
}

impl fmt::Debug for Speculation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Speculation")
            .field("sources", &self.sources)
            .field("most", &self.most)
            .field("width", &self.width)
            .finish_non_exhaustive()
    }
}
