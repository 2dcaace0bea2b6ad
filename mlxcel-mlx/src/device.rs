//! The library as a whole: its release, devices and memory.

use std::fs;
use std::sync::OnceLock;

use mlxcel_core::{Error, ErrorKind, Result};

use crate::ffi::{self, sys};

/// Where arrays are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Device {
    /// The host's processor.
    Cpu,
    /// Metal's or CUDA's device.
    Gpu,
}

impl Device {
    fn is_gpu(self) -> bool {
        self == Self::Gpu
    }

    /// The device that MLX computes on unless told otherwise: the GPU where it was built for one and there is one.
    pub(crate) fn best() -> Result<Self> {
        Ok(if Self::Gpu.count()? > 0 { Self::Gpu } else { Self::Cpu })
    }

    /// How many there are of the kind.
    pub(crate) fn count(self) -> Result<usize> {
        initialize()?;
        let count = ffi::check(sys::device_count(self.is_gpu()), "count devices")?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    /// Makes it the device of what this thread computes from here on.
    pub(crate) fn select(self) -> Result<()> {
        initialize()?;
        ffi::check(sys::use_device(self.is_gpu()), "select a device")
    }
}

/// Readies MLX, once for the process: from here on a failed allocation is an error, and no child process is started.
pub(crate) fn initialize() -> Result<()> {
    static READY: OnceLock<Result<()>> = OnceLock::new();
    READY
        .get_or_init(|| {
            expect_release(&ffi::check(sys::library_version(), OPERATION)?)?;
            ffi::check(sys::initialize(machine_memory()), OPERATION)
        })
        .clone()
}

const OPERATION: &str = "initialize MLX";

/// The bridge holds to one release's classes: those of the headers it was compiled with. A loader may have found
/// another (`MLXCEL_MLX_LINK=soname`, or a package that was changed since).
fn expect_release(loaded: &str) -> Result<()> {
    if loaded == RELEASE {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Toolchain,
        OPERATION,
        "the libmlx that was loaded is another release than the one needed",
    )
    .with_context("loaded", loaded)
    .with_context("needed", RELEASE))
}

/// The release of MLX that the build script insists on.
const RELEASE: &str = "0.32.4";

/// The memory that this process may use as far as the system says: beyond it there is no error, there is a killed
/// process.
fn machine_memory() -> usize {
    let read = |path| fs::read_to_string(path).ok();
    let limits = [
        read("/proc/meminfo").as_deref().and_then(total_memory),
        // What a container may use: control groups of version 2 and of version 1.
        read("/sys/fs/cgroup/memory.max").as_deref().and_then(group_limit),
        read("/sys/fs/cgroup/memory/memory.limit_in_bytes").as_deref().and_then(group_limit),
    ];
    limits.into_iter().flatten().min().unwrap_or(usize::MAX)
}

/// The machine's memory and swap in the text of `/proc/meminfo`.
fn total_memory(text: &str) -> Option<usize> {
    let kilobytes = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.strip_prefix(':')?.trim().strip_suffix("kB")?.trim().parse::<usize>().ok()
    };
    kilobytes("MemTotal")?.checked_add(kilobytes("SwapTotal").unwrap_or(0))?.checked_mul(1024)
}

/// The limit in the text of a control group's file; none where it says `max`.
fn group_limit(text: &str) -> Option<usize> {
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_release_of_the_library_is_refused() {
        initialize().unwrap();
        let error = expect_release("0.32.3").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Toolchain);
        assert_eq!((error.context("loaded"), error.context("needed")), (Some("0.32.3"), Some("0.32.4")));
    }

    #[test]
    fn limits_are_read_as_the_system_writes_them() {
        let text = "MemTotal:       24688324 kB\nMemFree:         5 kB\nSwapTotal:       1024 kB\n";
        assert_eq!(total_memory(text), Some((24_688_324 + 1024) * 1024));
        assert_eq!(total_memory("MemTotal:       8 kB\n"), Some(8192));
        assert_eq!(total_memory("MemFree: 8 kB"), None);
        assert_eq!((group_limit("max\n"), group_limit("1048576\n")), (None, Some(1 << 20)));
        assert!(machine_memory() > 1 << 20);
    }
}
