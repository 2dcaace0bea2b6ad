//! What limits the tokens of a text, token by token: the plug-in that a grammar is.

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError};

use mlxcel_core::{
    Error, ErrorKind, LogitsSampler, Result, SampledToken, SamplingContext, TokenId, TokenMask,
};

use crate::Model;

/// What starts a [`Constraint`] for each generation; [`Options::with_constraint`](crate::Options::with_constraint) takes one.
/// With the feature `structured`, `Grammar` is one.
pub trait ConstraintSource: fmt::Debug + Send + Sync {
    /// A constraint for a text of `model` from its beginning.
    ///
    /// # Errors
    ///
    /// Whatever keeps any text from meeting it: nothing is computed then.
    fn start(&self, model: &Model) -> Result<Box<dyn Constraint>>;
}

/// Limits the tokens of one text: it follows the text token by token and says which may come next.
///
/// Its masks are computed on another thread while the engine computes, where the host chooses tokens, and while others' tokens are handled
/// where the engine does.
pub trait Constraint: Send {
    /// The tokens that may come next, the model's stop tokens among them where the text may end here.
    ///
    /// # Errors
    ///
    /// Whatever keeps it from telling; the generation fails with that.
    fn mask(&mut self) -> Result<TokenMask>;

    /// Follows the text by `token`, which is none that ends it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] for a token that the mask does not allow.
    fn accept(&mut self, token: TokenId) -> Result<()>;

    /// Tokens that have to come next, since the text can go on by no others. They go into the next row without being chosen, and each is
    /// [accepted](Self::accept) then. None by default.
    ///
    /// # Errors
    ///
    /// Whatever keeps it from telling.
    fn forced(&mut self) -> Result<Vec<TokenId>> {
        Ok(Vec::new())
    }

    /// Whether the text is whole and cannot go on. The generation ends as [`FinishReason::Stop`](crate::FinishReason::Stop) then.
    fn is_complete(&mut self) -> bool;
}

type Shared = Arc<Mutex<Box<dyn Constraint>>>;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What panicked is caught where it is shared, and answers an error from then on.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The mask for one place of a text, computed by whoever needs it first.
struct Slot {
    constraint: Shared,
    mask: OnceLock<Result<TokenMask>>,
}

impl Slot {
    fn mask(&self) -> &Result<TokenMask> {
        self.mask.get_or_init(|| {
            let mask = lock(&self.constraint).mask()?;
            if mask.is_empty() {
                return Err(Error::new(
                    ErrorKind::InvalidInput,
                    "constrain text",
                    "no token of the vocabulary continues the text as the grammar wants it",
                ));
            }
            Ok(mask)
        })
    }

    /// Computes the mask on the thread for that; where there is none, whoever needs it does.
    fn begin(self: &Arc<Self>) {
        static THREAD: LazyLock<Option<Sender<Arc<Slot>>>> = LazyLock::new(|| {
            let (sender, slots) = mpsc::channel::<Arc<Slot>>();
            let run = move || {
                for slot in slots {
                    // The generation may have ended meanwhile.
                    if Arc::strong_count(&slot) > 1 {
                        // Who needs the mask meets the panic again.
                        let _ = catch_unwind(AssertUnwindSafe(|| slot.mask().is_ok()));
                    }
                }
            };
            std::thread::Builder::new().name("mlxcel-masks".to_owned()).spawn(run).ok().map(|_| sender)
        });
        if let Some(thread) = &*THREAD {
            // The thread lives as long as the process.
            let _ = thread.send(Arc::clone(self));
        }
    }
}

/// A generation's constraint, with the mask for its next token.
pub(crate) struct Constrained {
    constraint: Shared,
    next: Arc<Slot>,
    /// What the sampler looks at: `next`, too.
    current: Arc<Mutex<Arc<Slot>>>,
    /// Tokens that the text has to go on with.
    forced: VecDeque<TokenId>,
    complete: bool,
}

impl Constrained {
    pub(crate) fn new(constraint: Box<dyn Constraint>) -> Result<Self> {
        let constraint: Shared = Arc::new(Mutex::new(constraint));
        let next = Arc::new(Slot { constraint: Arc::clone(&constraint), mask: OnceLock::new() });
        next.begin();
        let current = Arc::new(Mutex::new(Arc::clone(&next)));
        Ok(Self { constraint, next, current, forced: VecDeque::new(), complete: false })
    }

    /// The sampler, under the mask.
    pub(crate) fn sampler(&self, sampler: impl LogitsSampler + 'static) -> Box<dyn LogitsSampler> {
        Box::new(Masked { sampler, current: Arc::clone(&self.current) })
    }

    /// The mask for the next token.
    pub(crate) fn mask(&self) -> &Result<TokenMask> {
        self.next.mask()
    }

    /// Follows the text by a token that was chosen; begins the mask for the next one.
    pub(crate) fn accept(&mut self, token: TokenId) -> Result<()> {
        {
            let mut constraint = lock(&self.constraint);
            constraint.accept(token)?;
            for token in constraint.forced()? {
                constraint.accept(token)?;
                self.forced.push_back(token);
            }
            self.complete = constraint.is_complete();
        }
        self.next = Arc::new(Slot { constraint: Arc::clone(&self.constraint), mask: OnceLock::new() });
        *lock(&self.current) = Arc::clone(&self.next);
        if !self.complete {
            self.next.begin();
        }
        Ok(())
    }

    /// The next token that the text has to go on with.
    pub(crate) fn next_forced(&mut self) -> Option<TokenId> {
        self.forced.pop_front()
    }

    /// Whether the text has to go on with tokens that nobody chooses.
    pub(crate) fn is_forced(&self) -> bool {
        !self.forced.is_empty()
    }

    /// Whether the text is whole, up to the last token that was taken.
    pub(crate) fn is_complete(&self) -> bool {
        self.complete && self.forced.is_empty()
    }
}

impl fmt::Debug for Constrained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Constrained").field("forced", &self.forced).field("complete", &self.complete).finish()
    }
}

/// A sampler that waits for the mask when there are logits to draw from, and not before.
struct Masked<S> {
    sampler: S,
    current: Arc<Mutex<Arc<Slot>>>,
}

impl<S: LogitsSampler> LogitsSampler for Masked<S> {
    fn sample(&self, logits: &[f32], context: &SamplingContext<'_>) -> Result<SampledToken> {
        let slot = Arc::clone(&lock(&self.current));
        let mask = slot.mask().as_ref().map_err(Clone::clone)?;
        let mut context = *context;
        context.mask = context.mask.or(Some(mask));
        self.sampler.sample(logits, &context)
    }
}
