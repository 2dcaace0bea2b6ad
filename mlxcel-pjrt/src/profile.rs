//! Where the time of steps goes, and what they move between devices.
//!
//! ```no_run
//! use mlxcel_core::{Backend, LoadOptions};
//! use mlxcel_pjrt::{PjrtBackend, profile::Profiler};
//!
//! let profiler = Profiler::new();
//! let engine = PjrtBackend::new().with_mesh(2).with_profiler(&profiler);
//! let model = engine.load(&"models/llama".into(), &LoadOptions::default())?;
//! // … generate …
//! println!("{}", profiler.take());
//! # Ok::<(), mlxcel_core::Error>(())
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::{Serialize, Serializer};

use crate::collectives::{Collective, Listed};

/// Collects what the models that are loaded with it do
/// ([`PjrtBackend::with_profiler`](crate::PjrtBackend::with_profiler)); clones share what is collected.
#[derive(Clone, Debug, Default)]
pub struct Profiler(Arc<Mutex<BTreeMap<String, ProgramProfile>>>);

/// Where the time of some passes went. Prints as a table.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Profile {
    /// Each program that ran, in the order of their names, which is by their rows.
    pub programs: Vec<ProgramProfile>,
}

/// The passes of one program. Durations are sums over all of them; as JSON they are seconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ProgramProfile {
    /// The program, such as `1@256`: one decoding row over 256 positions.
    pub program: String,
    /// How many passes there were.
    pub passes: u64,
    /// How long they took, from the sending of their inputs to the reading of their results.
    #[serde(serialize_with = "seconds")]
    pub time: Duration,
    /// What a pass moves between devices; empty where the plugin does not show compiled programs.
    pub collectives: Vec<Collective>,
}

impl Profiler {
    /// Nothing collected yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// What was collected since the last call.
    pub fn take(&self) -> Profile {
        let mut programs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Profile { programs: std::mem::take(&mut *programs).into_values().collect() }
    }

    /// Records a pass of a program; its collectives are computed once.
    pub(crate) fn note(&self, program: &str, time: Duration, collectives: impl FnOnce() -> Vec<Collective>) {
        let mut programs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let profile = programs.entry(program.to_owned()).or_insert_with(|| ProgramProfile {
            program: program.to_owned(),
            collectives: collectives(),
            ..ProgramProfile::default()
        });
        profile.passes += 1;
        profile.time += time;
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for ProgramProfile { program, passes, time, collectives } in &self.programs {
            let each = 1e3 * time.as_secs_f64() / (*passes).max(1) as f64;
            writeln!(f, "program   {program}: {passes} passes of {each:.3} ms")?;
            write!(f, "          {}", Listed(collectives))?;
        }
        Ok(())
    }
}

fn seconds<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(time.as_secs_f64())
}
