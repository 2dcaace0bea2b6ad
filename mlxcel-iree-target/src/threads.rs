//! Work shared out to threads. A system that grants none makes it slower and nothing else.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};
use std::thread;

use mlxcel_core::{Error, ErrorKind, Result};

/// Runs `work`; a panic in it is an error of `operation`, with the panic's words as its source.
///
/// What `work` was changing when it panicked may be half done: the caller uses none of it.
///
/// # Errors
/// Those of `work`; [`ErrorKind::Internal`] for a panic.
pub fn catch_panic<T>(operation: &'static str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let words = panic.downcast_ref::<String>().map(String::as_str);
        let words = words.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no reason given");
        let thread = thread::current().name().unwrap_or("unnamed").to_owned();
        Err(Error::new(ErrorKind::Internal, operation, "the engine panicked")
            .with_context("thread", thread)
            .with_source(words.to_owned()))
    })
}

/// Works on `items` in their order with up to `threads` threads, this one among them, until all are done or
/// one fails. Work that panics has failed with an error of `operation`.
///
/// # Errors
/// The first error of `work`.
pub fn share_out<T: Send>(
    operation: &'static str,
    threads: usize,
    items: Vec<T>,
    work: impl Fn(T) -> Result<()> + Sync,
) -> Result<()> {
    let threads = threads.min(items.len());
    let items = Mutex::new(Some(items.into_iter()));
    let failure = Mutex::new(None);
    let next = || items.lock().unwrap_or_else(PoisonError::into_inner).as_mut()?.next();
    let worker = || {
        while let Some(item) = next() {
            if let Err(error) = catch_panic(operation, || work(item)) {
                // No new work starts, and the first error is reported.
                *items.lock().unwrap_or_else(PoisonError::into_inner) = None;
                failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads {
            // With threads that the system does not grant it takes longer, and that is all.
            if thread::Builder::new().name("mlxcel-worker".to_owned()).spawn_scoped(scope, worker).is_err() {
                break;
            }
        }
        worker();
    });
    failure.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use mlxcel_core::{Error, ErrorKind};

    use super::*;

    #[test]
    fn each_task_runs_once_and_the_first_failure_stops_all() {
        let done = Mutex::new(Vec::new());
        share_out("test", 4, (0..1000).collect(), |item| {
            done.lock().unwrap().push(item);
            Ok(())
        })
        .unwrap();
        let mut done = done.into_inner().unwrap();
        done.sort_unstable();
        assert_eq!(done, (0..1000).collect::<Vec<_>>());

        let begun = AtomicU64::new(0);
        let failed = share_out("test", 2, (0..1000).collect(), |item: u64| {
            begun.fetch_add(1, Ordering::SeqCst);
            if item < 3 { Ok(()) } else { Err(Error::new(ErrorKind::Io, "test", "no")) }
        });
        assert_eq!(failed.unwrap_err().kind(), ErrorKind::Io);
        assert!(begun.load(Ordering::SeqCst) <= 5);
    }

    #[test]
    fn a_panic_on_any_thread_is_an_error_of_the_operation() {
        for threads in [1, 4] {
            let begun = AtomicU64::new(0);
            let failed = share_out("load weights", threads, (0..1000).collect(), |item: u64| {
                begun.fetch_add(1, Ordering::SeqCst);
                assert!(item < 10, "on purpose");
                Ok(())
            });
            let error = failed.unwrap_err();
            assert_eq!((error.kind(), error.operation()), (ErrorKind::Internal, "load weights"));
            assert!(error.context("thread").is_some());
            assert!(std::error::Error::source(&error).unwrap().to_string().contains("on purpose"));
            assert!(begun.load(Ordering::SeqCst) < 1000, "no new work starts");
        }
    }

    #[test]
    fn an_empty_list_runs_nothing() {
        share_out("test", 0, vec![1], |_| Ok(())).unwrap();
        share_out("test", 3, Vec::<u8>::new(), |_| Err(Error::new(ErrorKind::Internal, "test", "no")))
            .unwrap();
    }
}
