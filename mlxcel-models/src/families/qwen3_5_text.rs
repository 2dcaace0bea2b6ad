//! Qwen3.5: Qwen3-Next's layers with separate projections and MLPs.
//!
//! Config fields, defaults and arithmetic follow transformers' `Qwen3_5TextConfig` and `Qwen3_5ForCausalLM`.
//! The positions of text are the same in all sections of the rotary embedding. The multi-token prediction
//! layer, `mtp`, is the draft head.

use mlxcel_core::Result;

use super::blocks::{by_head, core, pre_norm, sequential};
use super::outline::Outline;
use super::qwen3_next::{DeltaSettings, draft_head, gated_attention, layer_module, mixer_types};
use super::roles::Roles;
use super::settings::{FULL, SizeDefaults, Sizes, activation, flag, positive};
use super::{Conversion, Family};
use crate::decoder::{Activation, Attention, Decoder, Mixer, Norm, Operation};
use crate::rope::{Partial, RopeSettings};

pub(super) const FAMILY: Family =
    Family { model_types: &["qwen3_5_text"], stop_tokens: &[], describe, conversion: Conversion::USUAL };

const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 248_320,
    hidden: 4096,
    intermediate: 12_288,
    layers: 32,
    query_heads: 16,
    kv_heads: Some(4),
    head_dim: Some(256),
    context: 32_768,
};

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let sizes = Sizes::read(roles.config, &DEFAULTS)?;
    decoder(roles, &sizes, |module, activation| {
        Ok(roles.gated_mlp(module, [sizes.hidden, sizes.intermediate], activation, false)?.into())
    })
}

/// The decoder of a checkpoint with Qwen3.5's structure and tensor names; `second` makes the operation of a
/// module.
pub(super) fn decoder(
    roles: &Roles<'_>,
    sizes: &Sizes,
    second: impl Fn(&str, Activation) -> Result<Operation>,
) -> Result<Decoder> {
    let config = roles.config;
    let partial = Partial::Part { key: "partial_rotary_factor", default: 0.25 };
    let rope = RopeSettings { partial, ..sizes.rope(config) }.read()?;
    let bias = flag(config, "attention_bias", false)?;
    let activation = activation(config, "hidden_act", Activation::Silu)?;
    let epsilon = positive(config, "rms_norm_eps", 1e-6)?;
    let tied = flag(config, "tie_word_embeddings", false)?;
    let delta = DeltaSettings::read(config, sizes.hidden, activation, epsilon)?;
    let types = mixer_types(config, sizes.layers)?;

    let base = roles.base("model.", "embed_tokens");
    // Factors of these norms are stored less one, but for GGUF files and checkpoints that mlx-lm has converted,
    // with convolutions the other way round.
    let is_reversed = || {
        (0..sizes.layers).any(|index| {
            let convolution = roles.shape(&format!("{base}layers.{index}.linear_attn.conv1d.weight"));
            convolution.is_some_and(|shape| shape.last() == Some(&1))
        })
    };
    let is_converted = roles.gguf_architecture().is_some() || is_reversed();
    let offset = if is_converted { 0.0 } else { 1.0 };
    let shifted_norm = |name: &str, width| Ok(Norm { offset, ..roles.rms_norm(name, width, epsilon)? });
    let norm = |name: &str| shifted_norm(name, sizes.hidden);
    let layer = |index: usize| {
        let module = layer_module(&base, sizes.layers, index);
        let name = |part: &str| format!("{module}.{part}");
        let input_norm = norm(&name("input_layernorm"))?;
        let mixer = if types.get(index).is_none_or(|&own| own == FULL) {
            let core = core(sizes.scale(), None, Some(&rope));
            Mixer::Attention(Attention {
                query_norm: by_head(shifted_norm(&name("self_attn.q_norm"), sizes.head_dim)?),
                key_norm: by_head(shifted_norm(&name("self_attn.k_norm"), sizes.head_dim)?),
                ..gated_attention(roles, &name("self_attn"), sizes, bias, core)?
            })
        } else {
            Mixer::DeltaRule(delta.describe(roles, &name("linear_attn"))?)
        };
        let output_norm = norm(&name("post_attention_layernorm"))?;
        let second = second(&name("mlp"), activation)?;
        Ok(sequential([pre_norm(input_norm, Operation::Mixer(mixer)), pre_norm(output_norm, second)]))
    };
    let draft_head = Some(draft_head());
    roles.decoder(Outline { draft_head, ..Outline::new(sizes, &base, tied) }, norm, layer)
}
