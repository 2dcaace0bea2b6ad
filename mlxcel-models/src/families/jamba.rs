//! Jamba: selective state spaces with norms of their steps, some layers of attention without positions, and
//! experts in some layers.
//!
//! Config fields, defaults and arithmetic follow transformers' `JambaConfig` and `JambaForCausalLM`.

use super::convolution::taps;
use super::experts::ExpertSizes;
use super::mistral;
use super::prelude::*;
use super::selective_scan::{ScanNorms, ScanSettings, rank};

pub(super) const FAMILY: Family = Family::new(&["jamba"], &[2], describe);

const DEFAULTS: SizeDefaults = SizeDefaults { vocabulary: 65_536, context: 262_144, ..mistral::DEFAULTS };

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let hidden = sizes.hidden;
    let epsilon = positive(config, "rms_norm_eps", 1e-6)?;
    let activation = activation(config, "hidden_act", Activation::Silu)?;
    let attends = periodic(config, ["attn_layer_period", "attn_layer_offset"], [8, 4])?;
    let is_sparse = periodic(config, ["expert_layer_period", "expert_layer_offset"], [2, 1])?;
    let experts = ExpertSizes::read(config, &sizes, &["num_experts", "num_local_experts"], 1, [16, 2])?;
    let scan = ScanSettings {
        hidden,
        channels: hidden * config.size("mamba_expand", 1..=64)?.unwrap_or(2),
        state_size: config.size("mamba_d_state", 1..=LARGEST_HEAD_DIM)?.unwrap_or(16),
        rank: rank(config, "mamba_dt_rank", hidden)?,
        taps: taps(config, "mamba_d_conv", 4)?,
        convolution_bias: flag(config, "mamba_conv_bias", true)?,
        biases: flag(config, "mamba_proj_bias", false)?,
        activation,
        norms: ScanNorms::Weighted(epsilon),
    };
    let variant = Variant {
        norms: Some(["input_layernorm", "pre_ff_layernorm"]),
        last_norm: "final_layernorm",
        mlp: "feed_forward",
        ..Variant::PLAIN
    };
    let mixer = |index: usize, layer: &str| {
        if !attends(index) {
            return Ok(scan.describe(roles, &format!("{layer}.mamba"))?.into());
        }
        Ok(variant.attention(roles, &sizes, layer, core(sizes.scale(), None, None))?.into())
    };
    let mlp = variant.mlp(roles, &sizes)?;
    variant.decoder_of(roles, &sizes, mixer, |index, layer| {
        // One expert is an MLP, which all tokens pass.
        if !is_sparse(index) || experts.count == 1 {
            return mlp(layer);
        }
        let module = format!("{layer}.feed_forward");
        roles.softmax_experts(&module, "router", experts, false, activation, None)
    })
}

/// Reads which layers are one of a period: those whose index has this remainder.
fn periodic(
    config: Fields<'_>,
    [period_key, offset_key]: [&str; 2],
    [period, offset]: [usize; 2],
) -> Result<impl Fn(usize) -> bool> {
    let period = config.size(period_key, 1..=LARGEST_LAYER_COUNT)?.unwrap_or(period);
    let offset = config.size(offset_key, 0..=LARGEST_LAYER_COUNT)?.unwrap_or(offset);
    if offset >= period {
        return Err(config.wrong(offset_key, format!("{offset} should be below {period_key}, {period}")));
    }
    Ok(move |index: usize| index % period == offset)
}
