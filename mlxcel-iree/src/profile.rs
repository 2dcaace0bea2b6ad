//! Profiling: where the time of a step goes, per kernel, as recorded by the runtime.
//!
//! ```no_run
//! use mlxcel_core::{Backend, GenerateExt, GenerateOptions, LoadOptions, SessionOptions};
//! use mlxcel_iree::{IreeBackend, profile::Profiler};
//!
//! let profiler = Profiler::new();
//! let model = IreeBackend::new().with_profiler(&profiler).load(&"models/llama".into(), &LoadOptions::default())?;
//! let mut session = model.open_session(&SessionOptions::default())?;
//! session.generate_greedy(&[1, 2, 3], &GenerateOptions::new(32))?;
//! for program in profiler.take().programs {
//!     println!("{program}");
//! }
//! # Ok::<(), mlxcel_core::Error>(())
//! ```
//!
//! Passes of a profiled model are serialized across its sessions. Recording costs some hundred nanoseconds
//! per dispatch and worker; without a profiler there is no overhead.

mod report;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mlxcel_graph::ProgramShape;

use mlxcel_iree_runtime::{Device, DispatchEvent, Events};
pub use report::{DispatchProfile, Phase, Profile, ProgramProfile};

/// Collects profiles of the models loaded with it
/// ([`IreeBackend::with_profiler`](crate::IreeBackend::with_profiler)); clones share the data. Use one per
/// model to keep them apart.
#[derive(Clone, Debug, Default)]
pub struct Profiler(Arc<Mutex<Collected>>);

#[derive(Debug, Default)]
struct Collected {
    programs: BTreeMap<String, ProgramProfile>,
    lost: u64,
}

impl Profiler {
    /// An empty profiler.
    pub fn new() -> Self {
        Self::default()
    }

    /// The data collected since the last call; programs are sorted by name, which begins with the number of
    /// rows.
    pub fn take(&self) -> Profile {
        let Collected { programs, lost } = std::mem::take(&mut *self.lock());
        let mut programs: Vec<_> = programs.into_values().collect();
        for program in &mut programs {
            program.dispatches.sort_by_key(|dispatch| std::cmp::Reverse(dispatch.time));
        }
        Profile { programs, lost }
    }

    /// Runs a pass and notes what `device` does meanwhile.
    pub(crate) fn pass<T, E>(
        &self,
        device: &Device,
        shape: &ProgramShape,
        run: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        // Held to the end, so that what the device reports is of this pass.
        let mut collected = self.lock();
        // What others left, such as the dispatches of a pass that failed.
        drop(events(device));
        let started = Instant::now();
        let result = run()?;
        let wall = started.elapsed();
        let events = events(device);
        collected.lost += events.lost;
        let program = collected
            .programs
            .entry(shape.to_string())
            .or_insert_with(|| ProgramProfile::new(shape, device.threads()));
        program.passes += 1;
        program.wall += wall;
        program.busy += nanoseconds(events.dispatches.iter().map(|event| event.busy).sum());
        for (event, time) in times(&events.dispatches) {
            program.time += time;
            program.add(event, time);
        }
        Ok(result)
    }

    fn lock(&self) -> MutexGuard<'_, Collected> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What `device` did since it was last asked. That this cannot be read is no failure of the pass, whose
/// results and states are right.
fn events(device: &Device) -> Events {
    device.take_events().unwrap_or_else(|error| {
        tracing::warn!(%error, "the dispatches of a pass could not be read and are missing in the profile");
        Events::default()
    })
}

impl ProgramProfile {
    fn new(shape: &ProgramShape, threads: usize) -> Self {
        Self {
            program: shape.to_string(),
            phase: Phase::of(&shape.rows),
            tokens: shape.tokens(),
            threads,
            passes: 0,
            wall: Duration::ZERO,
            time: Duration::ZERO,
            busy: Duration::ZERO,
            dispatches: Vec::new(),
        }
    }

    fn add(&mut self, event: &DispatchEvent, time: Duration) {
        let same = |one: &DispatchProfile| *one.name == *event.name && one.workgroups == event.workgroups;
        let busy = nanoseconds(event.busy);
        if let Some(dispatch) = self.dispatches.iter_mut().find(|one| same(one)) {
            dispatch.calls += 1;
            dispatch.time += time;
            dispatch.busy += busy;
            return;
        }
        let (name, workgroups) = (event.name.to_string(), event.workgroups);
        self.dispatches.push(DispatchProfile { name, workgroups, calls: 1, time, busy });
    }
}

fn nanoseconds(count: i64) -> Duration {
    Duration::from_nanos(u64::try_from(count).unwrap_or_default())
}

/// Each event with its share of the wall clock: where several run at once, each has an equal part of that
/// time.
fn times(events: &[DispatchEvent]) -> Vec<(&DispatchEvent, Duration)> {
    let mut edges: Vec<(i64, bool, usize)> = Vec::with_capacity(2 * events.len());
    for (index, event) in events.iter().enumerate() {
        edges.push((event.start, true, index));
        edges.push((event.end.max(event.start), false, index));
    }
    // At the same moment, what ends does so before what begins, except that nothing ends before it began.
    edges.sort_by_key(|&(at, begins, index)| {
        let of_no_length = events.get(index).is_some_and(|event| event.end <= event.start);
        (at, if of_no_length { 1 + u8::from(!begins) } else { 3 * u8::from(begins) })
    });
    let mut running: Vec<usize> = Vec::new();
    let mut shares = vec![0.0; events.len()];
    let mut last = 0;
    for (at, begins, index) in edges {
        let part = (at - last) as f64 / running.len().max(1) as f64;
        for &other in &running {
            if let Some(share) = shares.get_mut(other) {
                *share += part;
            }
        }
        last = at;
        if begins {
            running.push(index);
        } else {
            running.retain(|&other| other != index);
        }
    }
    events.iter().zip(shares).map(|(event, share)| (event, nanoseconds(share.round() as i64))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(spans: &[(i64, i64)]) -> Vec<u128> {
        let event = |&(start, end)| DispatchEvent {
            name: "k".into(),
            workgroups: 1,
            start,
            end,
            busy: end - start,
            command: (0, 0),
        };
        let events: Vec<_> = spans.iter().map(event).collect();
        times(&events).iter().map(|(_, time)| time.as_nanos()).collect()
    }

    #[test]
    fn overlapping_dispatches_share_their_time() {
        assert_eq!(shares(&[(0, 10), (10, 15), (20, 30)]), [10, 5, 10]);
        assert_eq!(shares(&[(0, 10), (0, 10)]), [5, 5]);
        assert_eq!(shares(&[(0, 30), (10, 20)]), [25, 5]);
        assert_eq!(shares(&[(10, 20), (0, 30), (12, 12)]), [5, 25, 0]);
        assert_eq!(shares(&[(7, 3)]), [0]);
        assert_eq!(shares(&[]), [0; 0]);
    }
}
