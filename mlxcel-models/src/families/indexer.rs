//! Indexers of latent attention: config fields and tensor names of DeepSeek-V3.2 and those after it.

use mlxcel_core::Result;

use super::roles::Roles;
use super::settings::{
    LARGEST_CONTEXT, LARGEST_HEAD_COUNT, LARGEST_HEAD_DIM, LARGEST_LAYER_COUNT, Sizes, expect_flag,
};
use crate::config::Fields;
use crate::decoder::{Indexer, SparseAttention};

/// That of the norms of keys, which no setting changes.
const KEY_EPSILON: f32 = 1e-6;

/// The settings where there are none, from a class of settings in transformers.
#[derive(Clone, Copy, Debug)]
pub(super) struct IndexerDefaults {
    pub(super) heads: usize,
    pub(super) head_dim: usize,
    /// How many positions are selected.
    pub(super) count: usize,
    /// Whether adjacent elements are rotated together, which no setting changes.
    pub(super) interleaved: bool,
    /// Whether settings can make layers use the positions of layers before them.
    pub(super) shares: bool,
}

/// The settings of indexers.
pub(super) struct Indexers {
    hidden: usize,
    query_rank: usize,
    heads: usize,
    head_dim: usize,
    count: usize,
    interleaved: bool,
    /// For each layer, the layer whose positions it uses; `None` if it has an indexer.
    sources: Vec<Option<usize>>,
}

impl Indexers {
    /// Reads them for layers whose queries have a latent `query_rank` wide, and whose heads have `rope_dim`
    /// rotated elements.
    pub(super) fn read(
        config: Fields<'_>,
        sizes: &Sizes,
        [query_rank, rope_dim]: [usize; 2],
        defaults: &IndexerDefaults,
    ) -> Result<Self> {
        const HEAD_DIM: &str = "index_head_dim";
        let head_dim = config.size(HEAD_DIM, 1..=LARGEST_HEAD_DIM)?.unwrap_or(defaults.head_dim);
        if head_dim < rope_dim {
            let message = format!("{head_dim} elements are fewer than the {rope_dim} that are rotated");
            return Err(config.wrong(HEAD_DIM, message));
        }
        expect_flag(config, "indexer_rope_interleave", defaults.interleaved)?;
        Ok(Self {
            hidden: sizes.hidden,
            query_rank,
            heads: config.size("index_n_heads", 1..=LARGEST_HEAD_COUNT)?.unwrap_or(defaults.heads),
            head_dim,
            count: config.size("index_topk", 1..=LARGEST_CONTEXT)?.unwrap_or(defaults.count),
            interleaved: defaults.interleaved,
            sources: if defaults.shares { sources(config, sizes.layers)? } else { vec![None; sizes.layers] },
        })
    }

    /// Which positions the attention of `module`, in the layer `index`, sees.
    pub(super) fn describe(&self, roles: &Roles<'_>, module: &str, index: usize) -> Result<SparseAttention> {
        if let Some(source) = self.sources.get(index).copied().flatten() {
            return Ok(SparseAttention::Shared { source });
        }
        let &Self { hidden, query_rank, heads, head_dim, count, interleaved, .. } = self;
        let name = |part: &str| format!("{module}.indexer.{part}");
        Ok(SparseAttention::Indexed(Indexer {
            heads,
            head_dim,
            count,
            query: roles.linear(&name("wq_b"), heads * head_dim, query_rank, false)?,
            key: roles.linear(&name("wk"), head_dim, hidden, false)?,
            key_norm: roles.layer_norm(&name("k_norm"), head_dim, KEY_EPSILON, true)?,
            weights: roles.linear(&name("weights_proj"), heads, hidden, false)?,
            scale: ((heads * head_dim) as f64).powf(-0.5) as f32,
            interleaved,
        }))
    }
}

/// Reads which layers have no indexer, and the layers whose positions these use: the last before them that
/// has one.
fn sources(config: Fields<'_>, layers: usize) -> Result<Vec<Option<usize>>> {
    let (key, shares) = shared_layers(config, layers)?;
    if shares.len() < layers {
        return Err(config.wrong(key, format!("{} types are given for {layers} layers", shares.len())));
    }
    let mut last = None;
    let source = |(index, shares): (usize, bool)| {
        if !shares {
            last = Some(index);
            return Ok(None);
        }
        last.map(Some).ok_or_else(|| {
            config.wrong(key, "the first layer cannot use the positions of a layer before it".to_owned())
        })
    };
    shares.into_iter().take(layers).enumerate().map(source).collect()
}

/// The key that decides, and for each layer whether it uses the positions of another.
fn shared_layers(config: Fields<'_>, layers: usize) -> Result<(&'static str, Vec<bool>)> {
    const TYPES: &str = "indexer_types";
    const PATTERN: &str = "index_topk_pattern";
    const FREQUENCY: &str = "index_topk_freq";
    let is_shared = |key: &'static str, kind: &str, names: [&str; 2]| match kind {
        kind if kind == names[0] => Ok(false),
        kind if kind == names[1] => Ok(true),
        other => {
            let message = format!("'{}' is not supported; {} are", other.escape_debug(), names.join(", "));
            Err(config.unsupported(key, message))
        }
    };
    let is_list = config.get(PATTERN).is_some_and(|pattern| pattern.is_array());
    let listed = [(TYPES, true), (PATTERN, is_list)].into_iter().filter(|(_, listed)| *listed);
    for (key, _) in listed {
        if let Some(kinds) = config.texts(key)? {
            let kinds = kinds.into_iter().map(|kind| is_shared(key, kind, ["full", "shared"]));
            return Ok((key, kinds.collect::<Result<_>>()?));
        }
    }
    if let Some(pattern) = config.text(PATTERN)? {
        let letters =
            pattern.chars().map(|letter| is_shared(PATTERN, letter.to_string().as_str(), ["F", "S"]));
        return Ok((PATTERN, letters.collect::<Result<_>>()?));
    }
    let frequency = config.size(FREQUENCY, 0..=LARGEST_LAYER_COUNT)?.unwrap_or(1).max(1);
    let offset = config.size("index_skip_topk_offset", 0..=LARGEST_LAYER_COUNT)?.unwrap_or(2);
    let is_shared = |index: usize| !(index + 1).saturating_sub(offset).is_multiple_of(frequency);
    Ok((FREQUENCY, (0..layers).map(is_shared).collect()))
}
