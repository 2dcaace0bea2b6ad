//! Apertus: norms of queries and keys, and an MLP without a gate whose activation has learned parameters.
//!
//! Config fields, defaults and arithmetic follow transformers' `ApertusConfig` and `ApertusForCausalLM`.

use super::prelude::*;
use crate::decoder::Xielu;
use crate::rope::{Llama3, is_described};

pub(super) const FAMILY: Family = Family::new(&["apertus"], &[2], describe);

const DEFAULTS: SizeDefaults =
    SizeDefaults { vocabulary: 131_072, intermediate: 14_336, context: 65_536, ..SizeDefaults::LLAMA };

/// The rotary scaling where the settings have none.
const SCALING: Llama3 =
    Llama3 { factor: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original_context: 8192.0 };

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let settings = RopeSettings { theta: 12_000_000.0, ..sizes.rope(config) };
    let is_described = is_described(config, SCALING.original_context)?;
    let rope = if is_described { settings.read()? } else { settings.llama3(SCALING)? };
    let variant = Variant {
        epsilon: 1e-5,
        norms: Some(["attention_layernorm", "feedforward_layernorm"]),
        attention_biases: AttentionBiases::read(config)?,
        head_norms: HEAD_NORMS,
        mlp_form: MlpForm::Plain(UNGATED),
        ..Variant::PLAIN
    };
    let core = |_| core(sizes.scale(), None, Some(&rope));
    if config.text(variant.activation_key)?.is_some_and(|activation| activation != "xielu") {
        return variant.decoder(roles, &sizes, core);
    }
    variant.decoder_with(roles, &sizes, core, |_, layer| {
        let name = |part: &str| format!("{layer}.mlp.{part}");
        let linear = |part: &str, outputs, inputs| roles.linear(&name(part), outputs, inputs, false);
        let mlp = Mlp::Xielu {
            activation: xielu(roles, &name("act_fn"))?,
            up: linear("up_proj", sizes.intermediate, sizes.hidden)?,
            down: linear("down_proj", sizes.hidden, sizes.intermediate)?,
        };
        Ok(mlp.into())
    })
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
