//! How much memory a decoder takes.

use mlxcel_core::{MemoryEstimate, Result};
use mlxcel_models::Decoder;

use crate::model::GraphModelOptions;
use crate::plan::Chunks;
use crate::state::StateLayout;

impl GraphModelOptions {
    /// The memory that `decoder` takes with these options. Weights and states are exact, at the largest
    /// KV-length bucket; the scratch memory is that of [`Decoder::pass_bytes`] for the largest pass.
    ///
    /// # Errors
    ///
    /// Those of options out of range.
    pub fn memory(&self, decoder: &Decoder) -> Result<MemoryEstimate> {
        self.check()?;
        let length = self.lengths_for(decoder)?.buckets().last().copied().unwrap_or(0);
        // Recurrent states are copied before draft tokens.
        let states = |layout: &StateLayout| {
            layout.bytes(length) * (1 + usize::from(self.verification && layout.is_recurrent()))
        };
        let sequence: usize = self.layouts(decoder)?.iter().map(states).sum();
        let tokens = Chunks::new(&self.chunks).largest() + self.width() - 1;
        let scratch = decoder.pass_bytes(tokens, if self.every_position { tokens } else { self.width() });
        let caches = (sequence as u64).saturating_mul(self.sequences as u64);
        let adapters = self.residents(decoder)?;
        let adapters = adapters.iter().fold(0u64, |sum, own| sum.saturating_add(own.ty.bytes() as u64));
        Ok(MemoryEstimate::new(decoder.weight_bytes(), caches, scratch).with_adapters(adapters))
    }
}
