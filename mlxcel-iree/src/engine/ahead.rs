//! Things made on a thread of their own before anybody needs them.

use std::collections::{HashSet, VecDeque};
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use mlxcel_core::CancelToken;

use crate::threads::catch_panic;

/// By how much the thread, and the compiler that it starts, is nicer than others (Linux, where threads have a
/// niceness of their own).
#[cfg(target_os = "linux")]
const NICENESS: i32 = 10;

/// Makes each announced thing once, one after another, in the background. There is a thread only as long as
/// there is something to make; dropping this cancels what is being made, and waits until it has ended.
pub(super) struct Ahead<T>(Arc<Shared<T>>);

/// Makes a thing, unless it is cancelled.
type Make<T> = dyn Fn(&T, &CancelToken) + Send + Sync;

struct Shared<T> {
    make: Box<Make<T>>,
    cancel: CancelToken,
    queue: Mutex<Queue<T>>,
}

struct Queue<T> {
    told: HashSet<T>,
    waiting: VecDeque<T>,
    is_running: bool,
    /// The thread that was started last; those before it have ended.
    worker: Option<JoinHandle<()>>,
}

impl<T> Shared<T> {
    fn queue(&self) -> MutexGuard<'_, Queue<T>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes what waits, until nothing does or this is cancelled.
    fn run(&self) {
        #[cfg(target_os = "linux")]
        let _ = rustix::process::nice(NICENESS);
        loop {
            let mut queue = self.queue();
            let Some(next) = queue.waiting.pop_front().filter(|_| !self.cancel.is_cancelled()) else {
                return queue.is_running = false;
            };
            drop(queue);
            let made = catch_panic("make ahead", || {
                (self.make)(&next, &self.cancel);
                Ok(())
            });
            if let Err(error) = made {
                // Who needs it makes it, and gets the error.
                tracing::warn!(%error, "something was not made ahead");
            }
        }
    }
}

impl<T: Clone + Eq + Hash + Send + 'static> Ahead<T> {
    /// Makes things by `make`, which has to end soon after its token is cancelled.
    pub(super) fn new(make: impl Fn(&T, &CancelToken) + Send + Sync + 'static) -> Self {
        let (told, waiting) = (HashSet::new(), VecDeque::new());
        let queue = Mutex::new(Queue { told, waiting, is_running: false, worker: None });
        Self(Arc::new(Shared { make: Box::new(make), cancel: CancelToken::new(), queue }))
    }

    /// Queues `thing`, unless it was announced before. If the system cannot start a thread, it is not made.
    pub(super) fn make(&self, thing: &T) {
        let mut queue = self.0.queue();
        if queue.told.contains(thing) {
            return;
        }
        queue.told.insert(thing.clone());
        queue.waiting.push_back(thing.clone());
        if queue.is_running {
            return;
        }
        let shared = Arc::clone(&self.0);
        let started = thread::Builder::new().name("mlxcel-ahead".to_owned()).spawn(move || shared.run());
        queue.is_running = started.is_ok();
        queue.worker = started.ok();
    }
}

impl<T> Drop for Ahead<T> {
    fn drop(&mut self) {
        self.0.cancel.cancel();
        let worker = self.0.queue().worker.take();
        if let Some(worker) = worker {
            let _ = worker.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn announced_programs_are_made_once_in_order() {
        let (made, seen) = mpsc::channel();
        let ahead = Ahead::new(move |thing: &u32, _| made.send(*thing).unwrap());
        for thing in [3, 1, 3, 2, 1] {
            ahead.make(&thing);
        }
        assert_eq!([(); 3].map(|()| seen.recv_timeout(LONG).unwrap()), [3, 1, 2]);
        // Long after, with a thread of its own.
        while ahead.0.queue().is_running {
            thread::yield_now();
        }
        ahead.make(&4);
        assert_eq!(seen.recv_timeout(LONG), Ok(4));
        drop(ahead);
        assert_eq!(
            seen.recv_timeout(LONG),
            Err(mpsc::RecvTimeoutError::Disconnected),
            "nothing is made twice"
        );
    }

    #[test]
    fn a_panic_loses_one_program_and_no_other() {
        let (made, seen) = mpsc::channel();
        let ahead = Ahead::new(move |thing: &u32, _| {
            assert_ne!(*thing, 1, "on purpose");
            made.send(*thing).unwrap();
        });
        [1, 2].iter().for_each(|thing| ahead.make(thing));
        assert_eq!(seen.recv_timeout(LONG), Ok(2));
    }

    #[test]
    fn dropping_the_queue_cancels_the_current_program_and_skips_the_others() {
        let (began, seen) = mpsc::channel();
        let ahead = Ahead::new(move |thing: &u32, cancel: &CancelToken| {
            began.send(*thing).unwrap();
            while !cancel.is_cancelled() {
                thread::yield_now();
            }
            began.send(100 + thing).unwrap();
        });
        ahead.make(&1);
        ahead.make(&2);
        assert_eq!(seen.recv_timeout(LONG), Ok(1));
        drop(ahead);
        // It had ended when the drop came back, and everything with it.
        assert_eq!(seen.try_iter().collect::<Vec<_>>(), [101]);
        assert_eq!(seen.try_recv(), Err(mpsc::TryRecvError::Disconnected));
    }
}
