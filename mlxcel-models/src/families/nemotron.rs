//! Nemotron: layer norms stored minus one, squared ReLU without a gate, rotary embedding of half of each
//! head.
//!
//! Config fields, defaults and arithmetic follow transformers' `NemotronConfig` and `NemotronForCausalLM`.

use mlxcel_core::Result;

use super::Family;
use super::blocks::{AttentionBiases, core, pre_norm, sequential};
use super::outline::Outline;
use super::roles::Roles;
use super::settings::{SizeDefaults, Sizes, activation, flag, positive};
use crate::decoder::{Activation, Decoder, Norm};
use crate::rope::{Partial, RopeSettings};

pub(super) const FAMILY: Family = Family::new(&["nemotron"], &[3], describe);

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let defaults = SizeDefaults {
        vocabulary: 256_000,
        hidden: 6144,
        intermediate: 24_576,
        layers: 32,
        query_heads: 48,
        kv_heads: None,
        head_dim: None,
        context: 4096,
    };
    let sizes = Sizes::read(config, &defaults)?;
    let epsilon = positive(config, "norm_eps", 1e-5)?;
    let attention_biases = AttentionBiases::all(flag(config, "attention_bias", false)?);
    let mlp_biases = flag(config, "mlp_bias", false)?;
    let activation = activation(config, "hidden_act", Activation::ReluSquared)?;
    let tied = flag(config, "tie_word_embeddings", false)?;
    let rope = RopeSettings {
        partial: Partial::Part { key: "partial_rotary_factor", default: 0.5 },
        ..sizes.rope(config)
    }
    .read()?;

    let base = roles.base("model.", "embed_tokens");
    let norm = |name: &str| Ok(Norm { offset: 1.0, ..roles.layer_norm(name, sizes.hidden, epsilon, true)? });
    let layer = |index: usize| {
        let name = |part: &str| format!("{base}layers.{index}.{part}");
        let core = core(sizes.scale(), None, Some(&rope));
        Ok(sequential([
            pre_norm(
                norm(&name("input_layernorm"))?,
                roles.attention(&name("self_attn"), &sizes, attention_biases, core)?,
            ),
            pre_norm(
                norm(&name("post_attention_layernorm"))?,
                roles.plain_mlp(&name("mlp"), [sizes.hidden, sizes.intermediate], activation, mlp_biases)?,
            ),
        ]))
    };
    roles.decoder(Outline::new(&sizes, &base, tied), norm, layer)
}
