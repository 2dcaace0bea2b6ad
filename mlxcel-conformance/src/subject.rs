//! The subject of the tests: an engine with a model, and what the kit has to know of both.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock};

use mlxcel_core::{
    AdapterLimits, Backend, Error, ErrorKind, FaultPoint, Faults, InferenceSession, LoadOptions, Model,
    ModelSource, Result, SessionOptions, TokenId,
};
use proptest::prelude::Rng;
use proptest::test_runner::{RngAlgorithm, TestRng};

use crate::outlook::Outlook;
use crate::tolerance::Tolerance;

/// An engine whose device fails.
struct Faulty<'a> {
    points: Vec<FaultPoint>,
    make: Box<dyn Fn(Faults) -> Box<dyn Backend> + Send + Sync + 'a>,
}

/// Loads another model.
type OtherModel<'a> = Box<dyn Fn() -> Result<Arc<dyn Model>> + Send + Sync + 'a>;

/// An engine with a model to test.
///
/// The model is loaded once, when it is first needed, and shared by all checks; a few load it again.
///
/// ```
/// use mlxcel_conformance::Subject;
/// use mlxcel_core::{LoadOptions, Precision};
/// # fn subject<'a>(my_engine: impl mlxcel_core::Backend + 'a) -> Subject<'a> {
/// Subject::new(my_engine, "models/llama")
///     .with_load(LoadOptions::default().with_precision(Precision::Exact).with_capacity(160))
/// # }
/// ```
pub struct Subject<'a> {
    backend: Box<dyn Backend + 'a>,
    source: ModelSource,
    load: LoadOptions,
    pub(crate) other: Option<OtherModel<'a>>,
    tolerance: Option<Tolerance>,
    prompts: Vec<Vec<TokenId>>,
    pub(crate) cases: u32,
    faulty: Option<Faulty<'a>>,
    pub(crate) broken: Option<OtherModel<'a>>,
    pub(crate) window: Option<usize>,
    pub(crate) bounded: Option<usize>,
    pub(crate) adapters: Option<(AdapterLimits, [ModelSource; 3])>,
    pub(crate) output_states: bool,
    model: OnceLock<Arc<dyn Model>>,
    /// The expected results after these tokens in a fresh sequence: computed once, used by many checks.
    pub(crate) outlooks: Mutex<HashMap<Vec<TokenId>, Outlook>>,
}

impl<'a> Subject<'a> {
    /// `backend` with the model of `source`, loaded with default options.
    pub fn new(backend: impl Backend + 'a, source: impl Into<ModelSource>) -> Self {
        Self {
            backend: Box::new(backend),
            source: source.into(),
            load: LoadOptions::default(),
            other: None,
            tolerance: None,
            prompts: Vec::new(),
            cases: 16,
            faulty: None,
            broken: None,
            window: None,
            bounded: None,
            adapters: None,
            output_states: false,
            model: OnceLock::new(),
            outlooks: Mutex::new(HashMap::new()),
        }
    }

    mlxcel_core::setters! {
        /// Sets the options to load with. A small [`LoadOptions::capacity`] makes the checks that fill a
        /// sequence quick; it must be at least 32 tokens, and should exceed one prefill chunk of the engine.
        with_load(load: LoadOptions) => load = load;
        /// Sets a function that loads another model with the same engine. Its sessions must reject this
        /// model's snapshots.
        with_other_model(load: impl Fn() -> Result<Arc<dyn Model>> + Send + Sync + 'a) =>
            other = Some(Box::new(load));
        /// Sets the tolerance for differences by rounding; defaults to [`Tolerance::of`] the model's
        /// precision.
        with_tolerance(tolerance: Tolerance) => tolerance = Some(tolerance);
        /// Sets prompts to use instead of arbitrary tokens: on text like its training data, a model has
        /// clearer margins.
        with_prompts(prompts: impl IntoIterator<Item = Vec<TokenId>>) =>
            prompts = prompts.into_iter().filter(|prompt| !prompt.is_empty()).collect();
        /// Sets how many random sequences of operations [`operations`](crate::checks::operations) tries; 16
        /// by default.
        with_cases(cases: u32) => cases = cases;
    }

    /// Sets a function that creates the same engine with fault injection by [`Faults`], at these `points`.
    #[must_use]
    pub fn with_faulty(
        mut self,
        points: impl IntoIterator<Item = FaultPoint>,
        make: impl Fn(Faults) -> Box<dyn Backend> + Send + Sync + 'a,
    ) -> Self {
        self.faulty = Some(Faulty { points: points.into_iter().collect(), make: Box::new(make) });
        self
    }

    /// Sets a function that loads the model with NaN weights, so that all logits are NaN.
    #[must_use]
    pub fn with_broken_weights(
        mut self,
        load: impl Fn() -> Result<Arc<dyn Model>> + Send + Sync + 'a,
    ) -> Self {
        self.broken = Some(Box::new(load));
        self
    }

    mlxcel_core::setters! {
        /// Declares that some layers have a sliding window of `positions` positions. Tests then use texts
        /// longer than the window, if the capacity allows, and split prompts near its border.
        with_window(positions: usize) => window = Some(positions);
        /// Declares that the state of a sequence stops growing at `positions` tokens, because all layers have
        /// windows or recurrences.
        with_bounded_state(positions: usize) => bounded = Some(positions);
        /// Declares that the model can be loaded with [`LoadOptions::output_states`].
        with_output_states() => output_states = true;
        /// Declares that the engine supports adapters: the model can be loaded with this room, of at least
        /// two slots, and these are adapters for it: one that changes nothing, and two others.
        with_adapters(room: AdapterLimits, sources: [ModelSource; 3]) => adapters = Some((room, sources));
    }

    /// The engine.
    pub fn backend(&self) -> &dyn Backend {
        &*self.backend
    }

    /// The model's source.
    pub fn source(&self) -> &ModelSource {
        &self.source
    }

    /// The load options.
    pub fn load_options(&self) -> &LoadOptions {
        &self.load
    }

    /// The model of [`with_other_model`](Self::with_other_model), if set.
    ///
    /// # Errors
    ///
    /// The errors of [`Backend::load`].
    pub fn other_model(&self) -> Result<Option<Arc<dyn Model>>> {
        self.other.as_ref().map(|load| load()).transpose()
    }

    /// The model of [`with_broken_weights`](Self::with_broken_weights), if set.
    ///
    /// # Errors
    ///
    /// The errors of [`Backend::load`].
    pub fn broken_model(&self) -> Result<Option<Arc<dyn Model>>> {
        self.broken.as_ref().map(|load| load()).transpose()
    }

    /// The model, loaded with output states.
    pub(crate) fn model_with_states(&self) -> Result<Arc<dyn Model>> {
        self.backend.load(&self.source, &self.load.clone().with_output_states(true))
    }

    /// The model of [`with_adapters`](Self::with_adapters), loaded for one check, since checks fill its
    /// slots; and the adapters.
    pub(crate) fn adapted_model(&self) -> Result<(Arc<dyn Model>, [ModelSource; 3])> {
        let Some((room, sources)) = &self.adapters else {
            let message = "the subject has no adapters";
            return Err(Error::new(ErrorKind::InvalidInput, "test adapters", message));
        };
        let model = self.backend.load(&self.source, &self.load.clone().with_adapters(*room))?;
        Ok((model, sources.clone()))
    }

    /// The loaded model.
    ///
    /// # Errors
    ///
    /// The errors of [`Backend::load`].
    pub fn model(&self) -> Result<Arc<dyn Model>> {
        if let Some(model) = self.model.get() {
            return Ok(Arc::clone(model));
        }
        let model = self.backend.load(&self.source, &self.load)?;
        Ok(Arc::clone(self.model.get_or_init(|| model)))
    }

    /// A session of the loaded model.
    ///
    /// # Errors
    ///
    /// The errors of [`Backend::load`] and [`Model::open_session`].
    pub fn session(&self) -> Result<Box<dyn InferenceSession>> {
        self.model()?.open_session(&SessionOptions::default())
    }

    /// The points where faults can be injected.
    pub fn fault_points(&self) -> &[FaultPoint] {
        self.faulty.as_ref().map_or(&[], |faulty| &faulty.points)
    }

    /// The model on an engine that fails by `faults`, if [`with_faulty`](Self::with_faulty) is set.
    ///
    /// # Errors
    ///
    /// The errors of [`Backend::load`].
    pub fn faulty_model(&self, faults: &Faults) -> Result<Option<Arc<dyn Model>>> {
        let Some(faulty) = &self.faulty else { return Ok(None) };
        (faulty.make)(faults.clone()).load(&self.source, &self.load).map(Some)
    }

    /// The tolerance; zero for an engine that claims bitwise batch invariance.
    ///
    /// # Errors
    ///
    /// The errors of [`model`](Self::model).
    pub fn tolerance(&self) -> Result<Tolerance> {
        let model = self.model()?;
        let mut tolerance = self.tolerance.unwrap_or_else(|| Tolerance::of(model.info().precision));
        if model.capabilities().bitwise_batch_invariance {
            // Log probabilities may still come from the device in one case and from logits on the host in
            // another.
            tolerance.margin = 0.0;
        }
        Ok(tolerance)
    }

    /// `length` tokens to feed: the beginning of one of the prompts, repeated as needed, or arbitrary tokens
    /// below the vocabulary. The same `number` gives the same text.
    ///
    /// # Errors
    ///
    /// The errors of [`model`](Self::model).
    pub fn tokens(&self, number: usize, length: usize) -> Result<Vec<TokenId>> {
        if !self.prompts.is_empty() {
            let prompt = &self.prompts[number % self.prompts.len()];
            // Texts with the same prompt begin at different offsets in it.
            let skip = number / self.prompts.len() + 1;
            return Ok(prompt.iter().copied().cycle().skip(skip).take(length).collect());
        }
        let vocabulary = self.model()?.info().vocabulary_size.max(1) as u64;
        let mut seed = [0; 32];
        seed[..8].copy_from_slice(&(number as u64).to_le_bytes());
        let mut random = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
        Ok((0..length).map(|_| (random.next_u64() % vocabulary) as TokenId).collect())
    }
}

impl fmt::Debug for Subject<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subject")
            .field("backend", &self.backend.name())
            .field("source", &self.source)
            .field("load", &self.load)
            .finish_non_exhaustive()
    }
}

impl Subject<'_> {
    /// A text length beyond the window, if the capacity allows, otherwise the usual one.
    pub(crate) fn long(&self) -> Result<usize> {
        let capacity = self.model()?.info().capacity;
        let beyond = self.window.map_or(0, |window| window.saturating_add(window / 2 + 3));
        Ok(self.length(70)?.max(beyond.min(capacity.saturating_sub(16))))
    }

    /// A prompt length: `wanted`, or half of the capacity if that is less.
    pub(crate) fn length(&self, wanted: usize) -> Result<usize> {
        Ok(wanted.min(self.model()?.info().capacity / 2).max(1))
    }
}
