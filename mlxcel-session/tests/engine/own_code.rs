//! What sampling steps, constraints and drafters of a request can do to the engine and to other requests.

use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use mlxcel_session::mlxcel_core::TokenMask;
use mlxcel_session::{
    Candidates, Constraint, ConstraintSource, DraftContext, DraftSource, Drafter, Engine, ErrorKind, Model,
    Options, Request, Result, SamplingStep, Speculation, StepContext, TokenId,
};

use crate::engine::harness::{Faulty, alone, assert_same, begin, prompt, reference, slow, wait_until};

/// Panics in one of its callbacks.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Panics {
    Step,
    Mask,
    Accept,
    Forced,
    Complete,
    Draft,
    Learn,
    Drop,
}

impl Panics {
    fn at(self, place: Self) {
        assert_ne!(self, place, "it panics, as it was told to");
    }

    fn options(self) -> Options {
        let options = Options::new(20);
        match self {
            Self::Step => options.with_step(Arc::new(self)),
            Self::Draft | Self::Learn => options.with_speculation(Speculation::new(self).with_width(2)),
            _ => options.with_constraint(self),
        }
    }
}

impl SamplingStep for Panics {
    fn name(&self) -> &str {
        "panics"
    }
    fn apply(&self, _: &mut Candidates, context: &StepContext<'_>) -> Result<()> {
        if context.generated().len() > 2 {
            self.at(Self::Step);
        }
        Ok(())
    }
}

impl ConstraintSource for Panics {
    fn start(&self, model: &Model) -> Result<Box<dyn Constraint>> {
        Ok(Box::new(Follows { panics: *self, ..Follows::new(model) }))
    }
}

/// Allows every token.
pub(super) struct Follows {
    panics: Panics,
    vocabulary: usize,
    accepted: usize,
}

impl Follows {
    /// One that does not panic.
    pub(super) fn new(model: &Model) -> Self {
        Self { panics: Panics::Step, vocabulary: model.info().vocabulary_size, accepted: 0 }
    }

    /// Panics after a few tokens.
    fn at(&self, place: Panics) {
        if self.accepted > 2 {
            self.panics.at(place);
        }
    }
}

impl Constraint for Follows {
    fn mask(&mut self) -> Result<TokenMask> {
        self.at(Panics::Mask);
        Ok(TokenMask::allowing(self.vocabulary, 0..self.vocabulary as TokenId))
    }
    fn accept(&mut self, _: TokenId) -> Result<()> {
        self.accepted += 1;
        self.at(Panics::Accept);
        Ok(())
    }
    fn forced(&mut self) -> Result<Vec<TokenId>> {
        self.at(Panics::Forced);
        Ok(Vec::new())
    }
    fn is_complete(&mut self) -> bool {
        self.at(Panics::Complete);
        false
    }
}

impl Drop for Follows {
    fn drop(&mut self) {
        self.at(Panics::Drop);
    }
}

impl DraftSource for Panics {
    fn drafter(&self, _: &DraftContext<'_>) -> Result<Box<dyn Drafter>> {
        Ok(Box::new(*self))
    }
    fn learn(&self, _: &[TokenId]) {
        self.at(Self::Learn);
    }
}

impl Drafter for Panics {
    fn draft(&mut self, _: &[TokenId], _: usize) -> Result<Vec<TokenId>> {
        self.at(Self::Draft);
        Ok(Vec::new())
    }
}

#[test]
fn a_panic_in_a_requests_own_code_fails_only_that_request() {
    use Panics::{Accept, Complete, Draft, Drop, Forced, Learn, Mask, Step};

    let model = reference(2);
    let engine = Engine::new(model.clone()).unwrap();
    let options = Options::new(200).with_temperature(0.9).with_seed(7);
    let expected = alone(&model, &prompt(1, 8), &options);
    for panics in [Step, Mask, Accept, Forced, Complete, Draft, Learn, Drop] {
        let victim = engine.generate_tokens(&prompt(1, 8), &options).unwrap();
        let broken = engine.generate_tokens(&prompt(2, 8), &panics.options()).unwrap().complete();
        match panics {
            // The text is whole by then.
            Drop => assert_eq!(broken.unwrap().tokens.len(), 20),
            _ => assert_eq!(broken.unwrap_err().kind(), ErrorKind::Internal, "{panics:?}"),
        }
        assert_same(&victim.complete().unwrap(), &expected);
        engine.check().unwrap();
    }
    let stats = engine.stats();
    assert_eq!((stats.running, stats.queued, stats.failed), (0, 0, 7));
}

/// Panics when it is dropped.
#[derive(Debug)]
struct Brittle;

impl SamplingStep for Brittle {
    fn name(&self) -> &str {
        "brittle"
    }
    fn apply(&self, _: &mut Candidates, _: &StepContext<'_>) -> Result<()> {
        Ok(())
    }
}

impl Drop for Brittle {
    fn drop(&mut self) {
        panic!("it panics, as it was told to");
    }
}

#[test]
fn panics_in_what_requests_left_do_not_end_the_process_after_a_panic_of_the_engine() {
    let mut faulty = Faulty::new(&reference(2));
    faulty.panics_at = Some(3);
    let engine = Engine::new(faulty.model()).unwrap();
    let submit = |number| {
        let options = Options::new(50).with_step(Arc::new(Brittle));
        engine.submit(Request::new(&prompt(number, 4)).with_options(options)).unwrap()
    };
    let streams: Vec<_> = {
        // The first step waits until all requests are there: two run, and others wait.
        let _held = faulty.steps.lock().unwrap();
        (0..6).map(submit).collect()
    };
    for stream in streams {
        assert_eq!(stream.complete().unwrap_err().kind(), ErrorKind::Internal);
    }
    engine.shutdown(Duration::from_secs(20));
    assert_eq!(engine.check().unwrap_err().kind(), ErrorKind::Internal);
}

/// A task that cannot be woken.
struct Unwakeable;

impl Wake for Unwakeable {
    fn wake(self: Arc<Self>) {
        panic!("it panics, as it was told to");
    }
}

#[test]
fn a_panic_of_a_waker_fails_no_request() {
    let engine = Engine::new(slow(2)).unwrap();
    let mut stream = begin(&engine, 1, 4, 60).into_async();
    let waker = Waker::from(Arc::new(Unwakeable));
    let mut context = Context::from_waker(&waker);
    assert!((0..60).any(|_| stream.poll_token(&mut context).is_pending()));
    wait_until(&engine, |stats| stats.finished == 1);
    engine.check().unwrap();
    while !matches!(stream.poll_token(&mut context), Poll::Ready(None)) {}
    assert_eq!(stream.tokens(), alone(&reference(2), &prompt(1, 4), &Options::new(60)).tokens);
}

/// Waits for its own engine.
#[derive(Debug, Default)]
struct Waits(OnceLock<Engine>);

impl SamplingStep for Waits {
    fn name(&self) -> &str {
        "waits"
    }
    fn apply(&self, _: &mut Candidates, _: &StepContext<'_>) -> Result<()> {
        let engine = self.0.get().unwrap();
        engine.generate_tokens(&[1, 2], &Options::new(2))?.complete().map(drop)
    }
}

impl ConstraintSource for Waits {
    fn start(&self, model: &Model) -> Result<Box<dyn Constraint>> {
        Ok(Box::new(WaitingMask { engine: self.0.get().unwrap().clone(), follows: Follows::new(model) }))
    }
}

/// Waits for its own engine, for the masks after the first.
struct WaitingMask {
    engine: Engine,
    follows: Follows,
}

impl Constraint for WaitingMask {
    fn mask(&mut self) -> Result<TokenMask> {
        if self.follows.accepted > 0 {
            self.engine.generate_tokens(&[1, 2], &Options::new(2))?.complete()?;
        }
        self.follows.mask()
    }
    fn accept(&mut self, token: TokenId) -> Result<()> {
        self.follows.accept(token)
    }
    fn is_complete(&mut self) -> bool {
        false
    }
}

#[test]
fn a_mask_that_waits_for_its_own_engine_is_an_error() {
    let engine = Engine::new(reference(2)).unwrap();
    for number in 0..20 {
        let waits = Waits::default();
        waits.0.set(engine.clone()).unwrap();
        let options = Options::new(4).with_constraint(waits);
        let error = engine.generate_tokens(&prompt(number, 4), &options).unwrap().complete().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    }
    engine.check().unwrap();
}

#[test]
fn a_step_that_waits_for_its_own_engine_is_an_error() {
    let engine = Engine::new(reference(2)).unwrap();
    let waits = Arc::new(Waits::default());
    waits.0.set(engine.clone()).unwrap();
    let options = Options::new(4).with_step(waits);
    let error = engine.generate_tokens(&prompt(1, 4), &options).unwrap().complete().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert_eq!(begin(&engine, 2, 4, 4).complete().unwrap().tokens.len(), 4);
}
