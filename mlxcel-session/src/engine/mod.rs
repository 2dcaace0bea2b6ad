//! Many requests, from any thread or task, as one continuously batched session.

mod accept;
mod bell;
mod channel;
mod memory;
mod options;
mod plan;
mod queue;
mod request;
mod scheduler;
mod sequences;
mod stats;
mod stream;
mod worker;

use std::fmt;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mlxcel_core::{Error, ErrorKind, Result, SessionOptions, TokenId};

pub use options::EngineOptions;
pub use request::Request;
pub use stats::EngineStats;
pub use stream::RequestStream;

use crate::{Message, Model, Options};
use bell::lock;
use queue::Queue;
use scheduler::Scheduler;
use stream::About;

/// Runs the requests of many threads or tasks as one session, so that they share the reading of the weights.
///
/// An engine owns a thread with a session of the model on it. Requests join and leave between steps: each step computes a token for every
/// request that decodes and a chunk of the prompts that are new. A request says what it would say alone, as far as the rounding of the
/// engine's batches allows ([`Capabilities::bitwise_batch_invariance`](crate::Capabilities::bitwise_batch_invariance)).
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
/// # Who is served when
///
/// * A request waits for one of the session's sequences, by [priority](Request::priority) and then by arrival. At most
///   [`EngineOptions::queue`] wait; [`submit`](Self::submit) refuses more with [`ErrorKind::ResourceExhausted`], and
///   [`submit_within`](Self::submit_within) waits for room. An engine of one sequence serves its requests in turn.
/// * A step has a budget of tokens ([`EngineOptions::step_tokens`]). Requests that decode take one each and go first; prompts share the
///   rest in whole chunks, in turns within a priority. So a long prompt delays each token of its neighbours by the time of a chunk, and
///   is itself delayed by one chunk of each prompt beside it.
/// * A prompt that begins as another one does takes what that one has computed: from the model's
///   [prefix cache](Model::with_prefix_cache), or from a running request where the engine forks and rewinds; it waits for a running request
///   that is about to compute what both need.
/// * A request whose reader falls behind by [`EngineOptions::unread_tokens`] is paused until half of them are read. It loses its sequence
///   where others wait for one, and is computed again later.
/// * Where memory for caches ends, the youngest request of the least priority gives its sequence up and is computed again when another
///   has ended. Its text stays the same, since draws depend on seed and position alone. A request that does not fit alone ends
///   with [`ErrorKind::ResourceExhausted`].
/// * Cancel tokens and time limits are looked at between steps, so within a chunk, of requests that wait too.
/// * The error of a row ends its request alone. After a device fault a request is computed again from its tokens, once; the second
///   fault ends it.
///
/// # Its end
///
/// The thread ends when the last clone of the engine and the last of its streams are dropped, and that drop waits for it: for the step
/// that runs, up to its next chunk. Streams keep it: they run to their ends after the engine is gone. [`shutdown`](Self::shutdown) ends
/// it in order. Where an engine's code panics, all its requests and those that come
/// later end with [`ErrorKind::Internal`].
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
    /// Those of [`with_options`](Self::with_options).
    pub fn new(model: Model) -> Result<Self> {
        Self::with_options(model, &EngineOptions::default())
    }

    /// Opens a session of `model` and starts the thread that drives it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] for options that are out of range or exceed what the engine holds,
    /// [`ErrorKind::ResourceExhausted`] where the system gives no thread, and those of
    /// [`Model::open_session`](mlxcel_core::Model::open_session).
    pub fn with_options(model: Model, options: &EngineOptions) -> Result<Self> {
        let session = model.engine().open_session(&SessionOptions::default())?;
        let limits = options.limits(session.capabilities())?;
        let queue = Arc::new(Queue::new(limits));
        let scheduler = Scheduler::new(model.clone(), session, limits, queue.stop.clone());
        let thread = worker::start(scheduler, &queue)?;
        Ok(Self { model, life: Arc::new(Life { queue, thread: Mutex::new(Some(thread)) }) })
    }

    /// The model that it runs.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Continues a text as it stands.
    ///
    /// # Errors
    ///
    /// Those of [`submit`](Self::submit).
    pub fn generate(&self, text: &str, options: &Options) -> Result<RequestStream> {
        self.submit(Request::new(text).with_options(options.clone()))
    }

    /// Answers a conversation, whose prompt the checkpoint's chat template writes.
    ///
    /// # Errors
    ///
    /// Those of [`submit`](Self::submit).
    pub fn chat(&self, messages: &[Message], options: &Options) -> Result<RequestStream> {
        self.submit(Request::new(messages).with_options(options.clone()))
    }

    /// Continues a prompt of token ids as they are.
    ///
    /// # Errors
    ///
    /// Those of [`submit`](Self::submit).
    pub fn generate_tokens(&self, prompt: &[TokenId], options: &Options) -> Result<RequestStream> {
        self.submit(Request::new(prompt).with_options(options.clone()))
    }

    /// Takes a request, unless the queue is full. The prompt is encoded on the caller's thread.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::ResourceExhausted`] where the queue is full: the same request may be taken later.
    /// [`ErrorKind::Cancelled`] after [`shutdown`](Self::shutdown), [`ErrorKind::Internal`] where the engine's thread ended by a panic,
    /// and those of [`Model::generation`]. Errors of computing it come out of the stream.
    pub fn submit(&self, request: Request<'_>) -> Result<RequestStream> {
        self.submit_within(request, Duration::ZERO)
    }

    /// As [`submit`](Self::submit), and waits for room in the queue, at most for `patience`.
    ///
    /// # Errors
    ///
    /// Those of [`submit`](Self::submit).
    pub fn submit_within(&self, request: Request<'_>, patience: Duration) -> Result<RequestStream> {
        let submitted = Instant::now();
        let (prompt, priority) = (request.prompt, request.priority);
        let generation = self.model.generation(prompt, &request.into_options(submitted))?;
        let about = About::of(&generation)?;
        let (number, receiver) = self.life.queue.push(generation, priority, submitted, patience)?;
        Ok(RequestStream::new(receiver, number, about, Arc::clone(&self.life)))
    }

    /// What it has done and is doing.
    pub fn stats(&self) -> EngineStats {
        self.life.queue.stats()
    }

    /// Whether it takes requests.
    ///
    /// # Errors
    ///
    /// Why it takes none: those of [`submit`](Self::submit) that are the engine's own, but for the full queue.
    pub fn check(&self) -> Result<()> {
        self.life.queue.closed().map_or(Ok(()), Err)
    }

    /// Takes no more requests, from any clone, and waits for those that it has to end; after `patience` the rest of them is cancelled. True
    /// where all ended by themselves. The thread has ended then, and its session is closed.
    ///
    /// Requests whose streams nobody reads do not end by themselves.
    pub fn shutdown(&self, patience: Duration) -> bool {
        let reason = "the engine was shut down and takes no more requests";
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
        let Some(thread) = lock(&self.thread).take() else { return };
        // A task that the thread wakes may drop the last stream there.
        if thread.thread().id() != std::thread::current().id() {
            // A panic was told to the readers.
            let _ = thread.join();
        }
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        self.end();
    }
}
