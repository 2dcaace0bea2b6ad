//! GLM-4: norms before and after each operation, a fused gate, and rotary embedding of adjacent elements in
//! half of each head.
//!
//! Config fields, defaults and arithmetic follow transformers' `Glm4Config` and `Glm4ForCausalLM`.

use mlxcel_core::Result;

use super::Family;
use super::blocks::{AttentionBiases, between_norms, core, sequential};
use super::outline::Outline;
use super::roles::Roles;
use super::settings::{SizeDefaults, Sizes, activation, flag, positive};
use crate::decoder::{Activation, Decoder};
use crate::rope::{Partial, RopeSettings};

pub(super) const FAMILY: Family = Family::new(&["glm4"], &[151_329, 151_336, 151_338], describe);

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
    let epsilon = positive(config, "rms_norm_eps", 1.5625e-7)?;
    let biases = AttentionBiases::inputs(flag(config, "attention_bias", true)?);
    let activation = activation(config, "hidden_act", Activation::Silu)?;
    let tied = flag(config, "tie_word_embeddings", false)?;
    let rope = RopeSettings {
        partial: Partial::Part { key: "partial_rotary_factor", default: 0.5 },
        interleaved: true,
        ..sizes.rope(config)
    }
    .read()?;

    let base = roles.base("model.", "embed_tokens");
    let norm = |name: &str| roles.rms_norm(name, sizes.hidden, epsilon);
    let layer = |index: usize| {
        let name = |part: &str| format!("{base}layers.{index}.{part}");
        let core = core(sizes.scale(), None, Some(&rope));
        Ok(sequential([
            between_norms(
                norm(&name("input_layernorm"))?,
                roles.attention(&name("self_attn"), &sizes, biases, core)?,
                norm(&name("post_self_attn_layernorm"))?,
            ),
            between_norms(
                norm(&name("post_attention_layernorm"))?,
                roles.fused_gated_mlp(&name("mlp"), [sizes.hidden, sizes.intermediate], activation)?,
                norm(&name("post_mlp_layernorm"))?,
            ),
        ]))
    };
    roles.decoder(Outline::new(&sizes, &base, tied), norm, layer)
}
