//! Falcon H1: attention and a state space side by side in every layer, then an MLP, with factors between
//! them.
//!
//! Config fields, defaults and arithmetic follow transformers' `FalconH1Config` and `FalconH1ForCausalLM`,
//! but for `time_step_limit`, which applies to single tokens too, as in Mamba 2. Each of its layers is two of
//! the description.

use super::bamba;
use super::prelude::*;
use super::state_space::{StateSpaceSettings, StateSpaceVariant};
use crate::decoder::StateSpaceScales;

pub(super) const FAMILY: Family = Family::new(&["falcon_h1"], &[2], describe);

const DEFAULTS: SizeDefaults = SizeDefaults { context: 8192, ..bamba::DEFAULTS };

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    const INNER: &str = "mamba_d_ssm";
    let config = roles.config;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let hidden = sizes.hidden;
    let rope = sizes.rope(config).read()?;
    let biases = AttentionBiases::read(config)?;
    let mlp_biases = flag(config, "mlp_bias", false)?;
    let epsilon = positive(config, "rms_norm_eps", 1e-5)?;
    let activation = activation(config, "hidden_act", Activation::Silu)?;
    let inner = config.size(INNER, 1..=LARGEST_WIDTH)?.or((!config.mentions(INNER)).then_some(1024));
    let [gate_scale, down_scale] = factors(config, "mlp_multipliers")?;
    let gating = match gate_scale {
        1.0 => Gating::Activated(activation),
        scale => Gating::Scaled { activation, scale },
    };
    let [z, x, b, c, dt] = factors(config, "ssm_multipliers")?;
    let state_space = StateSpaceSettings {
        variant: StateSpaceVariant {
            normed: flag(config, "mamba_rms_norm", false)?,
            norm_first: flag(config, "mamba_norm_before_gate", true)?,
            output_bias: Some(flag(config, "projectors_bias", false)?),
            scales: StateSpaceScales { gate: z, input: [x, b, c], dt },
        },
        ..StateSpaceSettings::of_hybrid(config, hidden, activation, epsilon, inner)?
    };
    let factor = |key: &str| number(config, key, 1.0);
    // A factor of keys is one of their products with queries.
    let scale = sizes.scale() * factor("key_multiplier")?;
    let scales = [
        ["ssm_in_multiplier", "ssm_out_multiplier"],
        ["attention_in_multiplier", "attention_out_multiplier"],
    ];
    let [space_scales, attention_scales] =
        scales.map(|[input, output]| Ok([factor(input)?, factor(output)?]));
    let (space_scales, attention_scales) = (space_scales?, attention_scales?);
    let scaled =
        |[input_scale, residual_scale]: [f32; 2], block| Block { input_scale, residual_scale, ..block };

    let base = roles.base("model.", "embed_tokens");
    let norm = |name: &str| roles.rms_norm(name, hidden, epsilon);
    let layer = |index: usize| {
        let name = |part: &str| format!("{base}layers.{}.{part}", index / 2);
        if index % 2 == 1 {
            let shape = [hidden, sizes.intermediate];
            let mlp = roles.gated_mlp_of(&name("feed_forward"), PROJECTIONS, shape, gating, mlp_biases)?;
            let norm = norm(&name("pre_ff_layernorm"))?;
            return Ok(sequential([scaled([1.0, down_scale], pre_norm(norm, mlp))]));
        }
        let norm = norm(&name("input_layernorm"))?;
        let core: AttentionCore = core(scale, None, Some(&rope));
        let space = state_space.describe(roles, &name("mamba"))?;
        let attention = roles.attention(&name("self_attn"), &sizes, biases, core)?;
        Ok(parallel([
            scaled(space_scales, pre_norm(norm, space)),
            scaled(attention_scales, pre_norm(norm, attention)),
        ]))
    };
    let outline = Outline {
        layers: 2 * sizes.layers,
        norm: Some(format!("{base}final_layernorm")),
        embedding_scale: factor("embedding_multiplier")?,
        logit_scale: factor("lm_head_multiplier")?,
        ..Outline::new(&sizes, &base, flag(config, "tie_word_embeddings", false)?)
    };
    roles.decoder(outline, norm, layer)
}

/// Reads a list of so many factors, which default to one.
fn factors<const N: usize>(config: Fields<'_>, key: &str) -> Result<[f32; N]> {
    let Some(factors) = config.positives(key)? else { return Ok([1.0; N]) };
    let factors: Vec<_> = factors.into_iter().map(|factor| factor as f32).collect();
    let count = factors.len();
    factors.try_into().map_err(|_| config.wrong(key, format!("{count} factors are given, not {N}")))
}
