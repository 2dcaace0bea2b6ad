//! From a program to an artifact: out of the cache, or through the compiler and into it.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use mlxcel_core::{CancelToken, Result};

use crate::cache::{Cache, Key, ProgramSum};
use crate::compiler::{CompileOptions, Compiler, Revision};

/// A compiled program, and what it took to get it.
#[derive(Clone, Debug)]
pub(crate) struct Artifact {
    /// What [`crate::ffi::Program::load`] takes.
    pub(crate) bytes: Vec<u8>,
    /// Whether the compiler ran for it.
    pub(crate) compiled: bool,
    /// How long it took, waiting for another process that compiled it included.
    pub(crate) elapsed: Duration,
}

/// Where artifacts come from.
#[derive(Clone, Debug)]
pub(crate) struct Artifacts {
    compiler: Option<PathBuf>,
    cache: Cache,
}

impl Artifacts {
    /// Artifacts made by the compiler at `compiler`, or the one that [`Compiler::locate`] finds, and kept in `cache`.
    pub(crate) fn new(compiler: Option<PathBuf>, cache: Cache) -> Self {
        Self { compiler, cache }
    }

    /// The artifact of a program in MLIR text: from the cache if it is there, without starting the compiler; else
    /// compiled and stored. Of several that want the same at once, in threads or processes, one compiles.
    ///
    /// Where no compiler is installed, an artifact that any compiler of the runtime's release made will do.
    ///
    /// # Errors
    /// Those of [`Compiler::locate`], [`Compiler::revision`] and [`Compiler::compile`], and a cache folder that was
    /// named and cannot be written.
    pub(crate) fn get(
        &self,
        program: &str,
        options: &CompileOptions,
        cancel: Option<&CancelToken>,
    ) -> Result<Artifact> {
        let started = Instant::now();
        let done = |bytes, compiled| Artifact { bytes, compiled, elapsed: started.elapsed() };
        let sum = ProgramSum::new(program, options);
        let Some(compiler) = Compiler::locate_if_any(self.compiler.as_deref())? else {
            let found = self.cache.read_any(&sum).ok_or_else(Compiler::nowhere)?;
            return Ok(done(found, false));
        };
        if let Some(revision) = self.cache.known_revision(compiler.path())
            && compiler.expect_release(&revision).is_ok()
            && let Some(found) = self.cache.read(&Key::new(sum, &revision))
        {
            return Ok(done(found, false));
        }
        // A note may be out of date behind a script that starts another compiler than it did: whoever compiles is asked.
        let revision = self.ask(&compiler, cancel)?;
        let key = Key::new(sum, &revision);
        if let Some(found) = self.cache.read(&key) {
            return Ok(done(found, false));
        }
        let reservation = self.cache.reserve(&key, cancel)?;
        if let Some(found) = reservation.as_ref().and_then(|reservation| reservation.made_meanwhile()) {
            return Ok(done(found, false));
        }
        tracing::debug!(compiler = %compiler.path().display(), %revision, "compiling a program");
        let bytes = compiler.compile(program, options, cancel)?;
        tracing::debug!(bytes = bytes.len(), elapsed = ?started.elapsed(), "compiled a program");
        if let Some(reservation) = reservation {
            reservation.store(&bytes);
        }
        Ok(done(bytes, true))
    }

    fn ask(&self, compiler: &Compiler, cancel: Option<&CancelToken>) -> Result<Revision> {
        let revision = compiler.revision(cancel)?;
        self.cache.note_revision(compiler.path(), &revision);
        Ok(revision)
    }
}
