//! The bounded channel of a request's tokens, from the engine's thread to the reader. It never closes without
//! a final result.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};

use mlxcel_core::{Error, ErrorKind, FinishReason, Result, SampledToken};

use super::bell::Bell;
use super::guard::{EngineId, contained};
use crate::sync::{AtomicBool, Condvar, Mutex, unpoisoned};
use crate::usage::Usage;

/// A token, the text that became whole by it, and what the request took so far.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) token: SampledToken,
    pub(super) text: String,
    pub(super) usage: Usage,
}

/// The last that a reader hears.
#[derive(Clone, Debug)]
pub(super) struct End {
    /// Text that was held back until the end.
    pub(super) text: String,
    pub(super) reason: Result<FinishReason>,
    /// The stop string that ended it.
    pub(super) stop_string: Option<String>,
    /// `None` if unknown.
    pub(super) usage: Option<Usage>,
}

impl End {
    /// The end of a request whose state is lost.
    fn lost(error: Error) -> Self {
        Self { text: String::new(), reason: Err(error), stop_string: None, usage: None }
    }
}

/// What a reader is handed.
#[derive(Clone, Debug)]
pub(super) enum Event {
    Item(Item),
    End(End),
}

struct Shared {
    state: Mutex<State>,
    arrived: Condvar,
    /// The reader is gone.
    abandoned: AtomicBool,
    /// As many tokens are unread as may be, and no half of them was read since.
    full: AtomicBool,
    capacity: usize,
    /// Wakes the engine's thread.
    bell: Arc<Bell>,
}

#[derive(Default)]
struct State {
    items: VecDeque<Item>,
    end: Option<End>,
    /// Whether the end was handed over.
    ended: bool,
    waker: Option<Waker>,
}

/// A channel for up to `capacity` unread tokens; `bell` is set when the reader makes room or leaves.
pub(super) fn channel(capacity: usize, bell: Arc<Bell>) -> (Sender, Receiver) {
    let shared = Arc::new(Shared {
        state: Mutex::default(),
        arrived: Condvar::new(),
        abandoned: AtomicBool::new(false),
        full: AtomicBool::new(false),
        capacity,
        bell,
    });
    (Sender(Arc::clone(&shared)), Receiver(shared))
}

impl Shared {
    fn change(&self, change: impl FnOnce(&mut State)) {
        let waker = {
            let mut state = unpoisoned(self.state.lock());
            change(&mut state);
            state.waker.take()
        };
        self.arrived.notify_one();
        if let Some(waker) = waker {
            contained(|| waker.wake());
        }
    }

    /// Takes the next event; none where it has not come yet. After the end there are none either.
    fn take(&self, state: &mut State) -> Option<Event> {
        if let Some(item) = state.items.pop_front() {
            // In halves, so that a reader in step with the engine does not wake it for each token.
            if state.items.len() <= self.capacity / 2 && self.full.swap(false, Ordering::AcqRel) {
                self.bell.ring();
            }
            return Some(Event::Item(item));
        }
        let end = state.end.take()?;
        state.ended = true;
        Some(Event::End(end))
    }
}

/// The engine's end. Dropped without [`end`](Self::end), it ends the reader's with an error.
pub(super) struct Sender(Arc<Shared>);

impl Sender {
    /// Hands a token to the reader. It is never refused: who sends asks [`is_full`](Self::is_full) before the
    /// next one is computed.
    pub(super) fn send(&self, item: Item) {
        self.0.change(|state| {
            state.items.push_back(item);
            if state.items.len() >= self.0.capacity {
                self.0.full.store(true, Ordering::Release);
            }
        });
    }

    /// Ends the channel; the reader still gets what it has not read.
    pub(super) fn end(&self, end: End) {
        self.0.change(|state| state.end = Some(end));
    }

    /// Whether the reader is so far behind that nothing should be computed for it.
    pub(super) fn is_full(&self) -> bool {
        self.0.full.load(Ordering::Acquire)
    }

    /// Whether the reader is gone.
    pub(super) fn is_abandoned(&self) -> bool {
        self.0.abandoned.load(Ordering::Acquire)
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.0.change(|state| {
            if state.end.is_none() && !state.ended {
                state.end = Some(End::lost(thread_is_gone()));
            }
        });
    }
}

/// The error of whatever needs an engine whose thread ended before its time.
pub(super) fn thread_is_gone() -> Error {
    Error::new(ErrorKind::Internal, "run engine", "the engine's thread panicked; create a new engine")
}

fn waits_for_itself() -> Error {
    let message = "code of a request waits for the engine that runs it; read the stream on another thread";
    Error::new(ErrorKind::InvalidInput, "read stream", message)
}

/// The reader's end. Dropped, it cancels the request.
pub(super) struct Receiver(Arc<Shared>);

impl Receiver {
    /// Waits for the next event; none after the end.
    pub(super) fn receive(&self) -> Option<Event> {
        let mut state = unpoisoned(self.0.state.lock());
        loop {
            match self.0.take(&mut state) {
                None if state.ended => return None,
                None if EngineId::of(&self.0.bell).is_waiting_for_us() => {
                    state.ended = true;
                    return Some(Event::End(End::lost(waits_for_itself())));
                }
                None => state = unpoisoned(self.0.arrived.wait(state)),
                event => return event,
            }
        }
    }

    /// The next event; where it has not come, the task is woken when it does.
    pub(super) fn poll(&self, context: &mut Context<'_>) -> Poll<Option<Event>> {
        let mut state = unpoisoned(self.0.state.lock());
        match self.0.take(&mut state) {
            None if state.ended => Poll::Ready(None),
            None => {
                match &mut state.waker {
                    Some(waker) => waker.clone_from(context.waker()),
                    waker => *waker = Some(context.waker().clone()),
                }
                Poll::Pending
            }
            event => Poll::Ready(event),
        }
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.0.abandoned.store(true, Ordering::Release);
        self.0.bell.ring();
    }
}
