//! OPT: learned positions from the third row of their table on, layer norms, biases, and a ReLU without a
//! gate.
//!
//! Config fields, defaults and arithmetic follow transformers' `OPTConfig` and `OPTForCausalLM`. OPT-350M,
//! whose norms come after operations and whose embeddings are narrower than its layers, is refused.

use mlxcel_core::Result;

use super::Family;
use super::blocks::{core, plain_attention, plain_norm, pre_norm, sequential};
use super::outline::Outline;
use super::roles::Roles;
use super::settings::{LARGEST_WIDTH, SizeDefaults, Sizes, activation, expect_flag, expect_number, flag};
use crate::decoder::{Activation, Decoder, Norm, NormKind};

pub(super) const FAMILY: Family = Family::new(&["opt"], &[2], describe);

const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 50_272,
    hidden: 768,
    intermediate: 3072,
    layers: 12,
    query_heads: 12,
    kv_heads: None,
    head_dim: None,
    context: 2048,
};

/// The row of position 0.
const FIRST_POSITION: usize = 2;

/// The epsilon of norms, which no setting changes.
const EPSILON: f32 = 1e-5;

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    expect_flag(config, "do_layer_norm_before", true)?;
    expect_flag(config, "_remove_final_layer_norm", false)?;
    let width = config.size("ffn_dim", 1..=LARGEST_WIDTH)?.unwrap_or(DEFAULTS.intermediate);
    let sizes = Sizes::read_others(config, &DEFAULTS, width)?.with_equal_heads(config)?;
    let (hidden, intermediate) = (sizes.hidden, sizes.intermediate);
    expect_number(config, "word_embed_proj_dim", hidden as f64)?;
    let biases = flag(config, "enable_bias", true)?;
    let weighted = flag(config, "layer_norm_elementwise_affine", true)?;
    let activation = activation(config, "activation_function", Activation::Relu)?;
    let tied = flag(config, "tie_word_embeddings", true)?;

    let base = roles.base("model.decoder.", "embed_tokens");
    let norm = |name: &str| match weighted {
        true => roles.layer_norm(name, hidden, EPSILON, true),
        false => Ok(Norm { kind: NormKind::Layer, ..plain_norm(hidden, EPSILON) }),
    };
    let layer = |index: usize| {
        let module = format!("{base}layers.{index}");
        let name = |part: &str| format!("{module}.{part}");
        let inputs = roles.attention_inputs(&name("self_attn"), hidden, &sizes, biases)?;
        let output = roles.linear(&name("self_attn.out_proj"), hidden, hidden, biases)?;
        let attention = plain_attention(&sizes, inputs, output, core(sizes.scale(), None, None));
        let mlp = roles.plain_mlp_of(&module, ["fc1", "fc2"], [hidden, intermediate], activation, biases)?;
        Ok(sequential([
            pre_norm(norm(&name("self_attn_layer_norm"))?, attention),
            pre_norm(norm(&name("final_layer_norm"))?, mlp),
        ]))
    };
    let outline = Outline {
        positions: Some((format!("{base}embed_positions"), FIRST_POSITION)),
        norm: format!("{base}final_layer_norm"),
        ..Outline::new(&sizes, &base, tied)
    };
    roles.decoder(outline, norm, layer)
}
