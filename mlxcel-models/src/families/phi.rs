//! Phi-1.5 and Phi-2: parallel attention and MLP after one layer norm, biases everywhere, and rotary
//! embedding of a part of each head.
//!
//! Config fields, defaults and arithmetic follow transformers' `PhiConfig` and `PhiForCausalLM`.

use mlxcel_core::Result;

use super::Family;
use super::blocks::{by_head, core, parallel, plain_attention, pre_norm};
use super::outline::Outline;
use super::roles::Roles;
use super::settings::{SizeDefaults, Sizes, activation, flag, positive};
use crate::decoder::{Activation, Attention, Decoder};
use crate::rope::{Partial, RopeSettings};

pub(super) const FAMILY: Family = Family::new(&["phi"], &[2], describe);

const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 51_200,
    hidden: 2048,
    intermediate: 8192,
    layers: 24,
    query_heads: 32,
    kv_heads: None,
    head_dim: None,
    context: 2048,
};

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let epsilon = positive(config, "layer_norm_eps", 1e-5)?;
    let head_norms = flag(config, "qk_layernorm", false)?;
    let activation = activation(config, "hidden_act", Activation::GeluTanh)?;
    let tied = flag(config, "tie_word_embeddings", false)?;
    let partial = Partial::Even { key: "partial_rotary_factor", default: 0.5 };
    let rope = RopeSettings { partial, ..sizes.rope(config) }.read()?;

    let base = roles.base("model.", "embed_tokens");
    let norm = |name: &str| roles.layer_norm(name, sizes.hidden, epsilon, true);
    let head_norm = |name: &str| -> Result<_> {
        if !head_norms {
            return Ok(None);
        }
        Ok(by_head(roles.layer_norm(name, sizes.head_dim, epsilon, true)?))
    };
    let layer = |index: usize| {
        let name = |part: &str| format!("{base}layers.{index}.{part}");
        let (hidden, intermediate) = (sizes.hidden, sizes.intermediate);
        let norm = norm(&name("input_layernorm"))?;
        let inputs = roles.attention_inputs(&name("self_attn"), hidden, &sizes, true)?;
        let output = roles.linear(&name("self_attn.dense"), hidden, sizes.query_width(), true)?;
        let attention = Attention {
            query_norm: head_norm(&name("self_attn.q_layernorm"))?,
            key_norm: head_norm(&name("self_attn.k_layernorm"))?,
            ..plain_attention(&sizes, inputs, output, core(sizes.scale(), None, Some(&rope)))
        };
        let shape = [hidden, intermediate];
        let mlp = roles.plain_mlp_of(&name("mlp"), ["fc1", "fc2"], shape, activation, true)?;
        Ok(parallel([pre_norm(norm, attention), pre_norm(norm, mlp)]))
    };
    let outline = Outline {
        norm: format!("{base}final_layernorm"),
        head_bias: true,
        ..Outline::new(&sizes, &base, tied)
    };
    roles.decoder(outline, norm, layer)
}
