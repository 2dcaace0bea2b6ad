//! The results of the suite `pjrt`, as a table and as JSON.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::machine::Machine;
use crate::spread::Spread;

/// Rates of one contestant in tokens a second, in the order in which they were measured.
#[derive(Debug, Serialize)]
pub(crate) struct Contestant {
    /// The program and its compute type.
    pub(crate) name: String,
    /// Bytes of weights that a token reads.
    pub(crate) weight_bytes: f64,
    pub(crate) decode: Vec<f64>,
    pub(crate) prefill: Vec<f64>,
}

/// A whole run.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) model: &'static str,
    pub(crate) machine: Machine,
    pub(crate) versions: Vec<(String, String)>,
    pub(crate) threads: usize,
    /// The sequence length when decoding, and the prompt length.
    pub(crate) decode_position: usize,
    pub(crate) prefill_tokens: usize,
    /// Memory bandwidth in bytes per second, measured between the rounds.
    pub(crate) memory: Vec<f64>,
    pub(crate) contestants: Vec<Contestant>,
}

impl Report {
    /// Writes the numbers to `pjrt.json` in `folder`, and prints its path.
    pub(crate) fn write(&self, folder: &Path) -> Result<()> {
        let path = folder.join("pjrt.json");
        fs::write(&path, serde_json::to_string_pretty(self)?)
            .with_context(|| format!("writing {}", path.display()))?;
        eprintln!("\nthe numbers are in {}", path.display());
        Ok(())
    }

    pub(crate) fn table(&self) -> String {
        let mut text = String::new();
        let memory = Spread::of(&self.memory);
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "{} shapes, random weights, on {} ({} cores, {}), {} threads",
            self.model,
            self.machine.processor,
            self.machine.cores,
            self.machine.instructions.join(" "),
            self.threads
        );
        let versions: Vec<String> =
            self.versions.iter().map(|(name, version)| format!("{name} {version}")).collect();
        let _ = writeln!(text, "{}; memory reads {} GB/s", versions.join(", "), memory.scaled(1e-9));
        let _ = writeln!(text, "median (least to most), tokens a second\n");
        let _ = writeln!(
            text,
            "{:<24} {:>26} {:>8} {:>26}",
            "",
            format!("decode at {}", self.decode_position),
            "of bus",
            format!("prefill of {}", self.prefill_tokens)
        );
        for contestant in &self.contestants {
            let (decode, prefill) = (Spread::of(&contestant.decode), Spread::of(&contestant.prefill));
            let share = decode.median * contestant.weight_bytes / memory.median;
            let share = if share.is_finite() { format!("{:.0} %", 100.0 * share) } else { "-".to_owned() };
            let _ = writeln!(text, "{:<24} {decode:>26} {share:>8} {prefill:>26}", contestant.name);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_medians_and_the_share_of_the_bus() {
        let contestant = Contestant {
            name: "mlxcel pjrt bf16".to_owned(),
            weight_bytes: 1e9,
            decode: vec![9.0, 8.0, 12.0],
            prefill: Vec::new(),
        };
        let report = Report {
            model: "small",
            machine: Machine::of_this_process(),
            versions: vec![("jax".to_owned(), "1".to_owned())],
            threads: 2,
            decode_position: 128,
            prefill_tokens: 128,
            memory: vec![20e9, 22e9],
            contestants: vec![contestant],
        };
        let table = report.table();
        assert!(table.contains("9.00 (8.00 to 12.00)") && table.contains("43 %"), "{table}");
    }
}
