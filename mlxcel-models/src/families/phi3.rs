//! Phi-3 and Phi-4: Llama with fused projections, and rotary embedding with two sets of frequencies.
//!
//! Config fields, defaults and arithmetic follow transformers' `Phi3Config` and `Phi3ForCausalLM`.

use mlxcel_core::Result;

use super::Family;
use super::blocks::{core, plain_attention};
use super::llama::{Variant, decoder_of};
use super::roles::Roles;
use super::settings::{SizeDefaults, Sizes, activation, expect_flag, window};
use crate::decoder::{Activation, Decoder};
use crate::rope::{Kinds, Partial, RopeSettings};

pub(super) const FAMILY: Family = Family::new(&["phi3"], &[32_000], describe);

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let defaults = SizeDefaults {
        vocabulary: 32_064,
        hidden: 3072,
        intermediate: 8192,
        layers: 32,
        query_heads: 32,
        kv_heads: None,
        head_dim: None,
        context: 4096,
    };
    for key in ["attention_bias", "mlp_bias", "lm_head_bias"] {
        expect_flag(config, key, false)?;
    }
    let sizes = Sizes::read(config, &defaults)?;
    let activation = activation(config, "hidden_act", Activation::Silu)?;
    let window = window(config, "sliding_window", None)?;
    let rope = RopeSettings {
        partial: Partial::Part { key: "partial_rotary_factor", default: 1.0 },
        kinds: Kinds::LongRope { original_context: 4096 },
        ..sizes.rope(config)
    }
    .read()?;
    let variant = Variant { epsilon: 1e-5, ..Variant::PLAIN };
    let attention = |_, layer: &str| {
        let (queries, keys) = (sizes.query_width(), sizes.kv_width());
        let name = |part: &str| format!("{layer}.self_attn.{part}");
        let fused = roles.fused(&name("qkv_proj"), queries + 2 * keys, sizes.hidden, false)?;
        let output = roles.linear(&name("o_proj"), sizes.hidden, queries, false)?;
        let core = core(sizes.scale(), window, Some(&rope));
        Ok(plain_attention(&sizes, fused.in_order(&sizes), output, core).into())
    };
    let shape = [sizes.hidden, sizes.intermediate];
    decoder_of(roles, &sizes, &variant, attention, |_, layer| {
        Ok(roles.fused_gated_mlp(&format!("{layer}.mlp"), shape, activation)?.into())
    })
}
