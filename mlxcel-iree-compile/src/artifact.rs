//! Compiled programs, from the cache or the compiler.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use mlxcel_core::{CancelToken, Result};
use mlxcel_graph::ProgramWriter;
use mlxcel_iree_target::ResolvedTarget;

use crate::cache::{Cache, Key, Label, ProgramSum};
use crate::compiler::{CompileOptions, Compiler, Identity};
use crate::trial::TrialWeights;

/// A compiled program, and how it was obtained.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Artifact {
    /// The bytes that the runtime loads.
    pub bytes: Vec<u8>,
    /// Whether it was compiled now and not cached.
    pub compiled: bool,
    /// The time it took, including waiting for another process that compiled it.
    pub elapsed: Duration,
}

/// The source of compiled programs: a compiler and a cache.
#[derive(Clone, Debug)]
pub struct Artifacts {
    compiler: Option<PathBuf>,
    cache: Cache,
    /// Held while the compiler is identified, which several threads that start together need once.
    identifying: Arc<Mutex<()>>,
}

impl Artifacts {
    /// Uses the compiler at `compiler`, or the one that [`Compiler::locate`] finds, and the cache `cache`.
    pub fn new(compiler: Option<PathBuf>, cache: Cache) -> Self {
        Self { compiler, cache, identifying: Arc::default() }
    }

    /// `target` with the schedule that was measured for it over the matrices of the model that `writer`
    /// writes programs of, if one was measured and none is set.
    pub(crate) fn scheduled(&self, target: ResolvedTarget, writer: &ProgramWriter) -> ResolvedTarget {
        if target.schedule().is_some() {
            return target;
        }
        let measured = TrialWeights::of(writer).and_then(|weights| self.cache.schedule(&target, &weights));
        match measured {
            Some(schedule) => {
                tracing::debug!(%target, %schedule, "programs follow a measured schedule");
                target.with_schedule(schedule)
            }
            None => target,
        }
    }

    /// Returns the compiled program of an MLIR text: from the cache without starting the compiler, or else
    /// compiled and stored. If several threads or processes request the same program, one of them
    /// compiles it.
    ///
    /// Without a compiler on this machine, a cached program by any compiler of the runtime's release is
    /// accepted.
    ///
    /// # Errors
    /// The errors of [`Compiler::locate`], [`Compiler::revision`] and [`Compiler::compile`], and a cache
    /// folder that was named and is full or cannot be written.
    pub fn get(
        &self,
        program: &str,
        options: &CompileOptions,
        cancel: Option<&CancelToken>,
    ) -> Result<Artifact> {
        let started = Instant::now();
        let done = |bytes, compiled| Artifact { bytes, compiled, elapsed: started.elapsed() };
        let sum = ProgramSum::new(program, options);
        let Some(compiler) = Compiler::locate_if_any(self.compiler.as_deref())? else {
            return match self.cache.read_any(&sum) {
                Ok(Some(found)) => Ok(done(found, false)),
                Ok(None) => Err(Compiler::not_found()),
                Err(error) => Err(Compiler::not_found().with_context("cache", error)),
            };
        };
        if let Some(known) = self.cache.known_identity(&compiler)
            && compiler.expect_release(&known.revision).is_ok()
            && let Some(found) = self.cache.read(&Key::new(sum, &known))
        {
            return Ok(done(found, false));
        }
        // A recorded identity may be outdated if the path is a script that starts another compiler: the
        // compiler itself is asked.
        let identity = self.identify(&compiler, cancel)?;
        let key = Key::new(sum, &identity);
        if let Some(found) = self.cache.read(&key) {
            return Ok(done(found, false));
        }
        let reservation = self.cache.reserve(&key, cancel)?;
        if let Some(found) = reservation.as_ref().and_then(|reservation| reservation.made_meanwhile()) {
            return Ok(done(found, false));
        }
        let span = tracing::info_span!("compile", program = ?options.label, target = %options.target, revision = %identity.revision);
        let bytes = span.in_scope(|| compiler.compile(program, options, cancel))?;
        tracing::debug!(parent: &span, bytes = bytes.len(), elapsed = ?started.elapsed(), "compiled a program");
        if let Some(reservation) = reservation {
            let label = Label {
                program: options.label.clone(),
                target: options.target.to_string(),
                compiler: identity.revision.to_string(),
            };
            reservation.store(&label, &bytes)?;
        }
        Ok(done(bytes, true))
    }

    /// Asks the compiler what it is, and looks at its files unless they were looked at before.
    fn identify(&self, compiler: &Compiler, cancel: Option<&CancelToken>) -> Result<Identity> {
        let revision = compiler.revision(cancel)?;
        let _identifying = self.identifying.lock().unwrap_or_else(PoisonError::into_inner);
        let known = self.cache.known_identity(compiler);
        let checksum = match &known {
            Some(known) => known.checksum,
            None => compiler.checksum(cancel)?,
        };
        let identity = Identity { revision, checksum };
        if known.as_ref() != Some(&identity) {
            self.cache.note_identity(compiler, &identity);
        }
        Ok(identity)
    }
}
