//! An inter-process lock for one compiled program.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use mlxcel_core::{CancelToken, Control, Result};

/// How long to wait for another process that makes the same artifact; a process that dies lets go at once,
/// one that is stopped does not.
const PATIENCE: Duration = Duration::from_secs(600);

/// The delay before a message says that another process is awaited: most programs are compiled by then.
const TELL: Duration = Duration::from_secs(30);

/// A lock file. The lock belongs to the open file and ends with it, also when the process dies.
pub(super) struct Lock {
    file: File,
    path: PathBuf,
}

impl Lock {
    /// Opens the lock file, without locking it.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.create(true).truncate(false).write(true);
        #[cfg(unix)]
        {
            use std::os::unix::fs::OpenOptionsExt;
            // A pipe in its place is not waited for.
            options.custom_flags(rustix::fs::OFlags::NONBLOCK.bits().cast_signed());
        }
        let file = options.open(path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the lock is not a regular file"));
        }
        Ok(Self { file, path: path.to_owned() })
    }

    /// Waits for the lock. Where locks do not work, or the holder does not release it, the work continues
    /// without: then it is done twice, and the second result replaces the first.
    pub(super) fn wait(&self, cancel: Option<&CancelToken>) -> Result<()> {
        let control = cancel.map(Control::cancelled_by).unwrap_or_default();
        let started = Instant::now();
        let mut pause = Duration::from_millis(1);
        let mut told = false;
        loop {
            match fs4::FileExt::try_lock(&self.file) {
                Ok(()) => return Ok(()),
                Err(fs4::TryLockError::WouldBlock) => {}
                Err(fs4::TryLockError::Error(error)) => {
                    tracing::debug!(lock = %self.path.display(), %error, "this file system does not support locks");
                    return Ok(());
                }
            }
            control.check("wait for a program to be compiled")?;
            if !told && started.elapsed() > TELL {
                told = true;
                tracing::warn!(lock = %self.path.display(), "another process is compiling this program: waiting for it");
            }
            if started.elapsed() > PATIENCE {
                tracing::warn!(lock = %self.path.display(), "another process has been compiling this program for too long");
                return Ok(());
            }
            thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(50));
        }
    }

    /// Whether it is free; where locks do not work, it always is.
    pub(super) fn is_free(&self) -> bool {
        !matches!(fs4::FileExt::try_lock(&self.file), Err(fs4::TryLockError::WouldBlock))
    }

    /// Removes the lock file, once the artifact is there: who still waits for this one finds the artifact,
    /// and so does who makes a new one.
    pub(super) fn remove(self) {
        let _ = fs::remove_file(&self.path);
    }
}
