//! Things that are used by one thread at a time, and of which there are as many as threads want one at once.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use mlxcel_core::Result;

/// A pool of objects, handed out first come, first served.
pub(super) struct Lender<T> {
    state: Mutex<State<T>>,
    returned: Condvar,
    most: usize,
}

struct State<T> {
    idle: Vec<T>,
    made: usize,
    /// How many have come, and how many of them have been given one.
    come: u64,
    served: u64,
}

impl<T> Lender<T> {
    /// Has `first`, and makes others until there are `most` of them.
    pub(super) fn new(first: T, most: usize) -> Self {
        let state = State { idle: vec![first], made: 1, come: 0, served: 0 };
        Self { state: Mutex::new(state), returned: Condvar::new(), most: most.max(1) }
    }

    /// Has `work` done with one; `make` makes another where all are in use and there may be more.
    ///
    /// # Errors
    ///
    /// Those of `make`.
    pub(super) fn with<R>(&self, make: impl FnOnce() -> Result<T>, work: impl FnOnce(&T) -> R) -> Result<R> {
        let mut state = self.state();
        let place = state.come;
        state.come += 1;
        while state.served != place || (state.idle.is_empty() && state.made >= self.most) {
            state = self.returned.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.served += 1;
        let idle = state.idle.pop();
        if idle.is_none() {
            state.made += 1;
        }
        drop(state);
        self.returned.notify_all();
        let thing = match idle {
            Some(thing) => thing,
            None => make().inspect_err(|_| {
                self.state().made -= 1;
                self.returned.notify_all();
            })?,
        };
        let result = work(&thing);
        self.state().idle.push(thing);
        self.returned.notify_all();
        Ok(result)
    }

    /// How many have been made.
    #[cfg(test)]
    pub(super) fn made(&self) -> usize {
        self.state().made
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    use mlxcel_core::{Error, ErrorKind};

    use super::*;

    #[test]
    fn the_pool_lends_at_most_its_limit_at_once() {
        let lender = Lender::new(0, 3);
        let (together, in_use, most) = (Barrier::new(3), AtomicUsize::new(0), AtomicUsize::new(0));
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    // None of the three continues before all have one.
                    lender.with(|| Ok(1), |_| together.wait()).unwrap();
                });
            }
        });
        assert_eq!(lender.made(), 3);
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let work = |_: &_| {
                            most.fetch_max(in_use.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                            thread::yield_now();
                            in_use.fetch_sub(1, Ordering::SeqCst);
                        };
                        lender.with(|| panic!("there are three"), work).unwrap();
                    }
                });
            }
        });
        assert!(most.into_inner() <= 3);
    }

    #[test]
    fn the_pool_serves_waiters_in_order() {
        let lender = Lender::new((), 1);
        let order = Mutex::new(Vec::new());
        thread::scope(|scope| {
            let queue_up = |()| {
                for place in 1..=4 {
                    let (lender, order) = (&lender, &order);
                    scope.spawn(move || {
                        lender.with(|| Ok(()), |()| order.lock().unwrap().push(place)).unwrap();
                    });
                    while lender.state().come <= place {
                        thread::yield_now();
                    }
                }
            };
            lender.with(|| Ok(()), |&held| queue_up(held)).unwrap();
        });
        assert_eq!(order.into_inner().unwrap(), [1, 2, 3, 4]);
    }

    #[test]
    fn a_failed_creation_frees_its_pool_slot() {
        let lender = Lender::new(1, 2);
        let failure = || Err(Error::new(ErrorKind::ResourceExhausted, "test", "no memory"));
        let while_one_is_in_use = |&first: &i32| {
            let error = lender.with(failure, |_| ()).unwrap_err();
            assert_eq!((first, error.kind()), (1, ErrorKind::ResourceExhausted));
            lender.with(|| Ok(3), |&other| other).unwrap()
        };
        assert_eq!(lender.with(failure, while_one_is_in_use).unwrap(), 3);
    }
}
