//! Phi-3 and Phi-4: Llama with fused projections, and rotary embedding with two sets of frequencies.
//!
//! Config fields, defaults and arithmetic follow transformers' `Phi3Config` and `Phi3ForCausalLM`.

use mlxcel_core::Result;

use super::Family;
use super::blocks::{core, plain_attention, pre_norm, sequential};
use super::outline::Outline;
use super::roles::Roles;
use super::settings::{SizeDefaults, Sizes, activation, expect_flag, flag, positive, window};
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
    let epsilon = positive(config, "rms_norm_eps", 1e-5)?;
    let activation = activation(config, "hidden_act", Activation::Silu)?;
    let tied = flag(config, "tie_word_embeddings", false)?;
    let window = window(config, "sliding_window", None)?;
    let rope = RopeSettings {
        partial: Partial::Part { key: "partial_rotary_factor", default: 1.0 },
        kinds: Kinds::LongRope { original_context: 4096 },
        ..sizes.rope(config)
    }
    .read()?;

    let base = roles.base("model.", "embed_tokens");
    let norm = |name: &str| roles.rms_norm(name, sizes.hidden, epsilon);
    let attention = |name: &str| {
        let (queries, keys) = (sizes.query_width(), sizes.kv_width());
        let fused = roles.fused(&format!("{name}.qkv_proj"), queries + 2 * keys, sizes.hidden, false)?;
        let inputs = [(0, queries), (queries, keys), (queries + keys, keys)];
        let inputs = inputs.map(|(start, rows)| fused.rows(start, rows));
        let output = roles.linear(&format!("{name}.o_proj"), sizes.hidden, queries, false)?;
        Ok(plain_attention(&sizes, inputs, output, core(sizes.scale(), window, Some(&rope))))
    };
    let layer = |index: usize| {
        let name = |part: &str| format!("{base}layers.{index}.{part}");
        Ok(sequential([
            pre_norm(norm(&name("input_layernorm"))?, attention(&name("self_attn"))?),
            pre_norm(
                norm(&name("post_attention_layernorm"))?,
                roles.fused_gated_mlp(&name("mlp"), [sizes.hidden, sizes.intermediate], activation)?,
            ),
        ]))
    };
    roles.decoder(Outline::new(&sizes, &base, tied), norm, layer)
}
