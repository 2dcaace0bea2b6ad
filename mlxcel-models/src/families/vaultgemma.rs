//! VaultGemma: Gemma 2 without norms after operations.
//!
//! Config fields, defaults and arithmetic follow transformers' `VaultGemmaConfig` and
//! `VaultGemmaForCausalLM`.

use mlxcel_core::Result;

use super::Family;
use super::blocks::{AttentionBiases, core};
use super::gemma::embedding_scale;
use super::gemma2::DEFAULTS;
use super::llama::{Variant, decoder_with};
use super::roles::Roles;
use super::settings::{Sizes, activation, flag, optional_positive, positive, sliding_windows, window};
use crate::decoder::{Activation, AttentionCore, Decoder};

pub(super) const FAMILY: Family = Family::new(&["vaultgemma"], &[1], describe);

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let scale = positive(config, "query_pre_attn_scalar", 256.0)?.powf(-0.5);
    let soft_cap = optional_positive(config, "attn_logit_softcapping", Some(50.0))?;
    let window = window(config, "sliding_window", Some(4096))?;
    let windows = sliding_windows(config, sizes.layers, window, |index| index % 2 == 0)?;
    let activation = activation(config, "hidden_activation", Activation::GeluTanh)?;
    let rope = sizes.rope(config).read()?;
    let variant = Variant {
        norm_offset: 1.0,
        norms: ["input_layernorm", "pre_feedforward_layernorm"],
        attention_biases: AttentionBiases::all(flag(config, "attention_bias", false)?),
        tied: true,
        embedding_scale: embedding_scale(&sizes),
        logit_soft_cap: optional_positive(config, "final_logit_softcapping", Some(30.0))?,
        ..Variant::PLAIN
    };
    let core = |index: usize| AttentionCore { soft_cap, ..core(scale, windows[index], Some(&rope)) };
    let shape = [sizes.hidden, sizes.intermediate];
    decoder_with(roles, &sizes, &variant, core, |_, layer| {
        Ok(roles.gated_mlp(&format!("{layer}.mlp"), shape, activation, false)?.into())
    })
}
