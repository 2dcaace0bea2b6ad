//! OLMo 2: norms after each operation instead of before, and norms of queries and keys over all heads.
//!
//! Config fields, defaults and arithmetic follow transformers' `Olmo2Config` and `Olmo2ForCausalLM`.

use mlxcel_core::Result;

use super::Family;
use super::blocks::{AttentionBiases, core, post_norm, sequential};
use super::outline::Outline;
use super::roles::Roles;
use super::settings::{SizeDefaults, Sizes, activation, flag, positive};
use crate::config::Fields;
use crate::decoder::{Activation, Attention, AttentionCore, Decoder, HeadNorm, NormScope};

pub(super) const FAMILY: Family = Family::new(&["olmo2"], &[50_279], describe);

pub(super) const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 50_304,
    hidden: 4096,
    intermediate: 11_008,
    layers: 32,
    query_heads: 32,
    kv_heads: None,
    head_dim: None,
    context: 2048,
};

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let sizes = Sizes::read(roles.config, &DEFAULTS)?;
    let rope = sizes.rope(roles.config).read()?;
    let biases = biases(roles.config)?;
    decoder(roles, &sizes, biases, NormScope::Full, |_| core(sizes.scale(), None, Some(&rope)))
}

/// Which projections of attention have biases.
pub(super) fn biases(config: Fields<'_>) -> Result<AttentionBiases> {
    Ok(AttentionBiases::all(flag(config, "attention_bias", false)?))
}

/// The decoder of a checkpoint with the structure of OLMo 2; `scope` is that of the norms of queries and keys,
/// and `core` the attention of a layer.
pub(super) fn decoder(
    roles: &Roles<'_>,
    sizes: &Sizes,
    biases: AttentionBiases,
    scope: NormScope,
    core: impl Fn(usize) -> AttentionCore,
) -> Result<Decoder> {
    let config = roles.config;
    let epsilon = positive(config, "rms_norm_eps", 1e-5)?;
    let activation = activation(config, "hidden_act", Activation::Silu)?;
    let tied = flag(config, "tie_word_embeddings", false)?;
    let base = roles.base("model.", "embed_tokens");
    let norm = |name: &str, width| roles.rms_norm(name, width, epsilon);
    let head_norm = |name: &str, width| {
        let width = if scope == NormScope::Full { width } else { sizes.head_dim };
        Ok(Some(HeadNorm { norm: norm(name, width)?, scope }))
    };
    let layer = |index: usize| {
        let name = |part: &str| format!("{base}layers.{index}.{part}");
        Ok(sequential([
            post_norm(
                Attention {
                    query_norm: head_norm(&name("self_attn.q_norm"), sizes.query_width())?,
                    key_norm: head_norm(&name("self_attn.k_norm"), sizes.kv_width())?,
                    ..roles.attention(&name("self_attn"), sizes, biases, core(index))?
                },
                norm(&name("post_attention_layernorm"), sizes.hidden)?,
            ),
            post_norm(
                roles.gated_mlp(&name("mlp"), [sizes.hidden, sizes.intermediate], activation, false)?,
                norm(&name("post_feedforward_layernorm"), sizes.hidden)?,
            ),
        ]))
    };
    roles.decoder(Outline::new(sizes, &base, tied), |name| norm(name, sizes.hidden), layer)
}
