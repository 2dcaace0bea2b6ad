//! Things made on a thread of their own before anybody needs them.

use std::collections::{HashMap, VecDeque};
use std::fmt::Display;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use mlxcel_core::{CancelToken, Error, Result};

use crate::threads::catch_panic;

/// By how much the thread, and the compiler that it starts, is nicer than others (Linux, where threads have a
/// niceness of their own).
#[cfg(target_os = "linux")]
const NICENESS: i32 = 10;

/// How often a thing is tried: the compiler may have lacked memory or a file for a moment, and what fails
/// always must not keep a core busy.
const TRIES: u32 = 3;

/// How long after a failure a thing can be announced again.
const PAUSE: Duration = if cfg!(test) { Duration::ZERO } else { Duration::from_secs(10) };

/// Makes each announced thing once, one after another, in the background. What fails is made when it is
/// announced again some time later, a few times at most. There is a thread only as long as there is something
/// to make; dropping this cancels what is being made, and waits until it has ended.
pub(super) struct Ahead<T>(Arc<Shared<T>>);

/// Makes a thing, unless it is cancelled.
type Make<T> = dyn Fn(&T, &CancelToken) -> Result<()> + Send + Sync;

struct Shared<T> {
    make: Box<Make<T>>,
    cancel: CancelToken,
    queue: Mutex<Queue<T>>,
}

struct Queue<T> {
    told: HashMap<T, Told>,
    waiting: VecDeque<T>,
    is_running: bool,
    /// The thread that was started last; those before it have ended.
    worker: Option<JoinHandle<()>>,
}

/// What became of a thing that was announced.
#[derive(Default)]
struct Told {
    failures: u32,
    /// When it failed; none if it is waiting, being made, or made.
    failed: Option<Instant>,
}

impl Told {
    fn may_be_tried_again(&self) -> bool {
        self.failures < TRIES && self.failed.is_some_and(|at| at.elapsed() >= PAUSE)
    }
}

impl<T> Shared<T> {
    fn queue(&self) -> MutexGuard<'_, Queue<T>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Display + Eq + Hash> Shared<T> {
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
            if let Err(error) = catch_panic("make ahead", || (self.make)(&next, &self.cancel)) {
                self.note_failure(&next, &error);
            }
        }
    }

    /// Who needs the thing makes it, and gets the error if it fails again.
    fn note_failure(&self, thing: &T, error: &Error) {
        let mut queue = self.queue();
        let Some(told) = queue.told.get_mut(thing) else { return };
        told.failures += 1;
        told.failed = Some(Instant::now());
        if told.failures > 1 || self.cancel.is_cancelled() {
            tracing::debug!(program = %thing, %error, "a program was not made ahead");
        } else {
            tracing::warn!(program = %thing, %error, "a program was not made ahead and will be tried again");
        }
    }
}

impl<T: Clone + Display + Eq + Hash + Send + 'static> Ahead<T> {
    /// Makes things by `make`, which has to end soon after its token is cancelled.
    pub(super) fn new(make: impl Fn(&T, &CancelToken) -> Result<()> + Send + Sync + 'static) -> Self {
        let (told, waiting) = (HashMap::new(), VecDeque::new());
        let queue = Mutex::new(Queue { told, waiting, is_running: false, worker: None });
        Self(Arc::new(Shared { make: Box::new(make), cancel: CancelToken::new(), queue }))
    }

    /// Queues `thing`, unless it was announced before and did not fail. If the system cannot start a thread,
    /// it is not made.
    pub(super) fn make(&self, thing: &T) {
        let mut queue = self.0.queue();
        match queue.told.get_mut(thing) {
            Some(told) if told.may_be_tried_again() => told.failed = None,
            Some(_) => return,
            None => drop(queue.told.insert(thing.clone(), Told::default())),
        }
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
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::mpsc;

    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn announced_programs_are_made_once_in_order() {
        let (made, seen) = mpsc::channel();
        let ahead = Ahead::new(move |thing: &u32, _| {
            made.send(*thing).unwrap();
            Ok(())
        });
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
    fn failed_programs_are_tried_again_a_few_times() {
        let (made, seen) = mpsc::channel();
        let failures = AtomicU32::new(0);
        let ahead = Ahead::new(move |thing: &u32, _| {
            made.send(*thing).unwrap();
            // The first fails always, the second once.
            let fails = *thing == 1 || failures.fetch_add(1, Ordering::Relaxed) == 0;
            if fails { Err(Error::unsupported("make", "on purpose")) } else { Ok(()) }
        });
        for _ in 0..5 {
            [1, 2].iter().for_each(|thing| ahead.make(thing));
            while ahead.0.queue().is_running {
                thread::yield_now();
            }
        }
        drop(ahead);
        assert_eq!(seen.iter().collect::<Vec<_>>(), [1, 2, 1, 2, 1]);
    }

    #[test]
    fn a_panic_loses_one_program_and_no_other() {
        let (made, seen) = mpsc::channel();
        let ahead = Ahead::new(move |thing: &u32, _| {
            assert_ne!(*thing, 1, "on purpose");
            made.send(*thing).unwrap();
            Ok(())
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
            Ok(())
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
