//! The machine of the measurements.

use std::fs;

use serde::{Deserialize, Serialize};

/// A machine and the programs that were measured.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Machine {
    /// The processor's name.
    pub(crate) processor: String,
    /// Vector instructions that affect the results.
    pub(crate) instructions: Vec<String>,
    pub(crate) cores: usize,
    pub(crate) memory_gigabytes: u64,
    pub(crate) system: String,
}

impl Machine {
    pub(crate) fn of_this_process() -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let kilobytes =
            field(&meminfo, "MemTotal").and_then(|text| text.split(' ').next()?.parse::<u64>().ok());
        let flags = flags(&cpuinfo);
        let known = ["avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16"];
        Self {
            processor: field(&cpuinfo, "model name").unwrap_or("unknown").to_owned(),
            instructions: known.into_iter().filter(|name| flags.contains(name)).map(str::to_owned).collect(),
            cores: std::thread::available_parallelism().map_or(1, Into::into),
            memory_gigabytes: kilobytes.unwrap_or(0) / (1 << 20),
            system: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
        }
    }
}

/// Whether Linux reports this feature of the processor.
pub(crate) fn has(flag: &str) -> bool {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    flags(&cpuinfo).contains(&flag)
}

/// The features of the processor.
fn flags(cpuinfo: &str) -> Vec<&str> {
    field(cpuinfo, "flags").unwrap_or_default().split(' ').collect()
}

/// The value of the first line `name : value`.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_field_of_a_name_is_found() {
        let text = "processor\t: 0\nmodel name\t: A: B\nmodel name\t: C\nMemTotal:       24 kB\n";
        assert_eq!(field(text, "model name"), Some("A: B"));
        assert_eq!(field(text, "MemTotal"), Some("24 kB"));
        assert_eq!(field(text, "flags"), None);
    }
}
