//! Llama, and everything published as `model_type: llama` (SmolLM, TinyLlama, Yi, …).
//!
//! Config fields, defaults and arithmetic follow transformers' `LlamaConfig` and `LlamaForCausalLM`. Families that
//! differ from it by their settings alone go through [`decoder`] too.

use mlxcel_core::Result;

use super::Family;
use super::blocks::{AttentionBiases, core, pre_norm, sequential};
use super::outline::Outline;
use super::roles::Roles;
use super::settings::{SizeDefaults, Sizes, activation, flag, positive};
use crate::decoder::{Activation, AttentionCore, Decoder};
use crate::rope::RopeSettings;

pub(super) const FAMILY: Family = Family { model_types: &["llama"], stop_tokens: &[2], describe };

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let defaults = SizeDefaults {
        vocabulary: 32_000,
        hidden: 4096,
        intermediate: 11_008,
        layers: 32,
        query_heads: 32,
        kv_heads: None,
        head_dim: None,
        context: 2048,
    };
    let sizes = Sizes::read(config, &defaults)?;
    let rope = RopeSettings::new(config, sizes.head_dim, sizes.context).read()?;
    let variant = Variant {
        epsilon: 1e-6,
        attention_biases: AttentionBiases::all(flag(config, "attention_bias", false)?),
        mlp_biases: flag(config, "mlp_bias", false)?,
        tied: false,
    };
    decoder(roles, &sizes, &variant, |_| core(sizes.scale(), None, Some(&rope)))
}

/// What families of Llama's structure do otherwise.
pub(super) struct Variant {
    /// The epsilon where `rms_norm_eps` does not give one.
    pub(super) epsilon: f64,
    pub(super) attention_biases: AttentionBiases,
    pub(super) mlp_biases: bool,
    /// Whether the head is tied where `tie_word_embeddings` does not say.
    pub(super) tied: bool,
}

/// The decoder of a checkpoint with Llama's structure and tensor names; `core` is the attention of a layer.
pub(super) fn decoder(
    roles: &Roles<'_>,
    sizes: &Sizes,
    variant: &Variant,
    core: impl Fn(usize) -> AttentionCore,
) -> Result<Decoder> {
    let config = roles.config;
    let epsilon = positive(config, "rms_norm_eps", variant.epsilon)?;
    let activation = activation(config, "hidden_act", Activation::Silu)?;
    let tied = flag(config, "tie_word_embeddings", variant.tied)?;
    let base = roles.base("model.", "embed_tokens");
    let norm = |name: &str| roles.rms_norm(name, sizes.hidden, epsilon);
    let layer = |index: usize| {
        let name = |part: &str| format!("{base}layers.{index}.{part}");
        Ok(sequential([
            pre_norm(
                norm(&name("input_layernorm"))?,
                roles.attention(&name("self_attn"), sizes, variant.attention_biases, core(index))?,
            ),
            pre_norm(
                norm(&name("post_attention_layernorm"))?,
                roles.gated_mlp(
                    &name("mlp"),
                    [sizes.hidden, sizes.intermediate],
                    activation,
                    variant.mlp_biases,
                )?,
            ),
        ]))
    };
    roles.decoder(Outline::new(sizes, &base, tied), norm, layer)
}
