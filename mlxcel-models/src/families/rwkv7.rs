//! RWKV-7: the generalised delta rule and MLPs, both of which read a mix of each token and the one before it.
//!
//! Config fields, defaults and tensor names are those of flash-linear-attention's `RWKV7Config` and
//! `RWKV7ForCausalLM`, in whose format checkpoints are published, or of mlx-lm's conversion. The arithmetic is
//! the paper's (Peng et al., 2025, "RWKV-7 Goose with Expressive Dynamic State Evolution").

use super::prelude::*;
use crate::decoder::{GeneralizedDeltaRule, Projection, ShiftedMlp, ShiftedProjection, WeightId};

pub(super) const FAMILY: Family = Family {
    conversion: Conversion::sensitive(&["lora.2", "embeddings"]),
    ..Family::new(&["rwkv7"], &[2], describe)
};

/// The state does not grow with positions, and `max_position_embeddings` is read by layers with attention
/// alone, so this bound is only there to be finite.
const CONTEXT: usize = 1 << 20;

/// The logarithm of the strongest decay, `−1 / √e`.
const DECAY_BOUND: f32 = -0.606_530_66;

/// The mixes of the delta rule, in the order in which older checkpoints stack them.
const MIXES: [&str; 6] = ["r", "w", "k", "v", "a", "g"];

/// The sizes of a layer.
struct Sizes {
    hidden: usize,
    intermediate: usize,
    heads: usize,
    head_dim: usize,
    epsilon: f32,
    norm_bias: bool,
}

impl Sizes {
    fn read(config: Fields<'_>) -> Result<Self> {
        const HEAD_DIM: &str = "head_dim";
        let hidden = config.size("hidden_size", 1..=LARGEST_WIDTH)?.unwrap_or(2048);
        // As in the reference, the width of heads goes before their number.
        let dim = match config.size(HEAD_DIM, 1..=LARGEST_HEAD_DIM)? {
            Some(dim) => dim,
            None if !config.mentions(HEAD_DIM) => 64,
            None => match config.size("num_heads", 1..=LARGEST_HEAD_COUNT)? {
                Some(heads) => head_dim(config, "num_heads", hidden, heads)?,
                None => return Err(config.absent(HEAD_DIM)),
            },
        };
        if hidden % dim != 0 {
            return Err(config.wrong(HEAD_DIM, format!("heads of {dim} do not divide hidden_size, {hidden}")));
        }
        let intermediate = match config.size("intermediate_size", 1..=LARGEST_WIDTH)? {
            Some(width) => width,
            None => {
                let width = (hidden as f64 * f64::from(positive(config, "hidden_ratio", 4.0)?)) as usize;
                width.min(LARGEST_WIDTH).next_multiple_of(32)
            }
        };
        Ok(Self {
            hidden,
            intermediate,
            heads: hidden / dim,
            head_dim: dim,
            epsilon: positive(config, "norm_eps", 1e-5)?,
            norm_bias: flag(config, "norm_bias", true)?,
        })
    }
}

/// Refuses layers with attention, other activations, and values of another width than keys.
fn refuse_variants(config: Fields<'_>, hidden: usize) -> Result<()> {
    const VALUE_DIM: &str = "value_dim";
    if config.object("attn")?.is_some() {
        let message = "layers with attention are not supported for this model_type".to_owned();
        return Err(config.unsupported("attn", message));
    }
    match config.text("hidden_act")? {
        None | Some("sqrelu") => {}
        Some(other) => {
            let message = format!("the activation '{}' is not supported; sqrelu is", other.escape_debug());
            return Err(config.unsupported("hidden_act", message));
        }
    }
    let widths = match config.get(VALUE_DIM) {
        Some(value) if value.is_array() => config.sizes(VALUE_DIM)?.unwrap_or_default(),
        _ => Vec::from_iter(config.size(VALUE_DIM, 1..=LARGEST_WIDTH)?),
    };
    match widths.into_iter().find(|&width| width != hidden) {
        Some(width) => {
            let message = format!("values of {width} are not supported, but of hidden_size, {hidden}");
            Err(config.unsupported(VALUE_DIM, message))
        }
        None => Ok(()),
    }
}

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let sizes = Sizes::read(config)?;
    refuse_variants(config, sizes.hidden)?;
    let base = roles.base("model.", "embeddings");
    let norm_first = flag(config, "norm_first", true)?;
    let vocabulary = config.size("vocab_size", 1..=LARGEST_VOCABULARY)?.unwrap_or(32_000);
    let layers = config.size("num_hidden_layers", 1..=LARGEST_LAYER_COUNT)?.unwrap_or(24);
    let tied = flag(config, "tie_word_embeddings", false)?;
    let outline = Outline {
        embedding: format!("{base}embeddings"),
        embedding_norm: norm_first.then(|| format!("{base}layers.0.pre_norm")),
        ..Outline::without_heads([vocabulary, sizes.hidden, layers, CONTEXT], &base, tied)
    };
    let norm = |name: &str| roles.layer_norm(name, sizes.hidden, sizes.epsilon, sizes.norm_bias);
    let layer = |index: usize| {
        let name = |part: &str| format!("{base}layers.{index}.{part}");
        let attention_norm = norm(&name("attn_norm"))?;
        let rule = delta_rule(roles, &sizes, &name("attn"), index == 0)?;
        let mlp_norm = norm(&name("ffn_norm"))?;
        let &Sizes { hidden, intermediate, .. } = &sizes;
        let mlp = ShiftedMlp {
            width: hidden,
            mix: roles.tensor(&name("ffn.x_k"), &[hidden])?,
            mlp: Mlp::Plain {
                activation: Activation::ReluSquared,
                up: roles.linear(&name("ffn.key"), intermediate, hidden, false)?,
                down: roles.linear(&name("ffn.value"), hidden, intermediate, false)?,
            },
        };
        Ok(sequential([
            pre_norm(attention_norm, Mixer::GeneralizedDeltaRule(rule)),
            pre_norm(mlp_norm, Mixer::ShiftedMlp(mlp)),
        ]))
    };
    roles.decoder(outline, norm, layer)
}

/// The mixer of `module`, of the first layer or another.
fn delta_rule(
    roles: &Roles<'_>,
    sizes: &Sizes,
    module: &str,
    is_first: bool,
) -> Result<GeneralizedDeltaRule> {
    let &Sizes { hidden, heads, head_dim, epsilon, .. } = sizes;
    let name = |part: &str| format!("{module}.{part}");
    // mlx-lm stores the numbers of each head by themselves, and GGUF files those of all together.
    let by_head = |part: &str, shape: &[usize]| -> Result<_> {
        let whole = roles.shape(&name(part)).map_or(part != "r_k", |stored| stored == [hidden]);
        let stored = if whole { vec![hidden] } else { vec![heads, head_dim] };
        Ok(roles.add(roles.dense(&name(part), &stored)?.reshaped(shape)))
    };
    let mix = |which: &str| -> Result<WeightId> {
        let index = MIXES.iter().position(|mix| *mix == which).unwrap_or_default();
        let weight = if roles.has(&name("x_x")) {
            roles.dense(&name("x_x"), &[MIXES.len(), hidden])?.rows(index, 1)
        } else {
            roles.dense(&name(&format!("x_{which}")), &[1, 1, hidden])?
        };
        Ok(roles.add(weight.reshaped([hidden])))
    };
    let direct = |which: &str| -> Result<_> {
        let projection = roles.linear(&name(&format!("{which}_proj")), hidden, hidden, false)?.into();
        Ok(ShiftedProjection { mix: mix(which)?, projection })
    };
    let narrow = |which: &str, key: &str, activation, bias| -> Result<_> {
        let lora = |part: usize| name(&format!("{which}_lora.lora.{part}"));
        // Versions of the reference compute different ranks if the settings have none.
        let rank = match roles.config.size(key, 1..=LARGEST_WIDTH)? {
            Some(rank) => Some(rank),
            None => roles.shape(&format!("{}.weight", lora(0))).and_then(|shape| shape.first().copied()),
        };
        let rank = rank.ok_or_else(|| roles.config.absent(key))?;
        Ok(Projection::Narrow {
            down: roles.linear(&lora(0), rank, hidden, false)?,
            activation,
            up: roles.linear(&lora(2), hidden, rank, bias)?,
        })
    };
    let shifted = |which: &str, key: &str, activation, bias| -> Result<_> {
        Ok(ShiftedProjection { mix: mix(which)?, projection: narrow(which, key, activation, bias)? })
    };
    let query = direct("r")?;
    let key = direct("k")?;
    let value = direct("v")?;
    let value_mix = match is_first {
        true => None,
        false => Some(narrow("v", "v_low_rank_dim", None, true)?),
    };
    Ok(GeneralizedDeltaRule {
        width: hidden,
        heads,
        head_dim,
        query,
        key,
        value,
        value_mix,
        decay: shifted("w", "decay_low_rank_dim", Some(Activation::Tanh), true)?,
        decay_bound: DECAY_BOUND,
        rate: shifted("a", "a_low_rank_dim", None, true)?,
        gate: shifted("g", "gate_low_rank_dim", Some(Activation::Sigmoid), false)?,
        removal_scale: by_head("k_k", &[hidden])?,
        rate_scale: by_head("k_a", &[hidden])?,
        bonus: by_head("r_k", &[hidden])?,
        norm: Norm {
            kind: NormKind::Layer,
            weight: Some(by_head("g_norm.weight", &[heads, head_dim])?),
            bias: Some(by_head("g_norm.bias", &[heads, head_dim])?),
            epsilon: head_dim as f32 * epsilon,
            offset: 0.0,
            width: head_dim,
        },
        output: roles.linear(&name("o_proj"), hidden, hidden, false)?,
    })
}
