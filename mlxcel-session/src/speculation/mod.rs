//! Speculative decoding: draft tokens are verified in one pass, without changing the generated text.
//!
//! A generated text is a function of prompt, options and model, sampling included. A draft token is accepted
//! only if it equals the token that is chosen at its position by the same sampling plan, masks and penalties.
//! So a drafter affects how many tokens a pass yields, never which ones.

mod draft_head;
mod earlier;
mod governor;
mod lookup;
mod runs;
mod speculator;

use std::fmt;
use std::sync::{Arc, Mutex};

pub use draft_head::DraftHead;
pub use earlier::EarlierTexts;
use governor::Costs;
pub use lookup::PromptLookup;
pub(crate) use speculator::Speculator;

use mlxcel_core::{Result, SamplingParams, TokenId, setters};

/// Drafts the continuation of a text, for one generation.
pub trait Drafter: Send {
    /// Returns up to `most` draft tokens after `tokens`, which are prompt and text so far; empty to draft
    /// nothing. The tokens of the next call start with these, followed by the tokens that were chosen.
    ///
    /// # Errors
    ///
    /// Any error; the generation continues without drafting.
    fn draft(&mut self, tokens: &[TokenId], most: usize) -> Result<Vec<TokenId>>;

    /// Whether it reads the hidden states of the model that it drafts for, which
    /// [`add_states`](Self::add_states) then gets if the model returns them. By default it does not.
    fn reads_states(&self) -> bool {
        false
    }

    /// Takes the hidden states of the tokens from position `first` on, `[tokens,
    /// `[`DraftContext::output_states`]`]`, each time the model has computed some. States at and after `first`
    /// that came before are replaced: they are of draft tokens that were rejected. Tokens that the model did not
    /// compute for this generation, such as those of a reused prefix, are left out.
    fn add_states(&mut self, first: usize, states: &[f32]) {
        let _ = (first, states);
    }
}

/// The generation that a [`Drafter`] is created for.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct DraftContext<'a> {
    /// The size of the model's vocabulary.
    pub vocabulary_size: usize,
    /// The sampling parameters.
    pub sampling: &'a SamplingParams,
    /// The elements of the model's hidden states; `None` if it does not
    /// [return](crate::Capabilities::output_states) them.
    pub output_states: Option<usize>,
}

impl<'a> DraftContext<'a> {
    /// A context of a model with `vocabulary_size` tokens, sampled by `sampling`: to try a [`DraftSource`]
    /// out.
    pub fn new(vocabulary_size: usize, sampling: &'a SamplingParams) -> Self {
        Self { vocabulary_size, sampling, output_states: None }
    }
}

/// Creates a [`Drafter`] for each generation; shared by all generations with the same [`Speculation`].
pub trait DraftSource: fmt::Debug + Send + Sync {
    /// Creates a drafter for one generation.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) if its vocabulary differs from the
    /// model's.
    fn drafter(&self, context: &DraftContext<'_>) -> Result<Box<dyn Drafter>>;

    /// Learns from a finished text, prompt included. Does nothing by default.
    fn learn(&self, tokens: &[TokenId]) {
        let _ = tokens;
    }
}

/// Speculative decoding, for [`Options::speculation`](crate::Options::speculation).
///
/// Clones share what they learn: earlier texts, and the measured cost of verification. Create one value per
/// model and put clones into the options of all generations.
///
/// The number of draft tokens follows from measurements: the cost of a pass over several tokens, and the
/// acceptance rate. Costs are measured again from time to time, and the first run of a program does not
/// count. While drafting does not pay off it is disabled, except for a fiftieth of the time to detect when it
/// pays off again: apart from first runs a text of 200 tokens or more is at most 3 % slower than without. It
/// needs an engine that claims [`Capabilities::verification`](crate::Capabilities), and is disabled on
/// others.
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
    /// Drafts with `source`.
    pub fn new(source: impl DraftSource + 'static) -> Self {
        Self { sources: vec![Arc::new(source)], most: 15, width: None, costs: Arc::default() }
    }

    /// Drafts with [`PromptLookup`]: the text repeats the prompt or itself.
    pub fn lookup() -> Self {
        Self::new(PromptLookup::default())
    }

    /// Drafts with [`PromptLookup`], and if that finds nothing with [`EarlierTexts`] of this value.
    pub fn auto() -> Self {
        Self::lookup().or(EarlierTexts::default())
    }

    /// Adds a source that is used if the earlier ones draft nothing.
    #[must_use]
    pub fn or(mut self, source: impl DraftSource + 'static) -> Self {
        self.sources.push(Arc::new(source));
        self
    }

    setters! {
        /// Sets the maximum number of draft tokens; defaults to 15. Engines verify up to 16 tokens in
        /// one pass, whose cost depends on engine and weights; it is measured.
        with_most(tokens: usize) => most = tokens;
        /// Drafts exactly this many tokens whenever the source has them, regardless of cost: for
        /// measurements and tests.
        with_width(tokens: usize) => width = Some(tokens);
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
