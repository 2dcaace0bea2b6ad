//! Threads for what takes time, such as parsing bodies, encoding prompts, compiling grammars and embedding
//! texts.
//!
//! They are few and are there from the beginning, so that a system without room for them says so at once, and
//! not in the middle of a request. Clients take turns: one that sends much waits for itself.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use mlxcel_session::{CancelToken, Error, ErrorKind};
use tokio::sync::oneshot;

/// Texts that are embedded or scored before it is another client's turn.
pub(crate) const TEXTS_AT_ONCE: usize = 16;

/// Cancels the work of a client that disconnects, which drops the future of its response.
pub(crate) struct CancelledOnDrop(pub(crate) CancelToken);

impl Drop for CancelledOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

type Job = Box<dyn FnOnce() + Send>;

/// Threads that run the work of clients.
pub(crate) struct Workers(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    arrived: Condvar,
    ended: Condvar,
}

#[derive(Default)]
struct State {
    clients: BTreeMap<u64, Client>,
    /// How many jobs were taken.
    taken: u64,
    closed: bool,
}

#[derive(Default)]
struct Client {
    waiting: VecDeque<Job>,
    running: usize,
    /// When its last job was taken, by their number.
    served: u64,
}

impl Workers {
    /// Starts as many of `threads` threads as the system has room for.
    ///
    /// # Errors
    /// If it has none for the first.
    pub(crate) fn start(name: &str, threads: usize) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        for index in 0..threads.max(1) {
            let worker = Arc::clone(&shared);
            let started = thread::Builder::new().name(name.to_owned()).spawn(move || worker.run());
            match started {
                Ok(_) => {}
                Err(error) if index == 0 => return Err(error),
                // Fewer do the same, one after another.
                Err(_) => break,
            }
        }
        Ok(Self(shared))
    }

    /// Runs `work` for `client` when it is its turn, unless nobody waits for the result any more.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        client: u64,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Error> {
        let (sender, result) = oneshot::channel();
        let job = move || {
            if !sender.is_closed() {
                // Who waited may be gone meanwhile.
                let _ = sender.send(work());
            }
        };
        self.0.lock().clients.entry(client).or_default().waiting.push_back(Box::new(job));
        self.0.arrived.notify_one();
        result.await.map_err(|_| Error::new(ErrorKind::Internal, "run request", "it ended without a result"))
    }
}

/// Threads that wait for work end.
impl Drop for Workers {
    fn drop(&mut self) {
        self.0.lock().closed = true;
        self.0.arrived.notify_all();
    }
}

impl Workers {
    /// Takes no more work, and waits a while for what runs: a process that ends under a thread in native code
    /// can crash.
    pub(crate) fn finish(&self, patience: Duration) {
        let mut state = self.0.lock();
        state.closed = true;
        self.0.arrived.notify_all();
        let runs = |state: &mut State| state.clients.values().any(|client| client.running > 0);
        // What has not ended by then is left.
        let _ = self.0.ended.wait_timeout_while(state, patience, runs);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut state = self.lock();
        while !state.closed {
            let Some((client, job)) = state.take() else {
                state = self.arrived.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            drop(state);
            // It drops its sender, which is the error of who waits for it.
            let _ = catch_unwind(AssertUnwindSafe(job));
            state = self.lock();
            state.done(client);
            self.ended.notify_all();
        }
    }
}

impl State {
    /// The next job: of the client with the fewest that run, and of these the one that was served the longest
    /// ago.
    fn take(&mut self) -> Option<(u64, Job)> {
        let waiting = self.clients.iter_mut().filter(|(_, client)| !client.waiting.is_empty());
        let (&name, client) = waiting.min_by_key(|(_, client)| (client.running, client.served))?;
        let job = client.waiting.pop_front()?;
        self.taken += 1;
        (client.running, client.served) = (client.running + 1, self.taken);
        Some((name, job))
    }

    fn done(&mut self, name: u64) {
        let Some(client) = self.clients.get_mut(&name) else { return };
        client.running -= 1;
        if client.running == 0 && client.waiting.is_empty() {
            self.clients.remove(&name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_take_turns_and_each_is_served_in_order() {
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut state = State::default();
        for (client, jobs) in [(1, 5), (2, 2), (3, 1)] {
            for job in 0..jobs {
                let order = Arc::clone(&order);
                let run = move || order.lock().unwrap().push((client, job));
                state.clients.entry(client).or_default().waiting.push_back(Box::new(run));
            }
        }
        let mut running = VecDeque::new();
        while let Some((client, job)) = state.take() {
            job();
            running.push_back(client);
            // Two threads.
            if running.len() == 2 {
                state.done(running.pop_front().unwrap());
            }
        }
        let order = order.lock().unwrap();
        let place = |job| order.iter().position(|found| *found == job).unwrap();
        assert_eq!(order.len(), 8);
        assert!(place((3, 0)) < 3 && place((2, 0)) < 3, "{order:?}");
        assert!(place((2, 1)) < place((1, 3)), "{order:?}");
        assert!((1..5).all(|job| place((1, job - 1)) < place((1, job))), "{order:?}");
    }
}
