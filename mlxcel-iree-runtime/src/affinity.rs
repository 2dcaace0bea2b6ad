//! Thread affinity of local devices.

use std::fmt;
use std::str::FromStr;

use mlxcel_core::{Error, ErrorKind, Result};

const OPERATION: &str = "place threads";

/// The CPU affinity of the worker threads of the device `local-task`.
///
/// Parses from text: `system`, `pinned`, or a CPU list such as `0,2,4-7`.
///
/// ```
/// use mlxcel_iree_runtime::Affinity;
///
/// assert_eq!("0,2,4-7".parse::<Affinity>()?, Affinity::Cores(vec![0, 2, 4, 5, 6, 7]));
/// # Ok::<(), mlxcel_core::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Affinity {
    /// Scheduled freely by the system (the default). Best for machines with other load, since a pinned thread
    /// cannot leave a busy CPU.
    #[default]
    System,
    /// One thread per physical core, of those that the calling thread may use. Best for dedicated machines
    /// and containers with dedicated cores.
    Pinned,
    /// One thread on each of these CPUs, by the system's CPU numbers.
    Cores(Vec<usize>),
}

impl Affinity {
    /// The CPU of each worker, where they are not the system's choice; `threads` is the requested number.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] for CPUs that the calling thread may not use, CPUs that are named twice,
    /// and another number of threads than CPUs; [`ErrorKind::Unsupported`] if the system does not place
    /// threads.
    pub(crate) fn cpus(&self, threads: Option<usize>) -> Result<Option<Vec<usize>>> {
        match self {
            Self::System => Ok(None),
            Self::Pinned => pinned(&allowed_cpus()?, threads, siblings).map(Some),
            Self::Cores(cpus) => chosen(cpus, &allowed_cpus()?, threads).map(Some),
        }
    }
}

/// As many CPUs of different physical cores as there are `threads`, or one of each core.
fn pinned(
    allowed: &[usize],
    threads: Option<usize>,
    siblings: impl Fn(usize) -> Vec<usize>,
) -> Result<Vec<usize>> {
    let mut taken = Vec::new();
    let mut cores = Vec::new();
    for &cpu in allowed {
        if !taken.contains(&cpu) {
            cores.push(cpu);
            taken.extend(siblings(cpu));
        }
    }
    let threads = threads.unwrap_or_else(|| cores.len().min(MOST));
    if threads > cores.len() {
        let message = "there are fewer physical cores than threads to pin to them";
        return Err(Error::new(ErrorKind::InvalidInput, OPERATION, message)
            .with_context("threads", threads)
            .with_context("cores", cores.len()));
    }
    cores.truncate(threads);
    Ok(cores)
}

fn chosen(cpus: &[usize], allowed: &[usize], threads: Option<usize>) -> Result<Vec<usize>> {
    let invalid = |message| {
        Error::new(ErrorKind::InvalidInput, OPERATION, message).with_context("affinity", List(cpus))
    };
    if cpus.is_empty() {
        return Err(invalid("name at least one CPU"));
    }
    let refused: Vec<usize> = cpus.iter().copied().filter(|cpu| !allowed.contains(cpu)).collect();
    if !refused.is_empty() {
        return Err(invalid("the process may not use these CPUs")
            .with_context("cpus", List(&refused))
            .with_context("allowed", List(allowed)));
    }
    if let Some(twice) = (1..cpus.len()).find_map(|at| cpus[..at].contains(&cpus[at]).then_some(cpus[at])) {
        return Err(invalid("a CPU is listed twice").with_context("cpu", twice));
    }
    match threads {
        Some(threads) if threads != cpus.len() => {
            Err(invalid("the number of threads differs from the number of CPUs listed")
                .with_context("threads", threads))
        }
        _ => Ok(cpus.to_vec()),
    }
}

/// The CPUs that the calling thread may run on.
#[cfg(target_os = "linux")]
pub(crate) fn allowed_cpus() -> Result<Vec<usize>> {
    use rustix::thread::{CpuSet, sched_getaffinity};

    let set = sched_getaffinity(None).map_err(|source| {
        Error::new(ErrorKind::Unsupported, OPERATION, "the system does not list its CPUs")
            .with_source(std::io::Error::from(source))
    })?;
    Ok((0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect())
}

#[cfg(not(target_os = "linux"))]
fn allowed_cpus() -> Result<Vec<usize>> {
    Err(Error::unsupported(OPERATION, "pinning threads is supported on Linux only"))
}

/// The CPUs of the physical core that `cpu` belongs to; itself where the system does not tell.
#[allow(clippy::disallowed_methods, reason = "the kernel's own file")]
fn siblings(cpu: usize) -> Vec<usize> {
    let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
    let list = std::fs::read_to_string(path).ok().and_then(|text| parse_list(text.trim()));
    list.unwrap_or_else(|| vec![cpu])
}

/// The most CPUs that a list may name: as many as a device has threads.
const MOST: usize = 256;

/// The numbers of a list such as `0,2,4-7`.
fn parse_list(text: &str) -> Option<Vec<usize>> {
    let mut numbers = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        if first > last || last - first >= MOST || numbers.len() >= MOST {
            return None;
        }
        numbers.extend(first..=last);
    }
    Some(numbers)
}

impl FromStr for Affinity {
    type Err = Error;

    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] for any other text than the type's documentation says.
    fn from_str(text: &str) -> Result<Self> {
        match text {
            "system" => Ok(Self::System),
            "pinned" => Ok(Self::Pinned),
            _ => parse_list(text).map(Self::Cores).ok_or_else(|| {
                let message = "give `system`, `pinned`, or CPUs such as `0,2,4-7`";
                Error::new(ErrorKind::InvalidInput, OPERATION, message).with_context("affinity", text)
            }),
        }
    }
}

impl fmt::Display for Affinity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::System => f.write_str("system"),
            Self::Pinned => f.write_str("pinned"),
            Self::Cores(cpus) => List(cpus).fmt(f),
        }
    }
}

/// Numbers with commas between them, runs of them as such: `0,2,4-7`.
struct List<'a>(&'a [usize]);

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, run) in self.0.chunk_by(|a, b| a + 1 == *b).enumerate() {
            let comma = if index == 0 { "" } else { "," };
            match run {
                [one] => write!(f, "{comma}{one}")?,
                [first, .., last] => write!(f, "{comma}{first}-{last}")?,
                [] => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn affinity_round_trips_through_text() {
        for (text, affinity) in [
            ("system", Affinity::System),
            ("pinned", Affinity::Pinned),
            ("3", Affinity::Cores(vec![3])),
            ("0,2,4-7", Affinity::Cores(vec![0, 2, 4, 5, 6, 7])),
        ] {
            assert_eq!(text.parse::<Affinity>().unwrap(), affinity);
            assert_eq!(affinity.to_string(), text);
        }
        for text in ["", "a", "1,", "3-1", "0-99999999999", "-1", "0-18446744073709551615"] {
            let error = text.parse::<Affinity>().unwrap_err();
            assert_eq!((error.kind(), error.context("affinity")), (ErrorKind::InvalidInput, Some(text)));
        }
    }

    #[test]
    fn each_physical_core_gets_one_thread() {
        let pairs = |cpu: usize| vec![cpu % 4, cpu % 4 + 4];
        assert_eq!(pinned(&[0, 1, 2, 3, 4, 5, 6, 7], None, pairs).unwrap(), [0, 1, 2, 3]);
        assert_eq!(pinned(&[1, 5, 6], None, pairs).unwrap(), [1, 6]);
        assert_eq!(pinned(&[0, 1, 2], Some(2), pairs).unwrap(), [0, 1]);
        let error = pinned(&[0, 4], Some(2), pairs).unwrap_err();
        assert_eq!((error.context("threads"), error.context("cores")), (Some("2"), Some("1")));
    }

    #[test]
    fn unusable_cpus_are_rejected_by_name() {
        let error = chosen(&[0, 3, 4, 5], &[0, 1, 2], None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert_eq!((error.context("cpus"), error.context("allowed")), (Some("3-5"), Some("0-2")));
        assert_eq!(chosen(&[2, 0, 2], &[0, 1, 2], None).unwrap_err().context("cpu"), Some("2"));
        assert_eq!(chosen(&[0, 1], &[0, 1], Some(3)).unwrap_err().context("threads"), Some("3"));
        assert_eq!(chosen(&[], &[0], None).unwrap_err().kind(), ErrorKind::InvalidInput);
        assert_eq!(chosen(&[1, 0], &[0, 1], Some(2)).unwrap(), [1, 0]);
    }

    /// In a process of its own, which was given one CPU. A runtime of a distribution is not corrected.
    #[cfg(all(target_os = "linux", not(feature = "dist")))]
    #[test]
    fn workers_keep_to_the_cpus_of_the_process() {
        use std::process::{Command, Stdio};
        use std::time::Duration;

        use rustix::thread::{CpuSet, sched_setaffinity};

        if std::env::var_os("MLXCEL_TEST_ONE_CPU").is_none() {
            let mut test = Command::new(std::env::current_exe().unwrap());
            test.args(["--exact", "affinity::tests::workers_keep_to_the_cpus_of_the_process"]);
            let ended = test.env("MLXCEL_TEST_ONE_CPU", "1").stdout(Stdio::null()).status();
            assert!(ended.unwrap().success());
            return;
        }
        let (cpu, mut one) = (allowed_cpus().unwrap()[0], CpuSet::new());
        one.set(cpu);
        sched_setaffinity(None, &one).unwrap();
        let options = crate::DeviceOptions { threads: Some(2), ..Default::default() };
        let _device = crate::Device::open(&options).unwrap();
        // Workers ask for their place once they run.
        for _ in 0..50 {
            std::thread::sleep(Duration::from_millis(10));
            for task in std::fs::read_dir("/proc/self/task").unwrap() {
                let status = std::fs::read_to_string(task.unwrap().path().join("status")).unwrap();
                if !status.starts_with("Name:\tiree-worker") {
                    continue;
                }
                let line = status.lines().find(|line| line.starts_with("Cpus_allowed_list:")).unwrap();
                assert_eq!(line.split_once(':').unwrap().1.trim(), cpu.to_string(), "{status}");
            }
        }
    }
}
