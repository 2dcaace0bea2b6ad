//! Locks, condition variables, atomic flags and threads of the engine and of what several threads share.
//!
//! They are those of the standard library. In the unit tests of this crate they are those of `shuttle`, which
//! runs the threads of a test one at a time and chooses at each of these operations, by a seed, which one
//! goes on: a test that is run by [`explore`] goes through thousands of interleavings, and fails if one of
//! them is wrong, deadlocks or never ends. Outside of it these operations panic.

use std::sync::{LockResult, PoisonError};
#[cfg(not(test))]
use std::time::Duration;

#[cfg(not(test))]
pub(crate) use std::sync::atomic::AtomicBool;
#[cfg(not(test))]
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard, mpsc};
#[cfg(not(test))]
pub(crate) use std::{thread, thread_local};

#[cfg(test)]
pub(crate) use explored::{FOREVER, explore, explore_once, lock_when};
#[cfg(test)]
pub(crate) use shuttle::sync::{Condvar, Mutex, MutexGuard, atomic::AtomicBool, mpsc};
#[cfg(test)]
pub(crate) use shuttle::{thread, thread_local};

/// What a lock or a wait returned. A thread that panicked with the lock left nothing broken: what these locks
/// protect is whole after every statement, or answers an error from then on.
pub(crate) fn unpoisoned<G>(result: LockResult<G>) -> G {
    result.unwrap_or_else(PoisonError::into_inner)
}

/// Locks `mutex` once its value is `ready`, of which `changed` is notified, or `limit` has passed.
#[cfg(not(test))]
pub(crate) fn lock_when<'a, T>(
    mutex: &'a Mutex<T>,
    changed: &Condvar,
    limit: Duration,
    ready: impl Fn(&T) -> bool,
) -> MutexGuard<'a, T> {
    unpoisoned(changed.wait_timeout_while(unpoisoned(mutex.lock()), limit, |value| !ready(value))).0
}

#[cfg(test)]
mod explored {
    use std::time::Duration;

    use shuttle::rand::{Rng, thread_rng};
    use shuttle::scheduler::{PctScheduler, RandomScheduler};
    use shuttle::sync::{Condvar, Mutex, MutexGuard};

    use super::unpoisoned;

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

    /// Shuttle's condition variables have no time limits.
    pub(crate) fn lock_when<'a, T>(
        mutex: &'a Mutex<T>,
        changed: &Condvar,
        limit: Duration,
        ready: impl Fn(&T) -> bool,
    ) -> MutexGuard<'a, T> {
        let mut value = unpoisoned(mutex.lock());
        while !ready(&value) && !limit.is_zero() {
            if limit >= FOREVER {
                value = unpoisoned(changed.wait(value));
                continue;
            }
            if thread_rng().gen_bool(0.25) {
                break;
            }
            // It looks again and again, since a thread that waits for a notification does not wake up by
            // itself.
            drop(value);
            shuttle::thread::yield_now();
            value = unpoisoned(mutex.lock());
        }
        value
    }
}
