//! OLMo: Llama with layer norms that have no weights, and limits of queries, keys and values.
//!
//! Config fields, defaults and arithmetic follow transformers' `OlmoConfig` and `OlmoForCausalLM`.

use mlxcel_core::Result;

use super::Family;
use super::blocks::{AttentionBiases, core};
use super::llama::{Variant, decoder};
use super::olmo2::DEFAULTS;
use super::roles::Roles;
use super::settings::{Sizes, flag, optional_positive};
use crate::decoder::{Decoder, NormKind};

pub(super) const FAMILY: Family = Family::new(&["olmo"], &[50_279], describe);

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let rope = sizes.rope(config).read()?;
    let variant = Variant {
        // Only GGUF files say it; it is the same in all.
        epsilon_key: "layer_norm_eps",
        epsilon: 1e-5,
        norm_kind: NormKind::Layer,
        bare_norms: true,
        attention_biases: AttentionBiases::all(flag(config, "attention_bias", false)?),
        clip: optional_positive(config, "clip_qkv", None)?,
        ..Variant::PLAIN
    };
    decoder(roles, &sizes, &variant, |_| core(sizes.scale(), None, Some(&rope)))
}
