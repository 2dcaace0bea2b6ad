//! Locks, condition variables, atomic flags and threads of the engine and of what several threads share.
//!
//! They are those of the standard library. In the unit tests of this crate they are those of `shuttle`, which
//! runs the threads of a test one at a time and chooses at each of these operations, by a seed, which one
//! goes on: a test that is run by [`explore`] goes through thousands of interleavings, and fails if one of
//! them is wrong, deadlocks or never ends. Outside of it these operations panic.

use std::sync::{LockResult, PoisonError};

#[cfg(not(test))]
pub(crate) use std::sync::atomic::AtomicBool;
#[cfg(not(test))]
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard, mpsc};
#[cfg(not(test))]
pub(crate) use std::{thread, thread_local};

#[cfg(test)]
pub(crate) use explored::{Condvar, FOREVER, Mutex, MutexGuard, explore, explore_once};
#[cfg(test)]
pub(crate) use shuttle::sync::{atomic::AtomicBool, mpsc};
#[cfg(test)]
pub(crate) use shuttle::{thread, thread_local};

/// What a lock or a wait returned. A thread that panicked with the lock left nothing broken: what these locks
/// protect is whole after every statement, or answers an error from then on.
pub(crate) fn unpoisoned<G>(result: LockResult<G>) -> G {
    result.unwrap_or_else(PoisonError::into_inner)
}

/// What shuttle does not have: time limits of condition variables.
#[cfg(test)]
mod explored {
    use std::ops::{Deref, DerefMut};
    use std::sync::{LockResult, PoisonError};
    use std::time::Duration;

    use shuttle::rand::{Rng, thread_rng};
    use shuttle::scheduler::{PctScheduler, RandomScheduler};

    /// A time limit that never passes; shorter ones pass whenever the schedule says so.
    pub(crate) const FOREVER: Duration = Duration::from_secs(3600);

    /// Runs `model` under `schedules` schedules, or as many as `MLXCEL_SCHEDULES` says: half of them choose
    /// evenly among the threads, half switch rarely, which finds what happens only if a thread rests for
    /// long. The seed differs from run to run; a failure prints it.
    pub(crate) fn explore(schedules: usize, model: impl Fn() + Clone + Send + Sync + 'static) {
        let wanted = std::env::var("MLXCEL_SCHEDULES").ok().and_then(|count| count.parse().ok());
        let half = wanted.unwrap_or(schedules).div_ceil(2);
        shuttle::Runner::new(RandomScheduler::new(half), config()).run(model.clone());
        shuttle::Runner::new(PctScheduler::new(3, half), config()).run(model);
    }

    /// Runs a test of one thread.
    pub(crate) fn explore_once(test: impl Fn() + Send + Sync + 'static) {
        shuttle::Runner::new(RandomScheduler::new(1), config()).run(test);
    }

    fn config() -> shuttle::Config {
        let mut config = shuttle::Config::new();
        // Its own default is too small for an engine.
        config.stack_size = 1 << 18;
        // They say that every ordering of an atomic counts as the strongest.
        config.silence_warnings = true;
        config
    }

    /// A lock whose guard can be given up and taken again, as waiting with a time limit does.
    #[derive(Debug, Default)]
    pub(crate) struct Mutex<T>(shuttle::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(shuttle::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
            let guarded = |guard| MutexGuard { guard, mutex: self };
            self.0.lock().map(guarded).map_err(|error| PoisonError::new(guarded(error.into_inner())))
        }
    }

    pub(crate) struct MutexGuard<'a, T> {
        guard: shuttle::sync::MutexGuard<'a, T>,
        mutex: &'a Mutex<T>,
    }

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;
        fn deref(&self) -> &T {
            &self.guard
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            &mut self.guard
        }
    }

    #[derive(Debug, Default)]
    pub(crate) struct Condvar(shuttle::sync::Condvar);

    impl Condvar {
        pub(crate) fn new() -> Self {
            Self::default()
        }

        pub(crate) fn notify_one(&self) {
            self.0.notify_one();
        }

        pub(crate) fn notify_all(&self) {
            self.0.notify_all();
        }

        pub(crate) fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
            let MutexGuard { guard, mutex } = guard;
            let guarded = |guard| MutexGuard { guard, mutex };
            self.0.wait(guard).map(guarded).map_err(|error| PoisonError::new(guarded(error.into_inner())))
        }

        pub(crate) fn wait_while<'a, T>(
            &self,
            mut guard: MutexGuard<'a, T>,
            mut condition: impl FnMut(&mut T) -> bool,
        ) -> LockResult<MutexGuard<'a, T>> {
            while condition(&mut guard) {
                guard = self.wait(guard)?;
            }
            Ok(guard)
        }

        /// Returns true beside the guard if the time limit has passed.
        pub(crate) fn wait_timeout_while<'a, T>(
            &self,
            mut guard: MutexGuard<'a, T>,
            limit: Duration,
            mut condition: impl FnMut(&mut T) -> bool,
        ) -> LockResult<(MutexGuard<'a, T>, bool)> {
            let with = |has_passed| {
                move |error: PoisonError<MutexGuard<'a, T>>| {
                    PoisonError::new((error.into_inner(), has_passed))
                }
            };
            if limit >= FOREVER {
                return self.wait_while(guard, condition).map(|guard| (guard, false)).map_err(with(false));
            }
            // It looks again and again, since a thread that waits for a notification does not wake up by
            // itself.
            while condition(&mut guard) {
                if thread_rng().gen_bool(0.25) {
                    return Ok((guard, true));
                }
                let mutex = guard.mutex;
                drop(guard);
                shuttle::thread::yield_now();
                guard = mutex.lock().map_err(with(false))?;
            }
            Ok((guard, false))
        }
    }
}
