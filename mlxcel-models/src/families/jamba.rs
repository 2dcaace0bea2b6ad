//! Jamba: selective state spaces with norms of their steps, some layers of attention without positions, and
//! experts in some layers.
//!
//! Config fields, defaults and arithmetic follow transformers' `JambaConfig` and `JambaForCausalLM`.

use mlxcel_core::Result;

use super::Family;
use super::blocks::{AttentionBiases, core};
use super::convolution::taps;
use super::experts::ExpertSizes;
use super::llama::{Variant, decoder_of};
use super::roles::Roles;
use super::selective_scan::{ScanNorms, ScanSettings, rank};
use super::settings::{
    LARGEST_HEAD_DIM, LARGEST_LAYER_COUNT, SizeDefaults, Sizes, activation, flag, positive,
};
use crate::config::Fields;
use crate::decoder::{Activation, Decoder};

pub(super) const FAMILY: Family = Family::new(&["jamba"], &[2], describe);

const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 65_536,
    hidden: 4096,
    intermediate: 14_336,
    layers: 32,
    query_heads: 32,
    kv_heads: Some(8),
    head_dim: None,
    context: 262_144,
};

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
        norms: ["input_layernorm", "pre_ff_layernorm"],
        last_norm: "final_layernorm",
        ..Variant::PLAIN
    };
    let mixer = |index: usize, layer: &str| {
        if !attends(index) {
            return Ok(scan.describe(roles, &format!("{layer}.mamba"))?.into());
        }
        let core = core(sizes.scale(), None, None);
        let biases = AttentionBiases::all(false);
        Ok(roles.attention(&format!("{layer}.self_attn"), &sizes, biases, core)?.into())
    };
    decoder_of(roles, &sizes, &variant, mixer, |index, layer| {
        let module = format!("{layer}.feed_forward");
        // One expert is an MLP, which all tokens pass.
        if is_sparse(index) && experts.count > 1 {
            return roles.softmax_experts(&module, "router", experts, false, activation, || Ok(None));
        }
        Ok(roles.gated_mlp(&module, [hidden, sizes.intermediate], activation, false)?.into())
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
