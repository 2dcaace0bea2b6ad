//! EuroBERT: Llama without a head, read in both directions (Boizard et al., 2025).
//!
//! Config fields, defaults and arithmetic follow transformers' `EuroBertModel`.

use mlxcel_core::Result;

use super::Family;
use super::bert;
use super::blocks::{AttentionBiases, pre_norm, sequential};
use super::encoder::{EncoderOutline, both_ways};
use super::roles::Roles;
use super::settings::{SizeDefaults, Sizes, activation, flag, positive};
use crate::decoder::{Activation, Decoder};

pub(super) const FAMILY: Family = Family::new(&["eurobert"], &[128_001], describe);

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let defaults = SizeDefaults { vocabulary: 128_256, context: 8192, ..bert::DEFAULTS };
    let sizes = Sizes::read(config, &defaults)?;
    let epsilon = positive(config, "rms_norm_eps", 1e-5)?;
    let activation = activation(config, "hidden_act", Activation::Silu)?;
    let attention_biases = AttentionBiases::all(flag(config, "attention_bias", false)?);
    let mlp_biases = flag(config, "mlp_bias", false)?;
    let rope = sizes.rope(config).read()?;

    let base = roles.base("model.", "embed_tokens");
    let norm = |name: &str| roles.rms_norm(name, sizes.hidden, epsilon);
    let layer = |index: usize| {
        let name = |part: &str| format!("{base}layers.{index}.{part}");
        let core = both_ways(sizes.scale(), None, Some(&rope));
        let attention = roles.attention(&name("self_attn"), &sizes, attention_biases, core)?;
        let mlp =
            roles.gated_mlp(&name("mlp"), [sizes.hidden, sizes.intermediate], activation, mlp_biases)?;
        Ok(sequential([
            pre_norm(norm(&name("input_layernorm"))?, attention),
            pre_norm(norm(&name("post_attention_layernorm"))?, mlp),
        ]))
    };
    let outline = EncoderOutline {
        embedding: format!("{base}embed_tokens"),
        norm: Some(format!("{base}norm")),
        ..EncoderOutline::default()
    };
    roles.encoder(&sizes, &outline, norm, layer)
}
