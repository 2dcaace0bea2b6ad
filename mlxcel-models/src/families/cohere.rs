//! Cohere (Command R, Aya): parallel attention and MLP after one layer norm, rotary embedding of adjacent
//! elements, and in Command R+ norms of queries and keys with factors of their own for each head.
//!
//! Config fields, defaults and arithmetic follow transformers' `CohereConfig` and `CohereForCausalLM`.

use mlxcel_core::Result;

use super::Family;
use super::blocks::{AttentionBiases, by_head, core, parallel, plain_norm, pre_norm};
use super::outline::Outline;
use super::roles::Roles;
use super::settings::{SizeDefaults, Sizes, activation, flag, number, positive};
use crate::decoder::{Activation, Attention, Decoder, Norm, NormKind};
use crate::rope::RopeSettings;

pub(super) const FAMILY: Family = Family::new(&["cohere"], &[255_001], describe);

const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 256_000,
    hidden: 8192,
    intermediate: 22_528,
    layers: 40,
    query_heads: 64,
    kv_heads: None,
    head_dim: None,
    context: 8192,
};

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let epsilon = positive(config, "layer_norm_eps", 1e-5)?;
    let biases = AttentionBiases::all(flag(config, "attention_bias", false)?);
    let head_norms = flag(config, "use_qk_norm", false)?;
    let activation = activation(config, "hidden_act", Activation::Silu)?;
    let tied = flag(config, "tie_word_embeddings", true)?;
    let logit_scale = number(config, "logit_scale", 0.0625)?;
    let rope = RopeSettings { theta: 500_000.0, interleaved: true, ..sizes.rope(config) }.read()?;

    let base = roles.base("model.", "embed_tokens");
    let norm = |name: &str| roles.layer_norm(name, sizes.hidden, epsilon, false);
    let head_norm = |name: &str, heads: usize| -> Result<_> {
        if !head_norms {
            return Ok(None);
        }
        let weight = Some(roles.tensor(&format!("{name}.weight"), &[heads, sizes.head_dim])?);
        Ok(by_head(Norm { kind: NormKind::Layer, weight, ..plain_norm(sizes.head_dim, epsilon) }))
    };
    let layer = |index: usize| {
        let name = |part: &str| format!("{base}layers.{index}.{part}");
        let core = core(sizes.scale(), None, Some(&rope));
        let norm = norm(&name("input_layernorm"))?;
        let attention = Attention {
            query_norm: head_norm(&name("self_attn.q_norm"), sizes.query_heads)?,
            key_norm: head_norm(&name("self_attn.k_norm"), sizes.kv_heads)?,
            ..roles.attention(&name("self_attn"), &sizes, biases, core)?
        };
        let shape = [sizes.hidden, sizes.intermediate];
        let mlp = roles.gated_mlp(&name("mlp"), shape, activation, false)?;
        Ok(parallel([pre_norm(norm, attention), pre_norm(norm, mlp)]))
    };
    roles.decoder(Outline { logit_scale, ..Outline::new(&sizes, &base, tied) }, norm, layer)
}
