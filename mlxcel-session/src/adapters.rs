//! Adapters of a model by name: more than it has slots.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use mlxcel_core::{Adapter, AdapterSlots, CancelToken, Error, ErrorKind, ModelSource, Result};

use crate::model::Model;
use crate::sync::unpoisoned;

/// How often a call that waits looks for idle adapters: requests that end notify nobody here.
const LOOK: Duration = Duration::from_millis(10);
/// How long it waits if adapters that are not of this pool have the slots. A try reads the adapter's files.
const LOOK_AGAIN: Duration = Duration::from_millis(200);
/// The maximum length of a name in bytes.
const LONGEST_NAME: usize = 256;

const ADD: &str = "add adapter";
const ACQUIRE: &str = "acquire adapter";

/// Adapters of a model by name, of which as many are loaded as the model has slots.
///
/// [`acquire`](Self::acquire) returns the handle of an adapter and loads it if necessary, into the slot of
/// the least recently used adapter that no request needs. While all are needed it waits; meanwhile one of
/// them gets no new requests, so that its slot becomes free however many come. Clones are the same pool.
///
/// ```no_run
/// use std::time::Duration;
///
/// use mlxcel_session::{AdapterLimits, AdapterPool, CancelToken, Model, OpenOptions, Options};
///
/// // Two slots for a hundred customers.
/// let room = AdapterLimits::new(2, 16);
/// let model = Model::open_with("models/llama", &OpenOptions::default().with_adapters(room))?;
/// let pool = AdapterPool::new(&model)?;
/// for customer in 0..100 {
///     pool.add(&format!("customer-{customer}"), format!("adapters/{customer}"))?;
/// }
/// let adapter = pool.acquire("customer-7", Duration::from_secs(10), &CancelToken::new())?;
/// let text = model.generate("Dear", &Options::new(40).with_adapter(&adapter))?.complete()?;
/// # Ok::<(), mlxcel_session::Error>(())
/// ```
#[derive(Clone)]
pub struct AdapterPool(Arc<Shared>);

/// An adapter of an [`AdapterPool`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PooledAdapter {
    /// Its name in the pool.
    pub name: String,
    /// Where it is loaded from.
    pub source: ModelSource,
    /// [`Adapter::identity`], if it was loaded since it was added.
    pub identity: Option<String>,
    /// Whether it has a slot.
    pub is_loaded: bool,
}

struct Shared {
    model: Model,
    slots: usize,
    state: Mutex<State>,
    /// Another call's turn began, or an adapter was loaded.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    adapters: BTreeMap<String, Entry>,
    /// Loaded ones that were removed and are still needed.
    removed: Vec<Adapter>,
    /// Calls that wait for a slot, by arrival. The first one loads.
    queue: VecDeque<u64>,
    /// Numbers calls and uses.
    clock: u64,
}

struct Entry {
    /// When it was added: another one may have its name later.
    added: u64,
    source: ModelSource,
    loaded: Option<Adapter>,
    identity: Option<String>,
    /// The time of the last use.
    used: u64,
    /// Gets no new requests until the first call of the queue has a slot.
    is_leaving: bool,
}

impl AdapterPool {
    /// The maximum number of adapters.
    pub const MAX_ADAPTERS: usize = 4096;

    /// A pool without adapters for a model that was [opened with room](crate::OpenOptions::with_adapters).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] for a model without room.
    pub fn new(model: &Model) -> Result<Self> {
        let room = model.capabilities().adapters.ok_or_else(|| AdapterSlots::no_room(ADD))?;
        let (model, state, changed) = (model.clone(), Mutex::default(), Condvar::new());
        Ok(Self(Arc::new(Shared { model, slots: room.slots, state, changed })))
    }

    /// Adds an adapter. It is loaded at once if there is a slot that no request needs; otherwise only its
    /// rank is checked.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] for a name that is taken, empty, longer than 256 bytes, or has spaces or
    /// control characters; [`ErrorKind::CapacityExceeded`] beyond [`MAX_ADAPTERS`](Self::MAX_ADAPTERS);
    /// and the errors of [`Model::load_adapter`]. After an error the adapter is not in the pool.
    pub fn add(&self, name: &str, source: impl Into<ModelSource>) -> Result<()> {
        let source = source.into();
        let refuse = |kind, message| Err(named(Error::new(kind, ADD, message), name));
        let has_space = name.contains(|c: char| c.is_whitespace() || c.is_control());
        if name.is_empty() || name.len() > LONGEST_NAME || has_space {
            let message = "a name has 1 to 256 bytes without spaces and control characters";
            return refuse(ErrorKind::InvalidInput, message);
        }
        let added = {
            let mut state = self.0.lock();
            if state.adapters.contains_key(name) {
                return refuse(ErrorKind::InvalidInput, "the name is taken; remove that adapter first");
            }
            if state.adapters.len() >= Self::MAX_ADAPTERS {
                let message = "the pool has as many adapters as it can; remove some";
                return refuse(ErrorKind::CapacityExceeded, message);
            }
            state.clock += 1;
            let now = state.clock;
            let entry = Entry {
                added: now,
                source: source.clone(),
                loaded: None,
                identity: None,
                used: now,
                is_leaving: false,
            };
            state.adapters.insert(name.to_owned(), entry);
            now
        };
        match self.acquire(name, Duration::ZERO, &CancelToken::new()) {
            Ok(_) => Ok(()),
            // It is loaded when it is needed.
            Err(error) if error.kind() == ErrorKind::ResourceExhausted => self.check_rank(name, &source),
            Err(error) => Err(error),
        }
        .inspect_err(|_| {
            let adapters = &mut self.0.lock().adapters;
            // Another one may have the name by now.
            if adapters.get(name).is_some_and(|entry| entry.added == added) {
                adapters.remove(name);
            }
        })
    }

    /// Rejects an adapter whose rank is above the model's room.
    fn check_rank(&self, name: &str, source: &ModelSource) -> Result<()> {
        if let ModelSource::BuiltIn(_) = source {
            return Ok(());
        }
        let room = self.0.model.capabilities().adapters.map_or(0, |room| room.rank);
        let rank = Model::adapter_rank(source.clone())?;
        if rank <= room {
            return Ok(());
        }
        let message = "the adapter's rank is above the model's room; load the model with room for it";
        let error = Error::unsupported(ADD, message).with_context("rank", rank).with_context("room", room);
        Err(named(error, name))
    }

    /// Removes an adapter. Requests that use it go on, and its slot is free after them.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] if the pool has no adapter of this name.
    pub fn remove(&self, name: &str) -> Result<()> {
        let mut state = self.0.lock();
        let entry = state.adapters.remove(name).ok_or_else(|| missing("remove adapter", name))?;
        state.removed.extend(entry.loaded);
        state.removed.retain(Adapter::is_shared);
        Ok(())
    }

    /// The handle of an adapter if it is loaded and takes requests; [`acquire`](Self::acquire) loads it
    /// otherwise.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] if the pool has no adapter of this name.
    pub fn loaded(&self, name: &str) -> Result<Option<Adapter>> {
        self.0.lock().take(name, false)
    }

    /// The handle of an adapter, which is loaded if it is not. Waits for a slot for at most `patience`, in
    /// the order of calls.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] if the pool has no adapter of this name, [`ErrorKind::ResourceExhausted`] if
    /// requests needed all slots for all the time, [`ErrorKind::Cancelled`] after `cancel`, and the
    /// errors of [`Model::load_adapter`].
    pub fn acquire(&self, name: &str, patience: Duration, cancel: &CancelToken) -> Result<Adapter> {
        if let Some(adapter) = self.loaded(name)? {
            return Ok(adapter);
        }
        // Its place is left after the lock is, since that takes it.
        let turn = Turn::queue(&self.0);
        turn.acquire(name, patience, cancel)
    }

    /// The adapters, by name.
    pub fn list(&self) -> Vec<PooledAdapter> {
        let describe = |(name, entry): (&String, &Entry)| PooledAdapter {
            name: name.clone(),
            source: entry.source.clone(),
            identity: entry.identity.clone(),
            is_loaded: entry.loaded.is_some(),
        };
        self.0.lock().adapters.iter().map(describe).collect()
    }

    /// Whether there is an adapter of this name.
    pub fn contains(&self, name: &str) -> bool {
        self.0.lock().adapters.contains_key(name)
    }
}

impl fmt::Debug for AdapterPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdapterPool").field("slots", &self.0.slots).field("adapters", &self.list()).finish()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        unpoisoned(self.state.lock())
    }
}

impl State {
    /// The handle of an adapter that is loaded. One that is about to leave is only for the call whose turn it
    /// is.
    fn take(&mut self, name: &str, is_first: bool) -> Result<Option<Adapter>> {
        let entry = self.adapters.get_mut(name).ok_or_else(|| missing(ACQUIRE, name))?;
        if entry.is_leaving && !is_first {
            return Ok(None);
        }
        self.clock += 1;
        entry.used = self.clock;
        Ok(entry.loaded.clone())
    }

    /// Whether one of `slots` slots is free, after the least recently used adapter that nobody needs has left
    /// its own. If all are needed, one of them gets no new requests from now on.
    fn make_room(&mut self, slots: usize) -> bool {
        self.removed.retain(Adapter::is_shared);
        let taken =
            self.adapters.values().filter(|entry| entry.loaded.is_some()).count() + self.removed.len();
        if taken < slots {
            return true;
        }
        let is_idle = |entry: &&mut Entry| entry.loaded.as_ref().is_some_and(|adapter| !adapter.is_shared());
        let idle = self.adapters.values_mut().filter(is_idle);
        if let Some(entry) = idle.min_by_key(|entry| entry.used) {
            (entry.loaded, entry.is_leaving) = (None, false);
            return true;
        }
        if self.removed.is_empty() && !self.adapters.values().any(|entry| entry.is_leaving) {
            let loaded = self.adapters.values_mut().filter(|entry| entry.loaded.is_some());
            if let Some(entry) = loaded.min_by_key(|entry| entry.used) {
                entry.is_leaving = true;
            }
        }
        false
    }

    /// Keeps an adapter that was loaded for the entry added then, unless it was removed meanwhile.
    fn keep(&mut self, name: &str, added: u64, adapter: &Adapter) {
        match self.adapters.get_mut(name).filter(|entry| entry.added == added) {
            Some(entry) => {
                entry.identity = Some(adapter.identity().to_owned());
                entry.loaded = Some(adapter.clone());
            }
            None => self.removed.push(adapter.clone()),
        }
    }
}

/// The place of a call in the queue.
struct Turn<'a> {
    shared: &'a Shared,
    number: u64,
}

impl<'a> Turn<'a> {
    fn queue(shared: &'a Shared) -> Self {
        let mut state = shared.lock();
        state.clock += 1;
        let number = state.clock;
        state.queue.push_back(number);
        Self { shared, number }
    }

    /// Waits for a slot, and loads the adapter into it unless another call has loaded it.
    fn acquire(&self, name: &str, patience: Duration, cancel: &CancelToken) -> Result<Adapter> {
        let (shared, start) = (self.shared, Instant::now());
        let mut pause = LOOK;
        let mut state = shared.lock();
        loop {
            let is_first = state.queue.front() == Some(&self.number);
            if let Some(adapter) = state.take(name, is_first)? {
                return Ok(adapter);
            }
            if cancel.is_cancelled() {
                return Err(named(Error::new(ErrorKind::Cancelled, ACQUIRE, "it was cancelled"), name));
            }
            if is_first && state.make_room(shared.slots) {
                let entry = state.adapters.get(name).map(|entry| (entry.added, entry.source.clone()));
                let (added, source) = entry.ok_or_else(|| missing(ACQUIRE, name))?;
                // Requests with other adapters are served meanwhile.
                drop(state);
                let loaded = shared.model.load_adapter(source);
                state = shared.lock();
                match loaded {
                    Ok(adapter) => {
                        state.keep(name, added, &adapter);
                        return Ok(adapter);
                    }
                    // Adapters that the application loaded itself have the slots.
                    Err(error) if error.kind() == ErrorKind::CapacityExceeded => pause = LOOK_AGAIN,
                    Err(error) => return Err(error),
                }
            }
            let left = patience.saturating_sub(start.elapsed());
            if left.is_zero() {
                let message = "requests need all slots for adapters; try again later, or load the model with more slots";
                let error = Error::new(ErrorKind::ResourceExhausted, ACQUIRE, message);
                return Err(named(error.with_context("slots", shared.slots), name));
            }
            state = unpoisoned(shared.changed.wait_timeout(state, left.min(pause))).0;
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        if state.queue.front() == Some(&self.number) {
            // The next one chooses anew who is to leave.
            state.adapters.values_mut().for_each(|entry| entry.is_leaving = false);
        }
        state.queue.retain(|&number| number != self.number);
        self.shared.changed.notify_all();
    }
}

fn named(error: Error, name: &str) -> Error {
    error.with_context("adapter", name.escape_debug())
}

fn missing(operation: &'static str, name: &str) -> Error {
    named(Error::new(ErrorKind::NotFound, operation, "there is no adapter of this name"), name)
}
