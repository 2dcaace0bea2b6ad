//! LFM3: LFM2 with norms after each operation, a gate for each head, windows in some layers, and a rotary
//! embedding for each type of layer.
//!
//! Config fields, defaults and arithmetic follow transformers' `Lfm3Config` and `Lfm3ForCausalLM`.

use super::convolution::taps;
use super::experts::present;
use super::lfm2::{CONVOLUTION, convolution, feed_forward};
use super::prelude::*;

pub(super) const FAMILY: Family = Family::new(&["lfm3"], &[124_900], describe);

const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 128_000,
    hidden: 2048,
    intermediate: 7680,
    layers: 24,
    query_heads: 16,
    kv_heads: Some(4),
    head_dim: Some(128),
    context: 128_000,
};

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let hidden = sizes.hidden;
    let types = layer_types(config, sizes.layers, &[FULL, SLIDING, CONVOLUTION], |index| match index % 4 {
        2 => FULL,
        0 if index > 0 => SLIDING,
        _ => CONVOLUTION,
    })?;
    let windows = layer_windows(config, &types, window(config, "sliding_window", Some(256))?)?;
    let settings = RopeSettings { partial: Partial::Unscaled, ..sizes.rope(config) };
    let rope = |layer_type: &&str| match *layer_type {
        CONVOLUTION => Ok(None),
        FULL => settings.read_type_or(FULL, |own| own.proportional(1_000_000.0, 0.5, 1.0)).map(Some),
        other => settings.read_type_or(other, |own| own.read_with(None, 10_000.0)).map(Some),
    };
    let ropes = types.iter().map(rope).collect::<Result<Vec<_>>>()?;
    let taps = taps(config, "conv_L_cache", 7)?;
    let bias = flag(config, "conv_bias", false)?;
    let is_gated = flag(config, "use_attention_gate", true)?;
    let is_sandwich = flag(config, "use_sandwich_norm", true)?;
    let variant = Variant {
        epsilon: 1e-5,
        epsilon_key: present(config, &["norm_eps", "rms_norm_eps"]),
        norms: Some(["operator_norm", "ffn_norm"]),
        norms_after: is_sandwich.then_some(["post_operator_norm", "post_ffn_norm"]),
        last_norm: "embedding_norm",
        attention_biases: AttentionBiases::read(config)?,
        head_norms: HEAD_NORMS,
        tied: true,
        ..Variant::PLAIN
    };
    let mixer = |index: usize, layer: &str| {
        let Some(rope) = &ropes[index] else {
            return Ok(convolution(roles, &format!("{layer}.conv"), [hidden, taps], bias)?.into());
        };
        // The second is the published name.
        let gates = ["g_proj", "gate_proj"].map(|part| format!("{layer}.self_attn.{part}"));
        let gate = || roles.linear(&roles.first_matrix(&gates), sizes.query_heads, hidden, false);
        let core = core(sizes.scale(), windows[index], Some(rope));
        let gate = is_gated.then(gate).transpose()?;
        Ok(Attention { gate, ..variant.attention(roles, &sizes, layer, core)? }.into())
    };
    variant.decoder_of(roles, &sizes, mixer, |_, layer| {
        feed_forward(roles, &format!("{layer}.feed_forward"), [hidden, sizes.intermediate])
    })
}
