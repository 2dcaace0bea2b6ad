//! Attention to a window and to compressed positions before it.

use super::collect::Collected;
use super::display::{describe_core, describe_rope};
use super::{AttentionCore, Decoder, HeadLinear, Linear, Norm, WeightId, WeightRole};
use crate::rope::Rope;

/// Attention whose keys are its values, of one head that all query heads share (DeepSeek-AI, 2026,
/// "DeepSeek-V4").
///
/// Queries come through a latent. The last elements of queries and of the key are rotated. The same elements
/// of a head's result are rotated back by the token's own position. Beside the window of `core`, tokens
/// attend to the entries of the [`compressor`](Self::compressor), which are keys and values too and share the
/// softmax.
#[derive(Clone, Debug, PartialEq)]
pub struct CompressedAttention {
    /// The number of query heads.
    pub query_heads: usize,
    /// The width of each head, and of the key.
    pub head_dim: usize,
    /// `hidden_size` to the latent of queries.
    pub query_down: Linear,
    /// The norm of the latent.
    pub latent_norm: Norm,
    /// The latent to `query_heads · head_dim`.
    pub query: Linear,
    /// The norm of each head's queries.
    pub query_norm: Norm,
    /// `hidden_size` to `head_dim`: the key, which is the value too.
    pub key: Linear,
    /// The norm of the key.
    pub key_norm: Norm,
    /// `query_heads · head_dim / groups` to a narrow result, for each group of consecutive heads.
    pub output_down: HeadLinear,
    /// The results of all groups to `hidden_size`.
    pub output: Linear,
    /// Scores and masking, with a window. Its rotary embedding is of the last elements of heads.
    pub core: AttentionCore,
    /// What earlier positions are compressed to; `None`: nothing but the window is seen.
    pub compressor: Option<Compressor>,
    /// Which of the entries a token attends to; `None`: all.
    pub indexer: Option<EntryIndexer>,
}

/// Compresses windows of positions to one entry each.
///
/// Each `rate` consecutive positions are a window, whose entry is the sum of their values, weighted for each
/// element by a softmax of their gates over the window. An entry is normalized and rotated by the position of
/// its window's first token. Tokens see the entries of the windows that end at or before them.
#[derive(Clone, Debug, PartialEq)]
pub struct Compressor {
    /// The number of positions of a window.
    pub rate: usize,
    /// Whether an entry is made of the window before as well, by values and gates of their own: the first
    /// half of those that the projections give. The window that is being closed takes the second half.
    pub overlapping: bool,
    /// The width of an entry.
    pub width: usize,
    /// `hidden_size` to `width`, or twice that if windows are overlapping: values.
    pub value: Linear,
    /// The same for gates.
    pub gate: Linear,
    /// `[rate, outputs of gate]`: added to the gates by their place in the window.
    pub gate_bias: WeightId,
    /// The norm of entries.
    pub norm: Norm,
    /// The rotary embedding of the last elements of entries, [delayed](Rope::delay) by `rate − 1`.
    pub rope: Rope,
}

impl Compressor {
    /// The number of positions that an entry is made of.
    pub fn taps(&self) -> usize {
        self.rate * self.series()
    }

    /// How many values of each element a position has.
    pub fn series(&self) -> usize {
        if self.overlapping { 2 } else { 1 }
    }
}

/// Scores the entries of a [`Compressor`] by entries of its own, and selects those with the highest scores.
///
/// With `q` the queries of a token and `w` its weights, the score of an entry `k` is `scale · Σ w · relu(q ·
/// k)`, over the heads. The last elements of queries are rotated as those of the layer are.
#[derive(Clone, Debug, PartialEq)]
pub struct EntryIndexer {
    /// The number of heads.
    pub heads: usize,
    /// How many entries are selected. Ties go to the lowest position.
    pub count: usize,
    /// Makes the entries that are scored, at the rate of the layer's compressor.
    pub compressor: Compressor,
    /// The latent of the layer's queries to `heads` queries, as wide as the entries.
    pub query: Linear,
    /// `hidden_size` to a weight for each head.
    pub weights: Linear,
    /// The factor of scores.
    pub scale: f32,
}

impl Collected {
    pub(super) fn compressed(&mut self, attention: &CompressedAttention) {
        let CompressedAttention {
            query_heads: _,
            head_dim: _,
            query_down,
            latent_norm,
            query,
            query_norm,
            key,
            key_norm,
            output_down,
            output,
            core,
            compressor,
            indexer,
        } = attention;
        self.linears(WeightRole::Attention, [*query_down, *query, *key]);
        [latent_norm, query_norm, key_norm].into_iter().for_each(|norm| self.norm(norm));
        self.core(core);
        if let Some(compressor) = compressor {
            self.compressor(compressor);
        }
        if let Some(EntryIndexer { heads: _, count: _, compressor, query, weights, scale: _ }) = indexer {
            self.compressor(compressor);
            self.linears(WeightRole::Attention, [*query, *weights]);
        }
        let HeadLinear { weight, transposed: _, heads: _, inputs: _, outputs: _ } = output_down;
        self.product(WeightRole::Attention, *weight);
        self.linears(WeightRole::Attention, [*output]);
    }

    fn compressor(&mut self, compressor: &Compressor) {
        let Compressor { rate: _, overlapping: _, width: _, value, gate, gate_bias, norm, rope: _ } =
            compressor;
        self.linears(WeightRole::Attention, [*value, *gate]);
        self.add(WeightRole::Attention, [*gate_bias]);
        self.norm(norm);
    }
}

impl Decoder {
    /// The lines of a summary.
    pub(super) fn describe_compressed(&self, attention: &CompressedAttention) -> Vec<String> {
        let CompressedAttention {
            query_heads,
            head_dim,
            query_down,
            query,
            key,
            output_down,
            output,
            core,
            ..
        } = attention;
        let extras: String = describe_core(core).iter().map(|extra| format!(", {extra}")).collect();
        let mut lines = vec![
            format!(
                "attention  {query_heads} query heads of {head_dim} over one of keys as values, queries of rank {}, \
                 {} groups of results, scale {}{extras}, {}",
                query.inputs,
                output_down.heads,
                core.scale,
                self.describe_projections(&[query_down, query, key, output])
            ),
            describe_rope(core.rope.as_ref(), *head_dim),
        ];
        lines.extend(attention.compressor.as_ref().map(|own| self.describe_compressor(own)));
        if let Some(EntryIndexer { heads, count, compressor, query: _, weights: _, scale }) =
            &attention.indexer
        {
            lines.push(format!("selection  {count} entries by {heads} index heads, scale {scale}"));
            lines.push(self.describe_compressor(compressor));
        }
        lines
    }

    fn describe_compressor(&self, compressor: &Compressor) -> String {
        let Compressor { rate, overlapping, width, value, gate, gate_bias: _, norm: _, rope: _ } = compressor;
        let overlapping = if *overlapping { " and of the window before" } else { "" };
        format!(
            "entries    of {width}, each of {rate} positions{overlapping}, {}",
            self.describe_projections(&[value, gate])
        )
    }
}
