//! Apertus: norms of queries and keys, and an MLP without a gate whose activation has learned parameters.
//!
//! Config fields, defaults and arithmetic follow transformers' `ApertusConfig` and `ApertusForCausalLM`.

use mlxcel_core::Result;

use super::Family;
use super::blocks::{AttentionBiases, core};
use super::llama::{HEAD_NORMS, Variant, decoder_with};
use super::roles::Roles;
use super::settings::{SizeDefaults, Sizes, activation, flag};
use crate::decoder::{Activation, Decoder, Mlp, Xielu};
use crate::rope::{Llama3, RopeSettings, is_described};

pub(super) const FAMILY: Family = Family::new(&["apertus"], &[2], describe);

const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 131_072,
    hidden: 4096,
    intermediate: 14_336,
    layers: 32,
    query_heads: 32,
    kv_heads: None,
    head_dim: None,
    context: 65_536,
};

/// The rotary scaling where the settings have none.
const SCALING: Llama3 =
    Llama3 { factor: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original_context: 8192.0 };

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    const ACTIVATION: &str = "hidden_act";
    let config = roles.config;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let settings = RopeSettings { theta: 12_000_000.0, ..sizes.rope(config) };
    let is_described = is_described(config, SCALING.original_context)?;
    let rope = if is_described { settings.read()? } else { settings.llama3(SCALING)? };
    let fixed = match config.text(ACTIVATION)? {
        None | Some("xielu") => None,
        Some(_) => Some(activation(config, ACTIVATION, Activation::Silu)?),
    };
    let variant = Variant {
        epsilon: 1e-5,
        norms: ["attention_layernorm", "feedforward_layernorm"],
        attention_biases: AttentionBiases::all(flag(config, "attention_bias", false)?),
        head_norms: HEAD_NORMS,
        ..Variant::PLAIN
    };
    let shape = [sizes.hidden, sizes.intermediate];
    decoder_with(
        roles,
        &sizes,
        &variant,
        |_| core(sizes.scale(), None, Some(&rope)),
        |_, layer| {
            let module = format!("{layer}.mlp");
            let mlp = match fixed {
                Some(activation) => roles.plain_mlp(&module, shape, activation, false)?,
                None => Mlp::Xielu {
                    activation: xielu(roles, &format!("{module}.act_fn"))?,
                    up: roles.linear(
                        &format!("{module}.up_proj"),
                        sizes.intermediate,
                        sizes.hidden,
                        false,
                    )?,
                    down: roles.linear(
                        &format!("{module}.down_proj"),
                        sizes.hidden,
                        sizes.intermediate,
                        false,
                    )?,
                },
            };
            Ok(mlp.into())
        },
    )
}

fn xielu(roles: &Roles<'_>, module: &str) -> Result<Xielu> {
    // Two are scalars, and a dimension makes no difference to files of other writers.
    let parameter = |name: &str| {
        let name = format!("{module}.{name}");
        let is_scalar = roles.shape(&name).is_some_and(|shape| shape.is_empty());
        let shape: &[usize] = if is_scalar { &[] } else { &[1] };
        Ok(roles.add(roles.dense(&name, shape)?.reshaped([1])))
    };
    Ok(Xielu {
        positive: parameter("alpha_p")?,
        negative: parameter("alpha_n")?,
        beta: parameter("beta")?,
        epsilon: parameter("eps")?,
    })
}
