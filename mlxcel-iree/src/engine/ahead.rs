//! Things made on a thread of their own before anybody needs them.

use std::collections::{HashMap, VecDeque};
use std::fmt::Display;
use std::hash::Hash;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use mlxcel_core::{CancelToken, Error, Result};

use mlxcel_iree_target::threads::catch_panic;

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
    /// Notified when something is added to the queue, and when this is cancelled.
    changed: Condvar,
}

struct Queue<T> {
    told: HashMap<T, Told>,
    waiting: VecDeque<T>,
    /// What nobody has asked for, and when it is made unasked.
    later: VecDeque<(Instant, T)>,
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

impl<T: Clone + Display + Eq + Hash> Shared<T> {
    /// Makes what waits, until nothing does or this is cancelled.
    fn run(&self) {
        #[cfg(target_os = "linux")]
        let _ = rustix::process::nice(NICENESS);
        while let Some(next) = self.next() {
            if let Err(error) = catch_panic("make ahead", || (self.make)(&next, &self.cancel)) {
                self.note_failure(&next, &error);
            }
        }
    }

    /// What is to be made next, as soon as it is; none ends the thread.
    fn next(&self) -> Option<T> {
        let mut queue = self.queue();
        while !self.cancel.is_cancelled() {
            if let Some(asked) = queue.waiting.pop_front() {
                return Some(asked);
            }
            let Some((due, _)) = queue.later.front() else { break };
            let early = due.saturating_duration_since(Instant::now());
            if early.is_zero() {
                let (_, unasked) = queue.later.pop_front()?;
                queue.told.insert(unasked.clone(), Told::default());
                return Some(unasked);
            }
            queue = self.changed.wait_timeout(queue, early).unwrap_or_else(PoisonError::into_inner).0;
        }
        queue.is_running = false;
        None
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
        let (told, waiting, later) = (HashMap::new(), VecDeque::new(), VecDeque::new());
        let queue = Queue { told, waiting, later, is_running: false, worker: None };
        let (cancel, queue, changed) = (CancelToken::new(), Mutex::new(queue), Condvar::new());
        Self(Arc::new(Shared { make: Box::new(make), cancel, queue, changed }))
    }

    /// Announces `things` that are made after `delay`, if nobody asks for them before.
    pub(super) fn make_later(&self, things: &[T], delay: Duration) {
        let mut queue = self.0.queue();
        let due = Instant::now() + delay;
        queue.later.extend(things.iter().map(|thing| (due, thing.clone())));
        if !queue.later.is_empty() {
            self.start(queue);
        }
    }

    /// Queues `thing`, unless it was announced before and did not fail.
    pub(super) fn make(&self, thing: &T) {
        let mut queue = self.0.queue();
        queue.later.retain(|(_, other)| other != thing);
        match queue.told.get_mut(thing) {
            Some(told) if told.may_be_tried_again() => told.failed = None,
            Some(_) => return,
            None => drop(queue.told.insert(thing.clone(), Told::default())),
        }
        queue.waiting.push_back(thing.clone());
        self.start(queue);
    }

    /// Has a thread look at the queue. If the system cannot start one, nothing is made.
    fn start(&self, mut queue: MutexGuard<'_, Queue<T>>) {
        self.0.changed.notify_one();
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
        self.0.changed.notify_one();
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
    fn unasked_programs_are_made_after_the_others_and_not_before_their_time() {
        let (made, seen) = mpsc::channel();
        let ahead = Ahead::new(move |thing: &u32, _| {
            made.send(*thing).unwrap();
            Ok(())
        });
        ahead.make_later(&[1, 2, 3], LONG);
        ahead.make(&2);
        assert_eq!(seen.recv_timeout(LONG / 2), Ok(2));
        ahead.make_later(&[4], LONG);
        drop(ahead);
        assert_eq!(seen.recv_timeout(LONG / 2), Err(mpsc::RecvTimeoutError::Disconnected));

        let (made, seen) = mpsc::channel();
        let ahead = Ahead::new(move |thing: &u32, _| {
            made.send(*thing).unwrap();
            Ok(())
        });
        ahead.make_later(&[1, 2], Duration::from_millis(20));
        assert_eq!([(); 2].map(|()| seen.recv_timeout(LONG).unwrap()), [1, 2]);
        ahead.make(&1);
        drop(ahead);
        assert_eq!(seen.recv_timeout(LONG), Err(mpsc::RecvTimeoutError::Disconnected), "made once");
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
