//! Latent attention: config fields and tensor names of DeepSeek and those after it.

use mlxcel_core::Result;

use super::indexer::{IndexerDefaults, Indexers};
use super::roles::{Roles, refuse_order};
use super::settings::{LARGEST_HEAD_COUNT, LARGEST_HEAD_DIM, LARGEST_WIDTH, Sizes, flag};
use crate::config::Fields;
use crate::decoder::{HeadLinear, LatentAttention, LatentQuery, Mixer, Operation, PositionScale, Selection};
use crate::rope::{Partial, Rope, RopeSettings};

/// That of the norms of latents, which no setting changes.
const LATENT_EPSILON: f32 = 1e-6;

/// Reads a scale from settings, given the context.
type ReadScale = fn(Fields<'_>, usize) -> Result<Option<PositionScale>>;

/// How settings describe the elements that are rotated, which are always `qk_rope_head_dim`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rotated {
    /// Not at all: positions are not encoded.
    Never,
    /// As a head of their own, in which `partial_rotary_factor` is 1.
    OwnHead,
    /// The same, where the factor means nothing unless frequencies are scaled.
    OwnHeadUnscaled,
    /// As a part of the head, which `partial_rotary_factor` gives too.
    PartOfHead,
}

/// Which elements are rotated together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pairs {
    /// The first half of them with the second.
    Halves,
    /// Adjacent ones.
    Adjacent,
    /// Adjacent ones, unless `rope_interleave` is false.
    AdjacentIfSet,
}

/// The sizes where the settings have none, from a class of settings in transformers.
#[derive(Clone, Copy, Debug)]
pub(super) struct LatentDefaults {
    pub(super) plain_dim: usize,
    pub(super) rope_dim: usize,
    pub(super) value_dim: usize,
    pub(super) rank: usize,
    /// `None`: one projection makes queries.
    pub(super) query_rank: Option<usize>,
    /// Which elements are rotated.
    pub(super) rotated: Rotated,
    /// The base of rotary frequencies.
    pub(super) theta: f64,
    /// Which elements are rotated together.
    pub(super) pairs: Pairs,
    /// Reads how queries grow with positions, where the family has that.
    pub(super) query_scale: Option<ReadScale>,
    /// What indexers are like, if layers have such.
    pub(super) indexer: Option<IndexerDefaults>,
}

impl LatentDefaults {
    /// DeepSeek's, from its second generation on.
    pub(super) const DEEPSEEK: Self = Self {
        plain_dim: 128,
        rope_dim: 64,
        value_dim: 128,
        rank: 512,
        query_rank: Some(1536),
        rotated: Rotated::OwnHeadUnscaled,
        theta: 10_000.0,
        pairs: Pairs::Adjacent,
        query_scale: None,
        indexer: None,
    };
}

/// The settings of latent attention.
pub(super) struct LatentSettings {
    hidden: usize,
    heads: usize,
    plain_dim: usize,
    rope_dim: usize,
    value_dim: usize,
    rank: usize,
    /// `None`: one projection makes queries.
    query_rank: Option<usize>,
    bias: bool,
    scale: f32,
    rope: Option<Rope>,
    query_scale: Option<PositionScale>,
    latent_scale: f32,
    indexers: Option<Indexers>,
}

impl LatentSettings {
    /// Reads them, those of positions from `rotary`.
    pub(super) fn read(
        config: Fields<'_>,
        rotary: Fields<'_>,
        sizes: &Sizes,
        defaults: &LatentDefaults,
    ) -> Result<Self> {
        let heads = sizes.query_heads;
        let dim = |key: &str, default: usize| Ok(config.size(key, 1..=LARGEST_HEAD_DIM)?.unwrap_or(default));
        let (plain_dim, rope_dim) =
            (dim("qk_nope_head_dim", defaults.plain_dim)?, dim("qk_rope_head_dim", defaults.rope_dim)?);
        let head_dim = plain_dim + rope_dim;
        let default = fraction(rope_dim, head_dim);
        let (width, partial) = match defaults.rotated {
            Rotated::Never | Rotated::OwnHead => (rope_dim, Partial::Whole),
            Rotated::OwnHeadUnscaled => (rope_dim, Partial::Unscaled),
            Rotated::PartOfHead => (head_dim, Partial::Part { key: "partial_rotary_factor", default }),
        };
        let rope = RopeSettings {
            theta: defaults.theta,
            interleaved: match defaults.pairs {
                Pairs::Halves => false,
                Pairs::Adjacent => true,
                Pairs::AdjacentIfSet => flag(config, "rope_interleave", true)?,
            },
            partial,
            ..RopeSettings::new(rotary, width, sizes.context)
        };
        let is_rotated = defaults.rotated != Rotated::Never;
        let rope = is_rotated.then(|| rope.read()).transpose()?;
        if let Some(rope) = rope.as_ref().filter(|rope| rope.rotary_dim != rope_dim) {
            let message = format!("{} elements are rotated by other settings", rope.rotary_dim);
            return Err(config.wrong("qk_rope_head_dim", message));
        }
        if rope_dim % 2 == 1 {
            let message = format!("an odd number of elements, {rope_dim}, is not supported");
            return Err(config.unsupported("qk_rope_head_dim", message));
        }
        let query_rank = match config.size("q_lora_rank", 1..=LARGEST_WIDTH)? {
            None if !config.mentions("q_lora_rank") => defaults.query_rank,
            rank => rank,
        };
        const KV_HEADS: &str = "num_key_value_heads";
        if config.size(KV_HEADS, 1..=LARGEST_HEAD_COUNT)?.is_some_and(|kv_heads| kv_heads != heads) {
            let message = format!("all {heads} heads share the latents; another number is not supported");
            return Err(config.wrong(KV_HEADS, message));
        }
        let indexers = match &defaults.indexer {
            None => None,
            Some(defaults) => {
                Some(Indexers::read(config, sizes, [required(config, query_rank)?, rope_dim], defaults)?)
            }
        };
        Ok(Self {
            hidden: sizes.hidden,
            heads,
            plain_dim,
            rope_dim,
            value_dim: dim("v_head_dim", defaults.value_dim)?,
            rank: config.size("kv_lora_rank", 1..=LARGEST_WIDTH)?.unwrap_or(defaults.rank),
            query_rank,
            bias: flag(config, "attention_bias", false)?,
            scale: if is_rotated { scale(rotary, head_dim)? } else { (head_dim as f64).powf(-0.5) as f32 },
            rope,
            query_scale: defaults.query_scale.map(|read| read(rotary, sizes.context)).transpose()?.flatten(),
            latent_scale: 1.0,
            indexers,
        })
    }

    /// The same with queries and latents that are multiplied by the root of how many times narrower than the
    /// hidden size they were, as in LongCat-Flash.
    pub(super) fn scaled_latents(self, config: Fields<'_>) -> Result<Self> {
        let query_rank = required(config, self.query_rank)?;
        let factor = |rank: usize| (self.hidden as f64 / rank as f64).sqrt();
        // The factor of queries is one of scores.
        let scale = (f64::from(self.scale) * factor(query_rank)) as f32;
        Ok(Self { scale, latent_scale: factor(self.rank) as f32, ..self })
    }

    /// The width of the queries of a head.
    pub(super) fn query_dim(&self) -> usize {
        self.plain_dim + self.rope_dim
    }

    /// The attention of a layer, which sees the positions that an indexer selects if layers have such.
    pub(super) fn mixer(&self, roles: &Roles<'_>, index: usize, layer: &str) -> Result<Operation> {
        let module = format!("{layer}.self_attn");
        let attention = self.describe(roles, &module)?;
        let sparse = self.indexers.as_ref().map(|indexers| indexers.describe(roles, &module, index));
        Ok(Mixer::Latent(LatentAttention { sparse: sparse.transpose()?, ..attention }).into())
    }

    /// The attention of `module`, which sees all positions up to a token's own.
    pub(super) fn describe(&self, roles: &Roles<'_>, module: &str) -> Result<LatentAttention> {
        let &Self { hidden, heads, plain_dim, rope_dim, value_dim, rank, bias, scale, .. } = self;
        let linear = |part: &str, outputs, inputs, bias| {
            roles.linear(&format!("{module}.{part}"), outputs, inputs, bias)
        };
        let norm = |part: &str, width| roles.rms_norm(&format!("{module}.{part}"), width, LATENT_EPSILON);
        let queries = heads * (plain_dim + rope_dim);
        let query = match self.query_rank {
            None => LatentQuery::Direct(linear("q_proj", queries, hidden, false)?),
            Some(query_rank) => LatentQuery::Compressed {
                down: linear("q_a_proj", query_rank, hidden, bias)?,
                norm: norm("q_a_layernorm", query_rank)?,
                up: linear("q_b_proj", queries, query_rank, false)?,
            },
        };
        let down = linear("kv_a_proj_with_mqa", rank + rope_dim, hidden, bias)?;
        let norm = norm("kv_a_layernorm", rank)?;
        let [key_up, value_up] = self.ups(roles, module)?;
        // The second is Ling's name.
        let names = ["o_proj", "dense"].map(|part| format!("{module}.{part}"));
        let output = roles.linear(&roles.first_matrix(&names), hidden, heads * value_dim, bias)?;
        Ok(LatentAttention {
            heads,
            plain_dim,
            rope_dim,
            value_dim,
            rank,
            query,
            down,
            norm,
            latent_scale: self.latent_scale,
            key_up,
            value_up,
            output,
            gate: None,
            scale,
            rope: self.rope.clone(),
            query_scale: self.query_scale,
            sparse: None,
        })
    }

    /// What latents are projected with to keys and to values: of each head consecutively in `kv_b_proj`, or
    /// two stacks of matrices as mlx-lm converts them, of which that for keys is the other way round.
    fn ups(&self, roles: &Roles<'_>, module: &str) -> Result<[HeadLinear; 2]> {
        let &Self { heads, plain_dim, value_dim, rank, .. } = self;
        let converted = format!("{module}.embed_q");
        let (key, value, transposed) = if roles.has(&format!("{converted}.weight")) {
            let value = roles.matrices(&format!("{module}.unembed_out"), heads, value_dim, rank)?;
            (roles.matrices(&converted, heads, rank, plain_dim)?, value, false)
        } else {
            let stride = plain_dim + value_dim;
            let both = roles.matrix(&format!("{module}.kv_b_proj"), heads * stride, rank)?;
            refuse_order(&both, "projections of latents")?;
            let part = |start, run| {
                let rows = Selection { axis: 0, start, run, stride, runs: heads };
                both.clone().select(rows).reshaped([heads, run, rank])
            };
            (part(0, plain_dim), part(plain_dim, value_dim), true)
        };
        let key_up =
            HeadLinear { weight: roles.add(key), transposed, heads, inputs: plain_dim, outputs: rank };
        let value_up = HeadLinear {
            weight: roles.add(value),
            transposed: false,
            heads,
            inputs: rank,
            outputs: value_dim,
        };
        Ok([key_up, value_up])
    }
}

/// The width of the latent of queries, which there has to be.
fn required(config: Fields<'_>, query_rank: Option<usize>) -> Result<usize> {
    query_rank.ok_or_else(|| {
        let message = "queries without a latent are not supported for this model_type".to_owned();
        config.unsupported("q_lora_rank", message)
    })
}

/// `1 / √dim`, times the square of YaRN's magnitude for all dimensions where the rotary embedding is scaled.
fn scale(config: Fields<'_>, dim: usize) -> Result<f32> {
    let mut scale = (dim as f64).powf(-0.5);
    let scaling = match config.object("rope_scaling")? {
        Some(scaling) => Some(scaling),
        None => config.object("rope_parameters")?,
    };
    let Some(scaling) = scaling else { return Ok(scale as f32) };
    let kind = match scaling.text("rope_type")? {
        Some(kind) => Some(kind),
        None => scaling.text("type")?,
    };
    let magnitude = scaling.number("mscale_all_dim")?.unwrap_or(0.0);
    if kind.is_some_and(|kind| kind != "default") && magnitude != 0.0 {
        let factor = scaling.required_positive("factor")?;
        if factor > 1.0 {
            scale *= (0.1 * magnitude * factor.ln() + 1.0).powi(2);
        }
    }
    Ok(scale as f32)
}

/// The fraction of `whole` elements that `part` of them are: a half more than these, since the number of
/// elements is found by rounding down.
fn fraction(part: usize, whole: usize) -> f64 {
    (part as f64 + 0.5) / whole as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fraction_of_a_head_is_the_number_of_its_elements() {
        for whole in 1..400 {
            for part in 0..whole {
                assert_eq!((whole as f64 * fraction(part, whole)) as usize, part, "{part} of {whole}");
            }
        }
    }
}
