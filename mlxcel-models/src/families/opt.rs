//! OPT: learned positions from the third row of their table on, layer norms, biases, and a ReLU without a
//! gate.
//!
//! Config fields, defaults and arithmetic follow transformers' `OPTConfig` and `OPTForCausalLM`. OPT-350M,
//! whose norms come after operations and whose embeddings are narrower than its layers, is refused.

use super::gpt2;
use super::prelude::*;

pub(super) const FAMILY: Family = Family::new(&["opt"], &[2], describe);

const DEFAULTS: SizeDefaults = SizeDefaults { vocabulary: 50_272, context: 2048, ..gpt2::DEFAULTS };

/// The row of position 0.
const FIRST_POSITION: usize = 2;

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    expect_flag(config, "do_layer_norm_before", true)?;
    expect_flag(config, "_remove_final_layer_norm", false)?;
    let width = config.size("ffn_dim", 1..=LARGEST_WIDTH)?.unwrap_or(DEFAULTS.intermediate);
    let sizes = Sizes::read_others(config, &DEFAULTS, width)?.with_equal_heads(config)?;
    let (hidden, intermediate) = (sizes.hidden, sizes.intermediate);
    expect_number(config, "word_embed_proj_dim", hidden as f64)?;
    let biases = flag(config, "enable_bias", true)?;
    let activation = activation(config, "activation_function", Activation::Relu)?;
    let variant = Variant {
        base: "model.decoder.",
        positions: Some(("embed_positions", FIRST_POSITION)),
        epsilon: 1e-5,
        // No setting changes it.
        epsilon_key: "",
        norm_kind: NormKind::Layer,
        bare_norms: !flag(config, "layer_norm_elementwise_affine", true)?,
        norms: Some(["self_attn_layer_norm", "final_layer_norm"]),
        last_norm: "final_layer_norm",
        tied: true,
        ..Variant::PLAIN
    };
    let attention = |_, layer: &str| {
        let module = format!("{layer}.self_attn");
        let inputs = roles.attention_inputs(&module, hidden, &sizes, biases)?;
        let output = roles.linear(&format!("{module}.out_proj"), hidden, hidden, biases)?;
        Ok(plain_attention(&sizes, inputs, output, core(sizes.scale(), None, None)).into())
    };
    variant.decoder_of(roles, &sizes, attention, |_, layer| {
        Ok(roles.plain_mlp(layer, ["fc1", "fc2"], [hidden, intermediate], activation, biases)?.into())
    })
}
