//! LFM2: short convolutions, and attention in some layers.
//!
//! Config fields, defaults and arithmetic follow transformers' `Lfm2Config` and `Lfm2ForCausalLM`.

use mlxcel_core::Result;

use super::Family;
use super::blocks::{by_head, core, plain_attention, pre_norm, sequential};
use super::convolution::taps;
use super::outline::Outline;
use super::roles::Roles;
use super::settings::{FULL, LARGEST_WIDTH, SizeDefaults, Sizes, flag, layer_types, positive};
use crate::config::Fields;
use crate::decoder::{
    Activation, Attention, AttentionCore, Decoder, Gating, Mixer, Mlp, Operation, ShortConvolution,
};
use crate::rope::RopeSettings;

pub(super) const FAMILY: Family = Family::new(&["lfm2"], &[2], describe);

pub(super) const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 65_536,
    hidden: 2560,
    intermediate: 12_288,
    layers: 32,
    query_heads: 32,
    kv_heads: Some(8),
    head_dim: None,
    context: 128_000,
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
    let epsilon = positive(config, "norm_eps", 1e-5)?;
    let taps = taps(config, "conv_L_cache", 3)?;
    let bias = flag(config, "conv_bias", false)?;
    // The second is the published name, which transformers prefers.
    let tied = flag(config, "tie_embedding", flag(config, "tie_word_embeddings", true)?)?;
    let attending = config.sizes("full_attn_idxs")?;
    let types = layer_types(config, sizes.layers, &[FULL, CONVOLUTION], |index| {
        if attending.as_ref().is_none_or(|attending| attending.contains(&index)) { FULL } else { CONVOLUTION }
    })?;

    let base = roles.base("model.", "embed_tokens");
    let norm = |name: &str| roles.rms_norm(name, hidden, epsilon);
    let layer = |index: usize| {
        let name = |part: &str| format!("{base}layers.{index}.{part}");
        let input_norm = norm(&name("operator_norm"))?;
        let mixer = if types.get(index) == Some(&FULL) {
            let core = core(sizes.scale(), None, Some(&rope));
            Mixer::Attention(attention(roles, &name("self_attn"), sizes, epsilon, core)?)
        } else {
            convolution(roles, &name("conv"), [hidden, taps], bias)?
        };
        let output_norm = norm(&name("ffn_norm"))?;
        let second = second(index, &name("feed_forward"))?;
        Ok(sequential([pre_norm(input_norm, Operation::Mixer(mixer)), pre_norm(output_norm, second)]))
    };
    let outline = Outline { norm: format!("{base}embedding_norm"), ..Outline::new(sizes, &base, tied) };
    roles.decoder(outline, norm, layer)
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
    let linear = |part, outputs, inputs| roles.linear(&format!("{module}.{part}"), outputs, inputs, false);
    let mlp = Mlp::Gated {
        gating: Gating::Activated(Activation::Silu),
        gate: linear("w1", width, hidden)?,
        up: linear("w3", width, hidden)?,
        norm: None,
        down: linear("w2", hidden, width)?,
    };
    Ok(mlp.into())
}

fn attention(
    roles: &Roles<'_>,
    module: &str,
    sizes: &Sizes,
    epsilon: f32,
    core: AttentionCore,
) -> Result<Attention> {
    let linear = |part, outputs, inputs| roles.linear(&format!("{module}.{part}"), outputs, inputs, false);
    let head_norm =
        |part| Ok(by_head(roles.rms_norm(&format!("{module}.{part}"), sizes.head_dim, epsilon)?));
    let (hidden, queries, keys) = (sizes.hidden, sizes.query_width(), sizes.kv_width());
    let inputs = [
        linear("q_proj", queries, hidden)?,
        linear("k_proj", keys, hidden)?,
        linear("v_proj", keys, hidden)?,
    ];
    let output = linear("out_proj", hidden, queries)?;
    let (query_norm, key_norm) = (head_norm("q_layernorm")?, head_norm("k_layernorm")?);
    Ok(Attention { query_norm, key_norm, ..plain_attention(sizes, inputs, output, core) })
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
