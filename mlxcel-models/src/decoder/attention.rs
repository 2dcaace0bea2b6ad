//! Attention, and latent attention.

use super::{Activation, HeadLinear, Linear, Norm, WeightId};
use crate::rope::Rope;

/// Self-attention.
///
/// Query head `h` attends to key/value head `h / (query_heads / kv_heads)` (grouped-query attention, Ainslie
/// et al., 2023): `softmax(scale · q·kᵀ) · v` over the positions that [`mask`](AttentionCore::mask) and
/// [`window`](AttentionCore::window) leave visible. Queries and keys are normalized, then rotated; or the
/// other way round with [`NormScope::RotatedHead`].
#[derive(Clone, Debug, PartialEq)]
pub struct Attention {
    /// The number of query heads, a multiple of `kv_heads`.
    pub query_heads: usize,
    /// The number of key/value heads.
    pub kv_heads: usize,
    /// The width of each head of queries and keys.
    pub head_dim: usize,
    /// The width of each head of values, usually the same (another in MiMo-V2-Flash).
    pub value_dim: usize,
    /// `hidden_size` to `query_heads · head_dim`, heads concatenated.
    pub query: Linear,
    /// `hidden_size` to `kv_heads · head_dim`.
    pub key: Linear,
    /// `hidden_size` to `kv_heads · value_dim`. The same projection as `key` where keys before their norm
    /// are values too; it is computed once (Gemma 4).
    pub value: Linear,
    /// A factor of values.
    pub value_scale: f32,
    /// `query_heads · value_dim` to `hidden_size`.
    pub output: Linear,
    /// The norm of queries, if any.
    pub query_norm: Option<HeadNorm>,
    /// The norm of keys, if any.
    pub key_norm: Option<HeadNorm>,
    /// The norm of each head's values, if any.
    pub value_norm: Option<Norm>,
    /// Clamps queries, keys and values to this magnitude after projection and norm (OLMoE's `clip_qkv`).
    pub clip: Option<f32>,
    /// The output gate: a projection of the layer's input, `hidden_size` to `query_heads · value_dim`, which
    /// multiplies the heads' results before `output` (Qwen3-Next); or to `query_heads`, a number for each
    /// head (Step 3.5).
    pub gate: Option<Linear>,
    /// What becomes of the gate before it multiplies: a sigmoid in most families, a softplus in Laguna.
    pub gate_activation: Activation,
    /// The norm of the heads' results together, right before `output` (BitNet).
    pub output_norm: Option<Norm>,
    /// Scores and masking.
    pub core: AttentionCore,
}

impl Attention {
    /// The width of a head of keys, and of values, in a cache: that of the wider. The others are filled with
    /// zeros.
    pub fn kept_dim(&self) -> usize {
        self.head_dim.max(self.value_dim)
    }
}

/// Attention to the keys and values that an earlier layer keeps, which leaves no state of its own (Gemma 3n).
#[derive(Clone, Debug, PartialEq)]
pub struct SharedAttention {
    /// The number of query heads, a multiple of the source's key/value heads.
    pub query_heads: usize,
    /// The width of each head, the same as the source's.
    pub head_dim: usize,
    /// `hidden_size` to `query_heads · head_dim`, heads concatenated.
    pub query: Linear,
    /// `query_heads · head_dim` to `hidden_size`.
    pub output: Linear,
    /// The norm of each head's queries, if any.
    pub query_norm: Option<Norm>,
    /// The index of the [`Attention`] whose keys and values are read, among
    /// [`Decoder::mixers`](super::Decoder::mixers). It comes earlier.
    pub source: usize,
    /// Scores and masking. Window and rotary embedding are the source's.
    pub core: AttentionCore,
}

/// [`Attention`] without its projections.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionCore {
    /// The factor of query-key products.
    pub scale: f32,
    /// Which positions are visible.
    pub mask: AttentionMask,
    /// Positions at a distance of less than this are visible (sliding window, Beltagy et al., 2020,
    /// "Longformer"): a causal `p` attends to `p − window + 1` and later. `None`: any distance. With
    /// [`AttentionMask::Chunked`] the length of chunks.
    pub window: Option<usize>,
    /// The rotary embedding; `None` for attention without positions.
    pub rope: Option<Rope>,
    /// Scores become `cap · tanh(score / cap)` (Gemma 2).
    pub soft_cap: Option<f32>,
    /// `[query_heads]`: a logit per head that is part of the softmax and has no value (gpt-oss).
    pub sinks: Option<WeightId>,
    /// A factor of queries that depends on the position.
    pub query_scale: Option<PositionScale>,
    /// What is added to scores for the distance of two positions, if anything. Only with
    /// [`AttentionMask::Bidirectional`], and without a window.
    pub distance: Option<DistanceBias>,
}

/// What is added to the score of a query and a key for the distance of their positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DistanceBias {
    /// The distance times the [slope](alibi_slopes) of the head is subtracted (Press et al., 2022, "Train
    /// Short, Test Long").
    Slopes,
    /// `[32, query_heads]`: the row of the [bucket](distance_bucket) is added (Raffel et al., 2020,
    /// "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer"). Layers can share
    /// the table.
    Buckets(WeightId),
}

/// The number of [buckets](DistanceBias::Buckets).
pub(crate) const DISTANCE_BUCKETS: usize = 32;

/// The distance from which on all distances have one bucket.
pub const LARGEST_DISTANCE: usize = 128;

/// The bucket of a key `offset` positions behind its query, negative if it is before it: half of the
/// [buckets](DistanceBias::Buckets) are for either direction, half of those for one distance each, and the
/// others for distances that grow by a factor.
pub fn distance_bucket(offset: i64) -> usize {
    const HALF: usize = DISTANCE_BUCKETS / 2;
    const EXACT: usize = HALF / 2;
    let distance = usize::try_from(offset.unsigned_abs()).unwrap_or(usize::MAX);
    let bucket = if distance < EXACT {
        distance
    } else {
        let times = |distance: usize| (distance as f64 / EXACT as f64).ln();
        let part = times(distance) / times(LARGEST_DISTANCE);
        (HALF - 1).min(EXACT + (part * (HALF - EXACT) as f64) as usize)
    };
    if offset > 0 { HALF + bucket } else { bucket }
}

/// The slopes of heads with [ALiBi](DistanceBias::Slopes): `2^(−8i/n)` for head `i` of `n`, from 1 on. If `n`
/// is no power of two, those of the power below, then every other one of the power above.
pub fn alibi_slopes(heads: usize) -> Vec<f32> {
    let power = 1usize.checked_shl(heads.max(1).ilog2()).unwrap_or(1);
    let slope = |index: usize, count: usize| (-8.0 * index as f64 / count as f64).exp2() as f32;
    let below = (1..=power).map(|index| slope(index, power));
    below.chain((1..).step_by(2).map(|index| slope(index, 2 * power))).take(heads).collect()
}

/// Which other positions [`Attention`] sees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AttentionMask {
    /// Positions up to its own. Keys and values are kept between steps.
    #[default]
    Causal,
    /// Positions up to its own in the same chunk (Llama 4). Chunks begin at the multiples of
    /// [`window`](AttentionCore::window); without a window all positions are one chunk. Keys and values are
    /// kept between steps.
    Chunked,
    /// All positions of the text, later ones too (Devlin et al., 2018, "BERT"). A text is computed whole, in
    /// one pass, and nothing is kept.
    Bidirectional,
}

/// The factor `1 + beta · ln(1 + ⌊(position + offset) / original_context⌋)` of queries in Llama 4, Ministral
/// 3 and Mistral 4.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PositionScale {
    /// The coefficient of the logarithm.
    pub beta: f32,
    /// The positions per unit under the logarithm.
    pub original_context: usize,
    /// Added to the position, which counts from 0.
    pub offset: usize,
}

/// A norm of queries or keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeadNorm {
    /// The norm.
    pub norm: Norm,
    /// The elements that are normalized together.
    pub scope: NormScope,
}

/// The elements that a [`HeadNorm`] normalizes together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NormScope {
    /// Each head separately.
    Head,
    /// Each head separately, after the rotary embedding (Hunyuan), which must not be interleaved if the norm
    /// has factors: elements are permuted by then.
    RotatedHead,
    /// All heads of the projection together.
    Full,
}

/// Multi-head latent attention (DeepSeek-AI, 2024, "DeepSeek-V2"), in the absorbed form.
///
/// A position's state is a latent of `rank` numbers and a rotary key of `rope_dim` numbers, shared by all
/// heads. With `[q, r]` the two parts of a head's query, its score is `scale · (key_up(q) · latent + r ·
/// key)`, and its result `value_up(Σ softmax · latent)`.
#[derive(Clone, Debug, PartialEq)]
pub struct LatentAttention {
    /// The number of heads.
    pub heads: usize,
    /// The width of the unrotated part of a query.
    pub plain_dim: usize,
    /// The width of the part of a query that is rotated if anything is, and of the shared key.
    pub rope_dim: usize,
    /// The width of the values of a head.
    pub value_dim: usize,
    /// The width of the latent.
    pub rank: usize,
    /// The query projection: `heads · (plain_dim + rope_dim)` outputs, the unrotated part of each head
    /// first.
    pub query: LatentQuery,
    /// `hidden_size` to `rank + rope_dim`: the latent, then the shared key.
    pub down: Linear,
    /// The norm of the latent.
    pub norm: Norm,
    /// A factor of the latent after its norm (LongCat-Flash).
    pub latent_scale: f32,
    /// `plain_dim` to `rank` for each head.
    pub key_up: HeadLinear,
    /// `rank` to `value_dim` for each head.
    pub value_up: HeadLinear,
    /// `heads · value_dim` to `hidden_size`.
    pub output: Linear,
    /// The output gate: `hidden_size` to a number for each head, whose sigmoid multiplies the head's values
    /// before `output` (Ling 3).
    pub gate: Option<Linear>,
    /// The factor of scores.
    pub scale: f32,
    /// The rotary embedding; `None` for attention without positions.
    pub rope: Option<Rope>,
    /// A factor of queries that depends on the position.
    pub query_scale: Option<PositionScale>,
    /// Which of the positions up to its own a token attends to; `None`: all.
    pub sparse: Option<SparseAttention>,
}

/// Which of the positions up to its own a token of [`LatentAttention`] attends to (DeepSeek-AI, 2025,
/// "DeepSeek-V3.2").
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SparseAttention {
    /// Those that an indexer of the layer's own selects. Its keys are a state beside the latents.
    Indexed(Indexer),
    /// Those that were selected for an earlier layer (GLM 5).
    Shared {
        /// The index of that layer's attention among [`Decoder::mixers`](super::Decoder::mixers), which has
        /// an indexer of its own.
        source: usize,
    },
}

/// Scores positions, and selects those with the highest scores.
///
/// With `q` the queries of a token and `w` its weights, the score of a position with the key `k` is `scale ·
/// Σ w · relu(q · k)`, over the heads. Queries and keys are rotated by the layer's rotary embedding, in their
/// first elements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Indexer {
    /// The number of heads.
    pub heads: usize,
    /// The width of the queries of each head, and of keys.
    pub head_dim: usize,
    /// How many positions are selected. Ties go to the lowest position.
    pub count: usize,
    /// The latent of the layer's queries, or its input if there is none, to `heads · head_dim`.
    pub query: Linear,
    /// `hidden_size` to `head_dim`: a key for all heads.
    pub key: Linear,
    /// The norm of keys.
    pub key_norm: Norm,
    /// `hidden_size` to a weight for each head.
    pub weights: Linear,
    /// The factor of scores.
    pub scale: f32,
    /// Whether adjacent elements are rotated together, whatever holds for the layer's own queries and keys.
    pub interleaved: bool,
}

/// The query projection of [`LatentAttention`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LatentQuery {
    /// One projection.
    Direct(Linear),
    /// Two projections through a query latent.
    Compressed {
        /// `hidden_size` to the latent.
        down: Linear,
        /// The norm of the latent.
        norm: Norm,
        /// The latent to queries.
        up: Linear,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Those of transformers' `MPNetEncoder.relative_position_bucket`.
    #[test]
    fn distances_share_buckets_from_eight_on() {
        let buckets =
            |offsets: &[i64]| offsets.iter().map(|&offset| distance_bucket(offset)).collect::<Vec<_>>();
        assert_eq!(buckets(&[0, -1, -7, 1, 7]), [0, 1, 7, 17, 23]);
        // The first distances of each bucket, and the last before it.
        let first = [8, 12, 16, 23, 32, 46, 64, 91];
        assert_eq!(buckets(&first.map(|distance| -distance)), [8, 9, 10, 11, 12, 13, 14, 15]);
        assert_eq!(buckets(&first.map(|distance| 1 - distance)), [7, 8, 9, 10, 11, 12, 13, 14]);
        let far = LARGEST_DISTANCE as i64;
        assert_eq!(buckets(&[-far, far, i64::MIN, i64::MAX]), [15, 31, 15, 31]);
    }
}
