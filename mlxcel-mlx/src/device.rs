//! MLX's release, devices and memory.

use std::fs;
use std::path::{Component, Path};
use std::sync::OnceLock;

use mlxcel_core::{Error, ErrorKind, Result};

use crate::ffi::{self, sys};

/// The device that computes arrays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Device {
    /// The CPU.
    Cpu,
    /// The Metal or CUDA device.
    Gpu,
}

impl Device {
    fn is_gpu(self) -> bool {
        self == Self::Gpu
    }

    /// MLX's default device: the GPU, if it was built for one and one is present.
    pub(crate) fn best() -> Result<Self> {
        Ok(if Self::Gpu.count()? > 0 { Self::Gpu } else { Self::Cpu })
    }

    /// The number of devices of this kind.
    pub(crate) fn count(self) -> Result<usize> {
        initialize()?;
        let count = ffi::check(sys::device_count(self.is_gpu()), "count devices")?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    /// Makes it the device of this thread's later computations.
    pub(crate) fn select(self) -> Result<()> {
        initialize()?;
        ffi::check(sys::use_device(self.is_gpu()), "select a device")
    }
}

/// Initializes MLX, once per process: afterwards a failed allocation is an error, and no child process is
/// started.
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

/// The bridge requires the classes of one release: that of the headers it was compiled with. A loader may
/// have found another one (`MLXCEL_MLX_LINK=soname`, or a package changed since).
fn expect_release(loaded: &str) -> Result<()> {
    if loaded == RELEASE {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Toolchain, OPERATION, "the loaded libmlx has another version than required")
        .with_context("loaded", loaded)
        .with_context("needed", RELEASE))
}

/// The release of MLX that the build script requires.
const RELEASE: &str = "0.32.4";

/// The file with the limit of a control group of version 2.
const FILE_2: &str = "memory.max";
/// The file with the limit of a control group of version 1.
const FILE_1: &str = "memory.limit_in_bytes";

/// The memory that the system allows this process: exceeding it kills the process instead of returning an
/// error.
#[allow(clippy::disallowed_methods, reason = "the kernel's own file")]
fn machine_memory() -> usize {
    let machine = fs::read_to_string("/proc/meminfo").ok().as_deref().and_then(total_memory);
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    machine.into_iter().chain(group_limit(Path::new("/sys/fs/cgroup"), &groups)).min().unwrap_or(usize::MAX)
}

/// The least limit of this process's control groups, of version 2 or 1, and their ancestors; `groups` is the
/// text of `/proc/self/cgroup`. In a container, groups have the names of the host, and the root has the
/// container's limit.
#[allow(clippy::disallowed_methods, reason = "the kernel's own file")]
fn group_limit(root: &Path, groups: &str) -> Option<usize> {
    let mut files = vec![root.join(FILE_2), root.join("memory").join(FILE_1)];
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (parts.next(), parts.next()) else { continue };
        let (mount, file) = match controllers {
            "" => (root.to_owned(), FILE_2),
            _ if controllers.split(',').any(|controller| controller == "memory") => {
                (root.join("memory"), FILE_1)
            }
            _ => continue,
        };
        let names = Path::new(group).components().filter(|part| matches!(part, Component::Normal(_)));
        let mut folder = mount;
        for name in names {
            folder.push(name);
            files.push(folder.join(file));
        }
    }
    files.iter().filter_map(|file| limit(&fs::read_to_string(file).ok()?)).min()
}

/// The machine's memory and swap in the text of `/proc/meminfo`.
fn total_memory(text: &str) -> Option<usize> {
    let kilobytes = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.strip_prefix(':')?.trim().strip_suffix("kB")?.trim().parse::<usize>().ok()
    };
    kilobytes("MemTotal")?.checked_add(kilobytes("SwapTotal").unwrap_or(0))?.checked_mul(1024)
}

/// The limit in a control group's file; none for `max`.
fn limit(text: &str) -> Option<usize> {
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
    fn cgroup_limits_are_parsed() {
        let text = "MemTotal:       24688324 kB\nMemFree:         5 kB\nSwapTotal:       1024 kB\n";
        assert_eq!(total_memory(text), Some((24_688_324 + 1024) * 1024));
        assert_eq!(total_memory("MemTotal:       8 kB\n"), Some(8192));
        assert_eq!(total_memory("MemFree: 8 kB"), None);
        assert_eq!((limit("max\n"), limit("1048576\n")), (None, Some(1 << 20)));
        assert!(machine_memory() > 1 << 20);
    }

    #[test]
    fn limits_of_nested_cgroups_apply() {
        let root = tempfile::tempdir().unwrap();
        let put = |folder: &str, file: &str, text: &str| {
            fs::create_dir_all(root.path().join(folder)).unwrap();
            fs::write(root.path().join(folder).join(file), text).unwrap();
        };
        let limit = |groups| group_limit(root.path(), groups);
        assert_eq!(limit("0::/a/b/c\n"), None);
        put("a/b/c", FILE_2, "max\n");
        put("a/b", FILE_2, "3000\n");
        put("a", FILE_2, "5000\n");
        assert_eq!(limit("0::/a/b/c\n"), Some(3000), "the limit of an ancestor group");
        assert_eq!(limit("0::/a\n"), Some(5000));
        assert_eq!(limit("0::/\n"), None);
        put("memory/x/y", FILE_1, "700\n");
        assert_eq!(limit("5:cpu,cpuacct:/x/y\n4:memory:/x/y\n0::/\n"), Some(700));
        // A group outside of the container, as seen from inside.
        assert_eq!(limit("0::/../../a\nnonsense\n"), Some(5000));
        put("", FILE_2, "100\n");
        assert_eq!(limit(""), Some(100));
    }
}
