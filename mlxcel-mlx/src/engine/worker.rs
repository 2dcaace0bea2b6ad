//! The engine's thread, which owns arrays and streams: both are bound to the thread that created them.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use mlxcel_core::{Error, ErrorKind, Result};

/// A job with access to the thread's value.
type Job<T> = Box<dyn FnOnce(&mut T) + Send>;

/// A thread that owns a value, and the channel for its jobs. Jobs run one at a time, in the order in which
/// they were sent. Dropping the worker lets pending jobs finish, then drops the value on its thread and waits
/// for that.
pub(super) struct Worker<T> {
    /// None only during drop.
    jobs: Option<mpsc::Sender<Job<T>>>,
    thread: Option<JoinHandle<()>>,
}

impl<T: 'static> Worker<T> {
    /// Starts a thread with a value that `make` creates there.
    ///
    /// # Errors
    ///
    /// The errors of `make`; [`ErrorKind::ResourceExhausted`] if the system cannot start a thread.
    pub(super) fn start(make: impl FnOnce() -> Result<T> + Send + 'static) -> Result<Self> {
        let (jobs, inbox) = mpsc::channel::<Job<T>>();
        let (made, is_made) = mpsc::sync_channel(1);
        let run = move || {
            let value = catch_unwind(AssertUnwindSafe(make))
                .unwrap_or_else(|panic| Err(panicked("load model", &*panic)));
            let mut value = match value {
                Ok(value) => value,
                Err(error) => {
                    made.send(Err(error)).ok();
                    return;
                }
            };
            made.send(Ok(())).ok();
            for job in inbox {
                job(&mut value);
            }
        };
        let thread = thread::Builder::new().name("mlxcel-mlx".to_owned()).spawn(run).map_err(|error| {
            Error::new(ErrorKind::ResourceExhausted, "load model", "the system cannot start another thread")
                .with_source(error)
        })?;
        let worker = Self { jobs: Some(jobs), thread: Some(thread) };
        is_made.recv().unwrap_or_else(|_| Err(ended("load model")))?;
        Ok(worker)
    }

    /// Runs `job` on the thread and waits for its result.
    ///
    /// # Errors
    ///
    /// The errors of `job`; [`ErrorKind::Internal`] if it panicked, or the thread has ended.
    pub(super) fn call<R: Send + 'static>(
        &self,
        operation: &'static str,
        job: impl FnOnce(&mut T) -> Result<R> + Send + 'static,
    ) -> Result<R> {
        let (answer, answered) = mpsc::sync_channel(1);
        self.send(Box::new(move |value| {
            let result = catch_unwind(AssertUnwindSafe(|| job(value)));
            // If the caller's thread panicked, no receiver is left.
            answer.send(result.unwrap_or_else(|panic| Err(panicked(operation, &*panic)))).ok();
        }));
        answered.recv().unwrap_or_else(|_| Err(ended(operation)))
    }

    /// Runs `job` on the thread without waiting for it.
    pub(super) fn post(&self, job: impl FnOnce(&mut T) + Send + 'static) {
        // If it panics, the memory that it should free is freed with the value.
        self.send(Box::new(move |value| drop(catch_unwind(AssertUnwindSafe(|| job(value))))));
    }

    fn send(&self, job: Job<T>) {
        // If the thread has ended, the job does not run; a waiting caller gets an error.
        if let Some(jobs) = &self.jobs {
            jobs.send(job).ok();
        }
    }
}

impl<T> Drop for Worker<T> {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

fn ended(operation: &'static str) -> Error {
    Error::new(ErrorKind::Internal, operation, "the engine's thread has ended")
}

fn panicked(operation: &'static str, panic: &(dyn Any + Send)) -> Error {
    let words = panic.downcast_ref::<String>().map(String::as_str);
    let words = words.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no reason given");
    Error::new(ErrorKind::Internal, operation, "the engine panicked").with_source(words.to_owned())
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// A value that cannot move between threads, and reports its drop.
    struct Bound(Rc<AtomicU32>, Arc<AtomicU32>);

    impl Drop for Bound {
        fn drop(&mut self) {
            self.1.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn worker(dropped: &Arc<AtomicU32>) -> Worker<Bound> {
        let dropped = Arc::clone(dropped);
        Worker::start(move || Ok(Bound(Rc::new(AtomicU32::new(0)), dropped))).unwrap()
    }

    #[test]
    fn jobs_of_several_threads_run_one_at_a_time() {
        let dropped = Arc::default();
        let worker = worker(&dropped);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        worker.call("count", |bound| Ok(bound.0.fetch_add(1, Ordering::Relaxed))).unwrap();
                    }
                });
            }
        });
        worker.post(|bound| bound.0.store(201, Ordering::Relaxed));
        assert_eq!(worker.call("count", |bound| Ok(bound.0.load(Ordering::Relaxed))).unwrap(), 201);
        assert_eq!(dropped.load(Ordering::SeqCst), 0);
        drop(worker);
        assert_eq!(dropped.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn a_panic_is_an_error_and_the_thread_continues() {
        let worker = worker(&Arc::default());
        let error = worker.call("try", |_| -> Result<()> { panic!("on purpose") }).unwrap_err();
        assert_eq!((error.kind(), error.operation()), (ErrorKind::Internal, "try"));
        assert_eq!(std::error::Error::source(&error).unwrap().to_string(), "on purpose");
        worker.post(|_| panic!("on purpose"));
        assert_eq!(worker.call("try", |_| Ok(5)).unwrap(), 5);
    }

    #[test]
    fn a_failed_initialisation_is_an_error_of_start() {
        let refused = Worker::<()>::start(|| Err(Error::unsupported("load model", "not this one")));
        assert_eq!(refused.map(drop).unwrap_err().kind(), ErrorKind::Unsupported);
        let panicked = Worker::<()>::start(|| panic!("on purpose"));
        assert_eq!(panicked.map(drop).unwrap_err().kind(), ErrorKind::Internal);
    }
}
