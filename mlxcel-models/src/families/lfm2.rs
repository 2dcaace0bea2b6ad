//! LFM2: short convolutions, and attention in some layers.
//!
//! Config fields, defaults and arithmetic follow transformers' `Lfm2Config` and `Lfm2ForCausalLM`.

use super::convolution::taps;
use super::prelude::*;
use crate::decoder::ShortConvolution;

pub(super) const FAMILY: Family = Family::new(&["lfm2"], &[2], describe);

pub(super) const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 65_536,
    hidden: 2560,
    intermediate: 12_288,
    kv_heads: Some(8),
    context: 128_000,
    ..SizeDefaults::LLAMA
};
/// What a layer with a convolution is called in `layer_types`.
pub(super) const CONVOLUTION: &str = "conv";

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let width = intermediate_size(config, sizes.intermediate)?;
    decoder(roles, &sizes, |_, module| feed_forward(roles, module, [sizes.hidden, width]))
}

/// The decoder of a checkpoint with LFM2's structure and tensor names; `second` makes the operation behind
/// the mixer from the index of its layer and the name of its module.
pub(super) fn decoder(
    roles: &Roles<'_>,
    sizes: &Sizes,
    second: impl Fn(usize, &str) -> Result<Operation>,
) -> Result<Decoder> {
    let config = roles.config;
    let hidden = sizes.hidden;
    let rope = RopeSettings { theta: 1_000_000.0, ..sizes.rope(config) }.read()?;
    let taps = taps(config, "conv_L_cache", 3)?;
    let bias = flag(config, "conv_bias", false)?;
    let attending = config.sizes("full_attn_idxs")?;
    let types = layer_types(config, sizes.layers, &[FULL, CONVOLUTION], |index| {
        if attending.as_ref().is_none_or(|attending| attending.contains(&index)) { FULL } else { CONVOLUTION }
    })?;
    let variant = Variant {
        epsilon: 1e-5,
        epsilon_key: "norm_eps",
        norms: Some(["operator_norm", "ffn_norm"]),
        last_norm: "embedding_norm",
        head_norms: Some((NormScope::Head, ["q_layernorm", "k_layernorm"])),
        // The published name, which transformers prefers.
        tied_key: if config.mentions("tie_embedding") { "tie_embedding" } else { "tie_word_embeddings" },
        tied: true,
        ..Variant::PLAIN
    };
    let mixer = |index: usize, layer: &str| {
        if types.get(index) != Some(&FULL) {
            return Ok(convolution(roles, &format!("{layer}.conv"), [hidden, taps], bias)?.into());
        }
        let module = format!("{layer}.self_attn");
        let inputs = roles.attention_inputs(&module, hidden, sizes, false)?;
        let output = roles.linear(&format!("{module}.out_proj"), hidden, sizes.query_width(), false)?;
        let attention = plain_attention(sizes, inputs, output, core(sizes.scale(), None, Some(&rope)));
        Ok(variant.normed(roles, sizes, &module, attention)?.into())
    };
    variant.decoder_of(roles, sizes, mixer, |index, layer| second(index, &format!("{layer}.feed_forward")))
}

/// The short convolution of `module`.
pub(super) fn convolution(
    roles: &Roles<'_>,
    module: &str,
    [hidden, taps]: [usize; 2],
    bias: bool,
) -> Result<Mixer> {
    let name = |part: &str| format!("{module}.{part}");
    Ok(Mixer::ShortConvolution(ShortConvolution {
        input: roles.linear(&name("in_proj"), 3 * hidden, hidden, bias)?,
        convolution: roles.convolution(&name("conv"), [hidden, taps], bias, None)?,
        output: roles.linear(&name("out_proj"), hidden, hidden, bias)?,
    }))
}

/// The MLP of `module`, whose projections mlx-lm has renamed for the model with experts.
pub(super) fn feed_forward(
    roles: &Roles<'_>,
    module: &str,
    [hidden, width]: [usize; 2],
) -> Result<Operation> {
    if roles.has(&format!("{module}.gate_proj.weight")) {
        return Ok(roles.gated_mlp(module, [hidden, width], Activation::Silu, false)?.into());
    }
    let gating = Gating::Activated(Activation::Silu);
    Ok(roles.gated_mlp_of(module, ["w1", "w3", "w2"], [hidden, width], gating, false)?.into())
}

/// The width of MLPs: what is `given` is that of a plain MLP with as many parameters, unless
/// `block_auto_adjust_ff_dim` is off.
fn intermediate_size(config: Fields<'_>, given: usize) -> Result<usize> {
    const MULTIPLIER: &str = "block_ffn_dim_multiplier";
    // The published name, which transformers prefers.
    let given = config.size("block_ff_dim", 1..=LARGEST_WIDTH)?.unwrap_or(given);
    if !flag(config, "block_auto_adjust_ff_dim", true)? {
        return Ok(given);
    }
    let width = 2 * given / 3;
    if config.mentions(MULTIPLIER) && config.get(MULTIPLIER).is_none() {
        return Ok(width);
    }
    let width = (config.positive(MULTIPLIER)?.unwrap_or(1.0) * width as f64) as usize;
    let multiple = config.size("block_multiple_of", 1..=LARGEST_WIDTH)?.unwrap_or(256);
    let width = width.div_ceil(multiple).saturating_mul(multiple);
    if width == 0 || width > LARGEST_WIDTH {
        return Err(config.wrong(MULTIPLIER, format!("it makes MLPs {width} wide")));
    }
    Ok(width)
}
