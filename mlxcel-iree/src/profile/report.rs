//! Profiles, as data and as a table.

use std::fmt;
use std::time::Duration;

use serde::{Serialize, Serializer};

/// How many dispatches a printed table lists.
const LISTED: usize = 24;

/// A profile of several passes.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Profile {
    /// Each program that ran.
    pub programs: Vec<ProgramProfile>,
    /// Dispatches that are missing, because a pass had more than the runtime records (4,096).
    pub lost: u64,
}

mlxcel_core::named! {
    /// The kind of rows in a pass.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
    #[serde(rename_all = "lowercase")]
    #[non_exhaustive]
    pub enum Phase {
        /// A chunk of a prompt.
        Prefill = "prefill",
        /// One token of each sequence.
        Decode = "decode",
        /// A chunk of a prompt, and tokens of other sequences.
        Mixed = "mixed",
    }
}

impl Phase {
    pub(super) fn of(rows: &[usize]) -> Self {
        match (rows.iter().any(|&tokens| tokens > 1), rows.contains(&1)) {
            (true, false) => Self::Prefill,
            (true, true) => Self::Mixed,
            (false, _) => Self::Decode,
        }
    }
}

/// The passes of one program. Durations are sums over all of them; as JSON they are seconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ProgramProfile {
    /// The program, such as `1@256`: one decoding row over 256 positions.
    pub program: String,
    /// The kind of its rows.
    pub phase: Phase,
    /// Tokens per pass, including padding.
    pub tokens: usize,
    /// The number of threads.
    pub threads: usize,
    /// The number of passes.
    pub passes: u64,
    /// Wall time, from uploading inputs to reading results.
    #[serde(serialize_with = "seconds")]
    pub wall: Duration,
    /// Time with at least one dispatch running. The difference to `wall` is runtime overhead: launching
    /// dispatches, allocation, transfers.
    #[serde(serialize_with = "seconds")]
    pub time: Duration,
    /// Compute time summed over threads. The difference to `time * threads` is idle time.
    #[serde(serialize_with = "seconds")]
    pub busy: Duration,
    /// The dispatches, one entry per kernel, longest total time first.
    pub dispatches: Vec<DispatchProfile>,
}

/// The dispatches of one kernel in all passes of a program.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct DispatchProfile {
    /// The kernel's name.
    pub name: String,
    /// Workgroups per dispatch, which is the maximum number of threads it can use.
    pub workgroups: u64,
    /// The number of dispatches in all passes.
    pub calls: u64,
    /// Total run time; the time of concurrent dispatches is divided equally among them.
    #[serde(serialize_with = "seconds")]
    pub time: Duration,
    /// Compute time summed over threads.
    #[serde(serialize_with = "seconds")]
    pub busy: Duration,
}

fn seconds<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(duration.as_secs_f64())
}

/// `part` of `whole`, in per cent.
fn percent(part: Duration, whole: Duration) -> f64 {
    if whole.is_zero() { 0.0 } else { 100.0 * part.as_secs_f64() / whole.as_secs_f64() }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, program) in self.programs.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            write!(f, "{program}")?;
        }
        if self.lost > 0 {
            writeln!(f, "{} dispatches were not counted", self.lost)?;
        }
        Ok(())
    }
}

impl fmt::Display for ProgramProfile {
    /// A table of a mean pass: for each kernel its share of the wall clock, milliseconds and calls a pass,
    /// microseconds a call, how busy the threads were, workgroups, its name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let passes = self.passes.max(1) as f64;
        let milliseconds = |duration: Duration| 1e3 * duration.as_secs_f64() / passes;
        let threads = u32::try_from(self.threads).unwrap_or(u32::MAX);
        let calls: u64 = self.dispatches.iter().map(|dispatch| dispatch.calls).sum();
        writeln!(
            f,
            "{} {}: {} passes of {:.3} ms on {threads} threads, {} dispatches each",
            self.phase,
            self.program,
            self.passes,
            milliseconds(self.wall),
            calls / self.passes.max(1),
        )?;
        writeln!(
            f,
            "{:>7} {:>9} {:>6} {:>9} {:>5} {:>6}  kernel",
            "share", "ms", "calls", "us/call", "busy", "groups"
        )?;
        let mut line = |time: Duration, counted: Option<(u64, Duration)>, groups: Option<u64>, name: &str| {
            let counted = counted.map(|(calls, busy)| {
                [
                    format!("{:.0}", calls as f64 / passes),
                    format!("{:.1}", 1e6 * time.as_secs_f64() / calls.max(1) as f64),
                    format!("{:.0}%", percent(busy, time * threads)),
                ]
            });
            let [calls, each, busy] = counted.unwrap_or_default();
            let (share, groups) = (percent(time, self.wall), groups.map(|groups| groups.to_string()));
            writeln!(
                f,
                "{share:>6.1}% {:>9.4} {calls:>6} {each:>9} {busy:>5} {:>6}  {name}",
                milliseconds(time),
                groups.unwrap_or_default(),
            )
        };
        for dispatch in self.dispatches.iter().take(LISTED) {
            let DispatchProfile { name, workgroups, calls, time, busy } = dispatch;
            line(*time, Some((*calls, *busy)), Some(*workgroups), name)?;
        }
        if let Some(others) = self.dispatches.get(LISTED..).filter(|others| !others.is_empty()) {
            let sum = |of: fn(&DispatchProfile) -> Duration| others.iter().map(of).sum();
            let counted = (others.iter().map(|one| one.calls).sum(), sum(|one| one.busy));
            line(sum(|one| one.time), Some(counted), None, &format!("{} more kernels", others.len()))?;
        }
        let rest = self.wall.saturating_sub(self.time);
        line(rest, None, None, "between dispatches, and outside of the device")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_phase_is_that_of_the_rows() {
        let phases = [&[64][..], &[1], &[1, 1], &[64, 1], &[16, 64]].map(Phase::of);
        assert_eq!(phases, [Phase::Prefill, Phase::Decode, Phase::Decode, Phase::Mixed, Phase::Prefill]);
    }

    #[test]
    fn the_table_shows_the_mean_pass() {
        let dispatch = |name: &str, micros| DispatchProfile {
            name: name.to_owned(),
            workgroups: 8,
            calls: 20,
            time: Duration::from_micros(micros),
            busy: Duration::from_micros(micros),
        };
        let profile = Profile {
            programs: vec![ProgramProfile {
                program: "1@256".to_owned(),
                phase: Phase::Decode,
                tokens: 1,
                threads: 2,
                passes: 10,
                wall: Duration::from_millis(10),
                time: Duration::from_millis(8),
                busy: Duration::from_millis(8),
                dispatches: vec![dispatch("long", 6000), dispatch("short", 2000)],
            }],
            lost: 3,
        };
        let text = profile.to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "decode 1@256: 10 passes of 1.000 ms on 2 threads, 4 dispatches each");
        assert_eq!(lines[2], "  60.0%    0.6000      2     300.0   50%      8  long");
        assert_eq!(
            lines[4],
            "  20.0%    0.2000                                between dispatches, and outside of the device"
        );
        assert_eq!(lines[5], "3 dispatches were not counted");
        assert!(serde_json::to_string(&profile).unwrap().contains(r#""phase":"decode","tokens":1"#));
        assert_eq!(Profile::default().to_string(), "");
    }
}
