//! GLM-4: norms before and after each operation, a fused gate, and rotary embedding of adjacent elements in
//! half of each head.
//!
//! Config fields, defaults and arithmetic follow transformers' `Glm4Config` and `Glm4ForCausalLM`.

use mlxcel_core::Result;

use super::Family;
use super::blocks::{AttentionBiases, core};
use super::llama::{Variant, decoder_with};
use super::roles::Roles;
use super::settings::{SizeDefaults, Sizes, activation, flag};
use crate::decoder::{Activation, Decoder};
use crate::rope::{Partial, RopeSettings};

pub(super) const FAMILY: Family = Family::new(&["glm4"], &[151_329, 151_336, 151_338], describe);

/// The norms after each operation.
pub(super) const NORMS_AFTER: Option<[&str; 2]> = Some(["post_self_attn_layernorm", "post_mlp_layernorm"]);

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let defaults = SizeDefaults {
        vocabulary: 151_552,
        hidden: 4096,
        intermediate: 13_696,
        layers: 40,
        query_heads: 32,
        kv_heads: Some(2),
        head_dim: Some(128),
        context: 131_072,
    };
    let sizes = Sizes::read(config, &defaults)?;
    let activation = activation(config, "hidden_act", Activation::Silu)?;
    let rope = RopeSettings {
        partial: Partial::Part { key: "partial_rotary_factor", default: 0.5 },
        interleaved: true,
        ..sizes.rope(config)
    }
    .read()?;
    let variant = Variant {
        epsilon: 1.5625e-7,
        norms_after: NORMS_AFTER,
        attention_biases: AttentionBiases::inputs(flag(config, "attention_bias", true)?),
        ..Variant::PLAIN
    };
    let shape = [sizes.hidden, sizes.intermediate];
    let core = |_| core(sizes.scale(), None, Some(&rope));
    decoder_with(roles, &sizes, &variant, core, |_, layer| {
        Ok(roles.fused_gated_mlp(&format!("{layer}.mlp"), shape, activation)?.into())
    })
}
