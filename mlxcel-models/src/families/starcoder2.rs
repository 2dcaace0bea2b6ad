//! StarCoder2: layer norms, plain MLPs, biases, a sliding window.
//!
//! Config fields, defaults and arithmetic follow transformers' `Starcoder2Config` and
//! `Starcoder2ForCausalLM`.

use mlxcel_core::Result;

use super::blocks::{AttentionBiases, core, pre_norm, sequential};
use super::outline::Outline;
use super::roles::Roles;
use super::settings::{SizeDefaults, Sizes, activation, expect_text, flag, positive, window};
use super::{Conversion, Family};
use crate::decoder::{Activation, Decoder, Mlp};

pub(super) const FAMILY: Family =
    Family { model_types: &["starcoder2"], stop_tokens: &[50_256], describe, conversion: Conversion::USUAL };

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let defaults = SizeDefaults {
        vocabulary: 49_152,
        hidden: 3072,
        intermediate: 12_288,
        layers: 30,
        query_heads: 24,
        kv_heads: Some(2),
        head_dim: None,
        context: 4096,
    };
    expect_text(config, "norm_type", "layer_norm")?;
    expect_text(config, "mlp_type", "default")?;
    let sizes = Sizes::read(config, &defaults)?;
    let epsilon = positive(config, "norm_epsilon", 1e-5)?;
    let biases = flag(config, "use_bias", true)?;
    let activation = activation(config, "hidden_act", Activation::GeluTanh)?;
    let tied = flag(config, "tie_word_embeddings", true)?;
    let window = window(config, "sliding_window", None)?;
    let rope = sizes.rope(config).read()?;

    let base = roles.base("model.", "embed_tokens");
    let norm = |name: &str| roles.layer_norm(name, sizes.hidden, epsilon, true);
    let layer = |index: usize| {
        let name = |part: &str| format!("{base}layers.{index}.{part}");
        let core = core(sizes.scale(), window, Some(&rope));
        Ok(sequential([
            pre_norm(
                norm(&name("input_layernorm"))?,
                roles.attention(&name("self_attn"), &sizes, AttentionBiases::all(biases), core)?,
            ),
            pre_norm(
                norm(&name("post_attention_layernorm"))?,
                Mlp::Plain {
                    activation,
                    up: roles.linear(&name("mlp.c_fc"), sizes.intermediate, sizes.hidden, biases)?,
                    down: roles.linear(&name("mlp.c_proj"), sizes.hidden, sizes.intermediate, biases)?,
                },
            ),
        ]))
    };
    roles.decoder(Outline::new(&sizes, &base, tied), norm, layer)
}
