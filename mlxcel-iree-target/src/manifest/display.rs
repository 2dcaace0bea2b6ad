//! A manifest as text.

use std::fmt;

use super::{AdapterRoom, Manifest};

impl fmt::Display for Manifest {
    /// The bundle's contents, in some lines.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let model = &self.model;
        writeln!(
            f,
            "{} of {} parameters, {} precision, {}context {}, sequences {}{}{}{}",
            model.model_type,
            model.parameters,
            self.precision,
            self.kv_cache.iter().map(|kv_cache| format!("KV cache {kv_cache}, ")).collect::<String>(),
            self.capacity,
            self.sequences,
            if self.every_position { ", every position" } else { "" },
            if self.verification { ", verification" } else { "" },
            if self.hidden_states { ", hidden states" } else { "" }
        )?;
        if let Some(AdapterRoom { slots, rank, included, .. }) = &self.adapters {
            let names =
                if included.is_empty() { String::new() } else { format!(": {}", included.join(", ")) };
            writeln!(f, "room for {slots} adapters of rank {rank}{names}")?;
        }
        for target in &self.targets {
            let bytes: u64 = target.programs.iter().map(|program| program.bytes).sum();
            let (count, panels) = (target.programs.len(), target.weight_layouts.len());
            let layouts = match panels {
                0 => "weights as stored".to_owned(),
                _ => {
                    let residents = self.adapters.as_ref().map_or(0, |room| room.residents.len());
                    format!("{panels} of {} weights in panels", self.weights.len() + residents)
                }
            };
            let from = if target.laid_out.is_some() { ", where they are mapped from" } else { "" };
            writeln!(f, "{}: {count} programs, {bytes} bytes, {layouts}{from}", target.target)?;
        }
        let weights = if self.weights_included { "weights included" } else { "without weights" };
        let bytes: u64 = self.files.iter().map(|file| file.bytes).sum();
        write!(f, "{} files of the checkpoint, {bytes} bytes, {weights}", self.files.len())
    }
}
