//! Work shared out to threads. A system that grants none makes it slower and nothing else.

use std::sync::{Mutex, PoisonError};
use std::thread;

use mlxcel_core::Result;

/// Works on `items` in their order with up to `threads` threads, this one among them, until all are done or one fails.
pub(crate) fn share_out<T: Send>(
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
            if let Err(error) = work(item) {
                // No new work starts, and the first error is reported.
                *items.lock().unwrap_or_else(PoisonError::into_inner) = None;
                failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads {
            // With threads that the system does not grant it takes longer, and that is all.
            if thread::Builder::new().name("mlxcel-load".to_owned()).spawn_scoped(scope, worker).is_err() {
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
        share_out(4, (0..1000).collect(), |item| {
            done.lock().unwrap().push(item);
            Ok(())
        })
        .unwrap();
        let mut done = done.into_inner().unwrap();
        done.sort_unstable();
        assert_eq!(done, (0..1000).collect::<Vec<_>>());

        let begun = AtomicU64::new(0);
        let failed = share_out(2, (0..1000).collect(), |item: u64| {
            begun.fetch_add(1, Ordering::SeqCst);
            if item < 3 { Ok(()) } else { Err(Error::new(ErrorKind::Io, "test", "no")) }
        });
        assert_eq!(failed.unwrap_err().kind(), ErrorKind::Io);
        assert!(begun.load(Ordering::SeqCst) <= 5);
    }

    #[test]
    fn an_empty_list_runs_nothing() {
        share_out(0, vec![1], |_| Ok(())).unwrap();
        share_out(3, Vec::<u8>::new(), |_| Err(Error::new(ErrorKind::Internal, "test", "no"))).unwrap();
    }
}
