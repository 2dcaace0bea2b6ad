//! The engine's thread.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use mlxcel_core::{Error, ErrorKind, Result};

use super::guard::{EngineId, contained};
use super::queue::Queue;
use super::scheduler::{Scheduler, Turn};
use crate::sync::thread::{self, JoinHandle};

/// How often requests that wait are looked at where nothing wakes the thread: cancel tokens and clocks ring
/// no bell.
const LOOK: Duration = Duration::from_millis(20);

/// Starts the thread that drives `scheduler` until `queue` is closed and no request is left.
pub(super) fn start(scheduler: Scheduler, queue: &Arc<Queue>) -> Result<JoinHandle<()>> {
    let queue = Arc::clone(queue);
    thread::Builder::new().name("mlxcel-engine".to_owned()).spawn(move || run(scheduler, &queue)).map_err(
        |error| {
            Error::new(ErrorKind::ResourceExhausted, "start engine", "the system cannot start another thread")
                .with_source(error)
        },
    )
}

fn run(mut scheduler: Scheduler, queue: &Queue) {
    EngineId::enter(Some(EngineId::of(&queue.bell)));
    let panicked = catch_unwind(AssertUnwindSafe(|| drive(&mut scheduler, queue))).is_err();
    if panicked {
        tracing::error!("the engine's thread panicked");
        queue.fail();
    }
    // This drops the ends of all channels, so every reader gets an error. The session that panicked may do so
    // again, and so may code of the requests: each is dropped by itself, since two panics at once end the
    // process.
    scheduler.requests().for_each(|entry| contained(|| drop(entry)));
    contained(|| drop(scheduler));
    queue.end();
}

fn drive(scheduler: &mut Scheduler, queue: &Queue) {
    loop {
        let (arrived, displaced) = queue.take();
        arrived.into_iter().for_each(|entry| scheduler.wait(entry));
        displaced.into_iter().for_each(|client| scheduler.displace(client, queue.full()));
        let turn = scheduler.turn(queue.take_jobs());
        if queue.stop.is_cancelled() {
            queue.take().0.into_iter().for_each(|entry| scheduler.wait(entry));
            scheduler.jobs.extend(queue.take_jobs());
            scheduler.cancel_all();
        }
        queue.publish(scheduler.unbegun(), scheduler.free(), &scheduler.stats);
        scheduler.deliver();
        match turn {
            Turn::Step => {}
            Turn::Waiting => queue.bell.wait(LOOK),
            Turn::Empty if queue.is_closed_and_empty() => return,
            Turn::Empty => queue.bell.wait(Duration::MAX),
        }
    }
}
