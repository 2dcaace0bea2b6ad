//! GPT-J: parallel attention and MLP after one layer norm, rotary embedding of adjacent elements in a part of
//! each head, and a head with a bias.
//!
//! Config fields, defaults and arithmetic follow transformers' `GPTJConfig` and `GPTJForCausalLM`.

use mlxcel_core::Result;

use super::blocks::{core, parallel, plain_attention, pre_norm};
use super::gpt2::sizes;
use super::outline::Outline;
use super::roles::Roles;
use super::settings::{LARGEST_HEAD_DIM, SizeDefaults, Sizes, activation, flag, positive};
use super::{Conversion, Family};
use crate::config::Fields;
use crate::decoder::{Activation, Decoder, Linear};
use crate::rope::{Rope, RopeSettings};

pub(super) const FAMILY: Family = Family {
    conversion: Conversion { renamed: &[("transformer.", "model.")], ..Conversion::USUAL },
    ..Family::new(&["gptj"], &[50_256], describe)
};

const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 50_400,
    hidden: 4096,
    intermediate: 16_384,
    layers: 28,
    query_heads: 16,
    kv_heads: None,
    head_dim: None,
    context: 2048,
};

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    decoder(roles, |name, sizes| roles.attention_inputs(name, sizes.hidden, sizes, false))
}

/// The decoder of a checkpoint with the structure of GPT-J; `inputs` makes the projections of queries, keys
/// and values of a module.
pub(super) fn decoder(
    roles: &Roles<'_>,
    inputs: impl Fn(&str, &Sizes) -> Result<[Linear; 3]>,
) -> Result<Decoder> {
    let config = roles.config;
    let sizes = sizes(config, &DEFAULTS)?;
    let (hidden, intermediate) = (sizes.hidden, sizes.intermediate);
    let epsilon = positive(config, "layer_norm_epsilon", 1e-5)?;
    let activation = activation(config, "activation_function", Activation::GeluTanh)?;
    let tied = flag(config, "tie_word_embeddings", false)?;
    let rope = rope(config, &sizes)?;

    // mlx-lm has renamed the module.
    let base = if roles.has_matrix("model.wte") { "model." } else { "transformer." };
    let base = roles.base(base, "wte");
    let norm = |name: &str| roles.layer_norm(name, hidden, epsilon, true);
    let layer = |index: usize| {
        let name = |part: &str| format!("{base}h.{index}.{part}");
        let norm = norm(&name("ln_1"))?;
        let inputs = inputs(&name("attn"), &sizes)?;
        let output = roles.linear(&name("attn.out_proj"), hidden, hidden, false)?;
        let core = core(sizes.scale(), None, Some(&rope));
        let shape = [hidden, intermediate];
        let mlp = roles.plain_mlp_of(&name("mlp"), ["fc_in", "fc_out"], shape, activation, true)?;
        let attention = plain_attention(&sizes, inputs, output, core);
        Ok(parallel([pre_norm(norm, attention), pre_norm(norm, mlp)]))
    };
    let outline = Outline {
        embedding: format!("{base}wte"),
        norm: format!("{base}ln_f"),
        head_bias: true,
        ..Outline::new(&sizes, &base, tied)
    };
    roles.decoder(outline, norm, layer)
}

/// The rotary embedding, of which the settings give the number of elements alone.
fn rope(config: Fields<'_>, sizes: &Sizes) -> Result<Rope> {
    const KEY: &str = "rotary_dim";
    if config.is_null(KEY) {
        return Err(config.unsupported(KEY, "null is not supported for this model_type".to_owned()));
    }
    let rotated = config.size(KEY, 1..=LARGEST_HEAD_DIM)?.unwrap_or(64);
    if rotated > sizes.head_dim || rotated % 2 == 1 {
        let message =
            format!("{rotated} should be an even number of the {} elements of a head", sizes.head_dim);
        return Err(config.wrong(KEY, message));
    }
    let settings = RopeSettings::new(config, rotated, sizes.context);
    RopeSettings { interleaved: true, ..settings }.read_with(None, 10_000.0)
}
