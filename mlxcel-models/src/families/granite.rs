//! Granite 3: Llama with multipliers of embeddings, scores, residuals and logits.
//!
//! Config fields, defaults and arithmetic follow transformers' `GraniteConfig` and `GraniteForCausalLM`.

use mlxcel_core::Result;

use super::blocks::{AttentionBiases, core, pre_norm, sequential};
use super::llama::DEFAULTS;
use super::outline::Outline;
use super::roles::Roles;
use super::settings::{Sizes, activation, flag, number, positive};
use super::{Conversion, Family};
use crate::decoder::{Activation, Block, Decoder};

pub(super) const FAMILY: Family = Family {
    model_types: &["granite"],
    stop_tokens: &[2],
    describe,
    conversion: Conversion::sensitive(&["self_attn.o_proj", "mlp.down_proj", "lm_head"]),
};

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let epsilon = positive(config, "rms_norm_eps", 1e-6)?;
    let biases = AttentionBiases::all(flag(config, "attention_bias", false)?);
    let mlp_biases = flag(config, "mlp_bias", false)?;
    let activation = activation(config, "hidden_act", Activation::Silu)?;
    let tied = flag(config, "tie_word_embeddings", false)?;
    let scale = number(config, "attention_multiplier", 1.0)?;
    let residual_scale = number(config, "residual_multiplier", 1.0)?;
    let rope = sizes.rope(config).read()?;

    let base = roles.base("model.", "embed_tokens");
    let norm = |name: &str| roles.rms_norm(name, sizes.hidden, epsilon);
    let layer = |index: usize| {
        let name = |part: &str| format!("{base}layers.{index}.{part}");
        let attention = pre_norm(
            norm(&name("input_layernorm"))?,
            roles.attention(&name("self_attn"), &sizes, biases, core(scale, None, Some(&rope)))?,
        );
        let mlp = pre_norm(
            norm(&name("post_attention_layernorm"))?,
            roles.gated_mlp(&name("mlp"), [sizes.hidden, sizes.intermediate], activation, mlp_biases)?,
        );
        Ok(sequential([attention, mlp].map(|block| Block { residual_scale, ..block })))
    };
    let outline = Outline {
        embedding_scale: number(config, "embedding_multiplier", 1.0)?,
        logit_scale: 1.0 / positive(config, "logits_scaling", 1.0)?,
        ..Outline::new(&sizes, &base, tied)
    };
    roles.decoder(outline, norm, layer)
}
