//! Persimmon: layer norms, also of the queries and keys of each head, biases, rotary embedding of half of
//! each head, and a squared ReLU without a gate.
//!
//! Config fields, defaults and arithmetic follow transformers' `PersimmonConfig` and `PersimmonForCausalLM`.

use mlxcel_core::Result;

use super::Family;
use super::blocks::{by_head, core, plain_attention};
use super::llama::{Variant, decoder_of};
use super::roles::Roles;
use super::settings::{SizeDefaults, Sizes, activation, flag, positive};
use crate::decoder::{Activation, Attention, Decoder, NormKind};
use crate::rope::{Partial, RopeSettings};

pub(super) const FAMILY: Family = Family::new(&["persimmon"], &[2], describe);

const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 262_144,
    hidden: 4096,
    intermediate: 16_384,
    layers: 36,
    query_heads: 64,
    kv_heads: None,
    head_dim: None,
    context: 16_384,
};

/// The field of the epsilon of all norms.
const EPSILON: &str = "layer_norm_eps";

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let sizes = Sizes::read(config, &DEFAULTS)?.with_equal_heads(config)?;
    let (hidden, intermediate) = (sizes.hidden, sizes.intermediate);
    let head_norms = flag(config, "qk_layernorm", true)?;
    let activation = activation(config, "hidden_act", Activation::ReluSquared)?;
    let partial = Partial::Even { key: "partial_rotary_factor", default: 0.5 };
    let rope = RopeSettings { partial, ..sizes.rope(config) }.read()?;
    let variant = Variant {
        epsilon: 1e-5,
        epsilon_key: EPSILON,
        norm_kind: NormKind::Layer,
        last_norm: "final_layernorm",
        ..Variant::PLAIN
    };
    let epsilon = positive(config, EPSILON, variant.epsilon)?;
    let attention = |_, layer: &str| {
        let name = |part: &str| format!("{layer}.self_attn.{part}");
        let head_norm = |part: &str| -> Result<_> {
            if !head_norms {
                return Ok(None);
            }
            Ok(by_head(roles.layer_norm(&name(part), sizes.head_dim, epsilon, true)?))
        };
        let inputs = roles.fused(&name("query_key_value"), 3 * hidden, hidden, true)?.by_group(&sizes);
        let output = roles.linear(&name("dense"), hidden, hidden, true)?;
        let attention = Attention {
            query_norm: head_norm("q_layernorm")?,
            key_norm: head_norm("k_layernorm")?,
            ..plain_attention(&sizes, inputs, output, core(sizes.scale(), None, Some(&rope)))
        };
        Ok(attention.into())
    };
    decoder_of(roles, &sizes, &variant, attention, |_, layer| {
        let (module, names) = (format!("{layer}.mlp"), ["dense_h_to_4h", "dense_4h_to_h"]);
        Ok(roles.plain_mlp_of(&module, names, [hidden, intermediate], activation, true)?.into())
    })
}
