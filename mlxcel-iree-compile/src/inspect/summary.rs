//! Statistics of a step.

use std::fmt;

use mlxcel_core::Result;
use mlxcel_graph::{ProgramShape, Signature};
use mlxcel_iree_kernels::Layouts;
use mlxcel_iree_target::ResolvedTarget;
use mlxcel_models::{Decoder, Operation, WeightId, WeightRef};
use serde::Serialize;

use super::Statistics;

/// How many dispatches a printed summary lists.
const LISTED: usize = 12;

/// Statistics of one step of a program.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Summary {
    /// The program, such as `1@256`: one decoding row over 256 positions.
    pub program: String,
    /// The compile target.
    pub target: String,
    /// The memory layout of weights: `rows`, as stored, or for example `panels-16`.
    pub weight_layout: String,
    /// The number of dispatches.
    pub dispatches: u64,
    /// The number of different kernels.
    pub kernels: u64,
    /// The number of buffer copies.
    pub copies: u64,
    /// The number of buffer fills.
    pub fills: u64,
    /// The number of submissions to the device.
    pub submissions: u64,
    /// Bytes of intermediate results.
    pub transient_bytes: u64,
    /// The minimum bytes of weights that a step has to read: each weight once, of embedding tables the rows
    /// of the tokens, and of experts as many as the tokens can select.
    pub weight_bytes: u64,
    /// Bytes of states that a step reads, with caches at their full length.
    pub kv_bytes: u64,
    /// Bytes that all dispatches read, by the tensors they load, ignoring processor caches. For gathers from
    /// a table, the bytes written are counted.
    pub bytes_read: u64,
    /// Bytes that all dispatches write.
    pub bytes_written: u64,
    /// The dispatches, most bytes read first; equal ones are listed once.
    pub largest: Vec<Dispatch>,
}

/// A kernel dispatched by a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Dispatch {
    /// The compiler's name, with its kind and shape; `mlxcel_…` are kernels of this project.
    pub name: String,
    /// Dispatches per step.
    pub calls: u64,
    /// Bytes read per call.
    pub bytes_read: u64,
    /// Bytes written per call.
    pub bytes_written: u64,
}

impl Summary {
    pub(super) fn new(
        shape: &ProgramShape,
        target: &ResolvedTarget,
        decoder: &Decoder,
        signature: &Signature,
        layouts: &Layouts,
        mut largest: Vec<Dispatch>,
        statistics: &Statistics,
    ) -> Result<Self> {
        largest.sort_by_key(|dispatch| std::cmp::Reverse(dispatch.calls * dispatch.bytes_read));
        let sum = |of: fn(&Dispatch) -> u64| largest.iter().map(|one| one.calls * of(one)).sum();
        Ok(Self {
            program: shape.to_string(),
            target: target.to_string(),
            weight_layout: layouts.to_string(),
            dispatches: statistics.count("execution/dispatch-count")?,
            kernels: statistics.count("executable/executable-count")?,
            copies: statistics.count("execution/copy-count")?,
            fills: statistics.count("execution/fill-count")?,
            submissions: statistics.count("execution/submission-count")?,
            transient_bytes: statistics.count("execution/transient-memory-size")?,
            weight_bytes: weight_bytes(decoder, shape),
            kv_bytes: signature.states.iter().map(|state| state.ty.bytes() as u64).sum(),
            bytes_read: sum(|one| one.bytes_read),
            bytes_written: sum(|one| one.bytes_written),
            largest,
        })
    }
}

/// The bytes of weights that a step needs: of tables the rows of its tokens, of experts as many as its tokens
/// can choose.
fn weight_bytes(decoder: &Decoder, shape: &ProgramShape) -> u64 {
    let bytes = |id: WeightId| decoder.weight(id).tensors().map(WeightRef::byte_len).sum::<usize>();
    // The bytes of `count` of the outermost parts of a weight.
    let some = |id: WeightId, count: usize| {
        let parts = decoder.weight(id).shape.first().copied().unwrap_or(1).max(1);
        bytes(id) / parts * count.min(parts)
    };
    let (tokens, table) = (shape.tokens(), decoder.embedding.weight);
    let needed = decoder.weight_bytes() + some(table, tokens) as u64;
    let mut unread = if decoder.head.is_some_and(|head| head.tied) { 0 } else { bytes(table) };
    if let Some(positions) = &decoder.embedding.positions {
        unread += bytes(positions.weight) - some(positions.weight, tokens);
    }
    if let Some(inputs) = &decoder.layer_embeddings {
        unread += bytes(inputs.weight) - some(inputs.weight, tokens);
    }
    for block in decoder.layers.iter().flat_map(|layer| &layer.blocks) {
        if let Operation::Experts(experts) = &block.operation {
            for linear in [experts.gate, experts.up, experts.down] {
                unread += bytes(linear.weight) - some(linear.weight, tokens.saturating_mul(experts.chosen));
            }
        }
    }
    needed - unread as u64
}

/// A number of bytes for people.
fn bytes(count: u64) -> String {
    match count {
        0..10_000 => format!("{count} B"),
        10_000..10_000_000 => format!("{:.1} kB", count as f64 / 1e3),
        _ => format!("{:.1} MB", count as f64 / 1e6),
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "program {} for {}, weights in {}", self.program, self.target, self.weight_layout)?;
        writeln!(
            f,
            "  a step: {} dispatches of {} kernels, {} copies, {} fills, {} submissions",
            self.dispatches, self.kernels, self.copies, self.fills, self.submissions
        )?;
        writeln!(
            f,
            "  it needs: {} of weights, {} of KV cache; its dispatches read {}, write {}; intermediate results take {}",
            bytes(self.weight_bytes),
            bytes(self.kv_bytes),
            bytes(self.bytes_read),
            bytes(self.bytes_written),
            bytes(self.transient_bytes)
        )?;
        writeln!(f, "  {:>12} {:>6} {:>12} {:>12}  dispatch", "read in all", "calls", "read", "written")?;
        for one in self.largest.iter().take(LISTED) {
            let [all, read, written] =
                [one.calls * one.bytes_read, one.bytes_read, one.bytes_written].map(bytes);
            writeln!(f, "  {all:>12} {:>6} {read:>12} {written:>12}  {}", one.calls, one.name)?;
        }
        if let Some(more) = self.largest.len().checked_sub(LISTED).filter(|&more| more > 0) {
            writeln!(f, "  and {more} more")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use mlxcel_graph::Outputs;

    use super::*;
    use crate::testing::checkpoint;

    #[test]
    fn a_step_reads_at_most_the_experts_that_its_tokens_can_choose() {
        let decoder = checkpoint("olmoe").decoder().unwrap();
        let of = |tokens| {
            let shape = ProgramShape { rows: vec![tokens], length: 256, outputs: Outputs::Last };
            weight_bytes(&decoder, &shape)
        };
        let (row, mut expert, mut experts, mut chosen) = (2 * decoder.hidden_size as u64, 0, 0, 0);
        for block in decoder.layers.iter().flat_map(|layer| &layer.blocks) {
            if let Operation::Experts(mixture) = &block.operation {
                (experts, chosen) = (mixture.count as u64, mixture.chosen as u64);
                expert += [mixture.gate, mixture.up, mixture.down]
                    .map(|linear| decoder.weight(linear.weight).byte_len() as u64 / experts)
                    .iter()
                    .sum::<u64>();
            }
        }
        assert!(chosen < experts && expert > 0);
        assert_eq!(of(2) - of(1), chosen * expert + row);
        assert_eq!(of(experts as usize + 1) - of(experts as usize), row, "there are no more experts");
    }
}
