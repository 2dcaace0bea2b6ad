//! Continuous batching: many requests, from any thread or task, on one session.

mod accept;
mod adapters;
mod async_stream;
mod bell;
mod channel;
mod guard;
#[cfg(test)]
mod interleavings;
mod map;
mod memory;
mod options;
mod plan;
mod queue;
mod request;
mod scheduler;
mod sequences;
mod stats;
mod stream;
mod texts;
mod worker;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mlxcel_core::{Error, ErrorKind, Result, SessionOptions, TokenId};

pub use adapters::AdapterStats;
pub use async_stream::AsyncRequestStream;
pub use map::EngineMap;
pub use options::EngineOptions;
pub use request::{Request, Share};
pub use stats::EngineStats;
pub use stream::RequestStream;

use crate::chat::Message;
use crate::model::Model;
use crate::options::Options;
use crate::stream::Progress;
use crate::sync::thread::JoinHandle;
use crate::sync::{Mutex, unpoisoned};
use queue::Queue;
use scheduler::Scheduler;

/// Runs requests of many threads or tasks in one continuously batched session, so that they share each pass
/// over the weights.
///
/// An engine owns a thread that drives a session of the model. Requests join and leave between steps; each
/// step computes one token of every decoding request and a chunk of new prompts. A request generates the same
/// text as it would alone, up to rounding that depends on the batch
/// ([`Capabilities::bitwise_batch_invariance`](crate::Capabilities::bitwise_batch_invariance)).
///
/// ```no_run
/// use mlxcel_session::{Engine, Model, Options};
///
/// fn main() -> mlxcel_session::Result<()> {
///     let engine = Engine::new(Model::open("models/storyteller")?)?;
///     std::thread::scope(|scope| {
///         for name in ["Pip", "Mia"] {
///             let engine = engine.clone();
///             scope.spawn(move || -> mlxcel_session::Result<()> {
///                 let prompt = format!("Once upon a time there was a fox named {name}.");
///                 let mut story = engine.generate(&prompt, &Options::new(100))?;
///                 for piece in &mut story {
///                     println!("{name}: {}", piece?);
///                 }
///                 println!("{name}: {:?}, {:?}", story.finish_reason(), story.usage());
///                 Ok(())
///             });
///         }
///     });
///     println!("{:?}", engine.stats());
///     Ok(())
/// }
/// ```
///
/// # Scheduling
///
/// * Requests wait for one of the session's sequences, ordered by [priority](Request::priority) and then by
///   arrival. At most [`EngineOptions::queue`] requests wait once all sequences are taken: beyond that
///   [`submit`](Self::submit) returns [`ErrorKind::ResourceExhausted`], and
///   [`submit_within`](Self::submit_within) waits for room. An engine with one sequence runs its requests one
///   after another.
/// * Requests can have a [`Share`], which says whose they are. A free sequence goes to the client with the
///   fewest, and if one client holds more sequences than another that waits, by more than one, its youngest
///   request is preempted. If the queue is full, a request of a client with fewer waiting ones displaces the
///   newest of the client with the most, which ends with [`ErrorKind::ResourceExhausted`].
/// * A step has a token budget ([`EngineOptions::step_tokens`]). Decoding requests go first and take one
///   token each; prompts share the remainder in whole chunks, round-robin within a priority. So a long prompt
///   delays each token of other requests by the time of one chunk, and each other prompt delays it by one
///   chunk at a time.
/// * Prompts with a common prefix compute it once: a request takes it from the model's [prefix
///   cache](Model::with_prefix_cache), or from a running request if the engine claims fork and rewind, and
///   waits if a running request is about to compute it.
/// * A request with [`EngineOptions::unread_tokens`] unread tokens is paused until half of them are read. If
///   other requests wait for a sequence, it is preempted and recomputed later.
/// * If memory for KV caches runs out, the youngest request of the lowest priority is preempted and
///   recomputed when another has ended. Its text stays the same, since sampling depends on seed and position
///   only. A request that does not fit alone fails with [`ErrorKind::ResourceExhausted`].
/// * Cancel tokens and time limits are checked between steps, for waiting requests too, so they take effect
///   within the time of a chunk.
/// * An error of a row fails its request only. After a device fault a request is recomputed from its tokens
///   once; a second fault fails it.
///
/// # Shutdown
///
/// The thread ends when the last clone of the engine and the last of its streams are dropped, and that drop
/// blocks until the running step reaches its next chunk. Streams keep the thread alive and run to their ends
/// after the engine is dropped. [`shutdown`](Self::shutdown) is the orderly way. If the code of a backend
/// panics, all running and later requests fail with [`ErrorKind::Internal`]; if a request's own sampling
/// step, constraint or drafter does, only that request. Such code may submit requests to its engine, but a
/// stream of it that has no token yet ends there with [`ErrorKind::InvalidInput`], since the engine waits for
/// that code.
#[derive(Clone)]
pub struct Engine {
    model: Model,
    life: Arc<Life>,
}

impl Engine {
    /// An engine with the default options.
    ///
    /// # Errors
    ///
    /// The errors of [`with_options`](Self::with_options).
    pub fn new(model: Model) -> Result<Self> {
        Self::with_options(model, &EngineOptions::default())
    }

    /// Opens a session of `model` and starts the thread that drives it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] for options out of range or beyond the engine's capabilities,
    /// [`ErrorKind::ResourceExhausted`] if the system cannot start a thread, and the errors of
    /// [`Model::open_session`](mlxcel_core::Model::open_session).
    pub fn with_options(model: Model, options: &EngineOptions) -> Result<Self> {
        let session = model.engine().open_session(&SessionOptions::default())?;
        let limits = options.limits(session.capabilities())?;
        let queue = Arc::new(Queue::new(limits));
        let scheduler = Scheduler::new(model.clone(), session, &queue);
        let thread = worker::start(scheduler, &queue)?;
        Ok(Self { model, life: Arc::new(Life { queue, thread: Mutex::new(Some(thread)) }) })
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Continues a text without a chat template.
    ///
    /// # Errors
    ///
    /// The errors of [`submit`](Self::submit).
    pub fn generate(&self, text: &str, options: &Options) -> Result<RequestStream> {
        self.submit(Request::new(text).with_options(options.clone()))
    }

    /// Answers a conversation, rendered by the checkpoint's chat template.
    ///
    /// # Errors
    ///
    /// The errors of [`submit`](Self::submit).
    pub fn chat(&self, messages: &[Message], options: &Options) -> Result<RequestStream> {
        self.submit(Request::new(messages).with_options(options.clone()))
    }

    /// Continues a prompt of token ids.
    ///
    /// # Errors
    ///
    /// The errors of [`submit`](Self::submit).
    pub fn generate_tokens(&self, prompt: &[TokenId], options: &Options) -> Result<RequestStream> {
        self.submit(Request::new(prompt).with_options(options.clone()))
    }

    /// Submits a request, unless the queue is full. The prompt is tokenized on the caller's thread.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::ResourceExhausted`] if the queue is full; retry later. [`ErrorKind::Cancelled`] after
    /// [`shutdown`](Self::shutdown), [`ErrorKind::Internal`] if the engine's thread panicked, and the errors
    /// of [`Model::generation`]. The stream returns errors that occur while the request runs.
    pub fn submit(&self, request: Request<'_>) -> Result<RequestStream> {
        self.submit_within(request, Duration::ZERO)
    }

    /// As [`submit`](Self::submit), but waits for room in the queue, at most for `patience`. A request whose
    /// time passes meanwhile ends with [`FinishReason::TimeLimit`](crate::FinishReason::TimeLimit).
    ///
    /// # Errors
    ///
    /// The errors of [`submit`](Self::submit).
    pub fn submit_within(&self, request: Request<'_>, patience: Duration) -> Result<RequestStream> {
        self.submit_paced(request, patience, self.life.queue.limits.unread_tokens)
    }

    /// As [`submit_within`](Self::submit_within), with another number of unread tokens than the options have.
    fn submit_paced(
        &self,
        request: Request<'_>,
        patience: Duration,
        unread_tokens: usize,
    ) -> Result<RequestStream> {
        let submitted = Instant::now();
        let (prompt, priority, share) = (request.prompt, request.priority, request.share);
        let generation = self.model.generation(prompt, &request.into_options(submitted))?;
        let (cancel, usage) = (generation.cancel_token(), generation.usage());
        let about = (generation.splitter()?, Progress { cancel, usage, ..Progress::default() });
        let (number, receiver) =
            self.life.queue.push(generation, priority, share, submitted, patience, unread_tokens)?;
        Ok(RequestStream::new(receiver, number, about, Arc::clone(&self.life)))
    }

    /// Counters and gauges for monitoring.
    pub fn stats(&self) -> EngineStats {
        self.life.queue.stats()
    }

    /// Counters of the requests with adapters, one entry for each adapter that was used.
    pub fn adapter_stats(&self) -> Vec<AdapterStats> {
        self.life.queue.adapters.read()
    }

    /// Checks that the engine accepts requests, as a health check.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Cancelled`] after [`shutdown`](Self::shutdown), [`ErrorKind::Internal`] if the engine's
    /// thread panicked.
    pub fn check(&self) -> Result<()> {
        self.life.queue.closed().map_or(Ok(()), Err)
    }

    /// Stops accepting requests on all clones and waits for the running ones; after `patience` it cancels
    /// those that are left. Returns true if all ended by themselves. When it returns, the thread has
    /// ended and its session is closed.
    ///
    /// Requests whose streams are not read do not end by themselves.
    pub fn shutdown(&self, patience: Duration) -> bool {
        let reason = "the engine was shut down and accepts no more requests";
        self.life.queue.close(Error::new(ErrorKind::Cancelled, "submit request", reason));
        let ended = self.life.queue.wait_for_end(patience);
        self.life.end();
        ended
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("model", &self.model).field("stats", &self.stats()).finish()
    }
}

/// The thread of an engine, as long as an [`Engine`] or a [`RequestStream`] needs it.
struct Life {
    queue: Arc<Queue>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Life {
    /// Cancels what runs and waits for the thread.
    fn end(&self) {
        self.queue.close(Error::new(ErrorKind::Cancelled, "submit request", "the engine was dropped"));
        self.queue.stop.cancel();
        self.queue.bell.ring();
        let Some(thread) = unpoisoned(self.thread.lock()).take() else { return };
        // A task that the thread wakes, or code of a request, may drop the last stream there.
        let is_ours = guard::EngineId::of(&self.queue.bell).is_waiting_for_us();
        if !is_ours {
            // The readers know of the panic.
            let _ = thread.join();
        }
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        self.end();
    }
}
