//! Gemma 3n: several residual streams of which each layer computes one (AltUp), residuals of low rank, sparse
//! gates, embeddings for each layer, and last layers that attend to the keys and values of earlier ones.
//!
//! Config fields, defaults and arithmetic follow transformers' `Gemma3nTextConfig` and `Gemma3nForCausalLM`,
//! which at inference does not use `altup_coef_clip`.

use super::gemma::embedding_scale;
use super::gemma4_text::{Kind, mixer};
use super::layer_inputs::{LayerInputs, shared_sources};
use super::prelude::*;
use crate::decoder::{AltUp, Arrangement, Laurel, Layer, Streams};
use crate::rope::LayerRopes;

pub(super) const FAMILY: Family = Family::new(&["gemma3n_text"], &[1], describe);

/// Far above any published model.
const MOST_STREAMS: usize = 64;
/// What no mean square of a stream is taken below.
const LEAST_SQUARE: f32 = 1e-5;

const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 262_400,
    hidden: 2048,
    intermediate: 16_384,
    layers: 35,
    query_heads: 8,
    kv_heads: Some(2),
    head_dim: Some(256),
    context: 32_768,
};

/// The intermediate size of each layer: one for all, or a list.
fn widths(config: Fields<'_>) -> Result<(Sizes, Vec<usize>)> {
    const KEY: &str = "intermediate_size";
    if !config.get(KEY).is_some_and(serde_json::Value::is_array) {
        let sizes = Sizes::read(config, &DEFAULTS)?;
        return Ok((sizes, vec![sizes.intermediate; sizes.layers]));
    }
    let widths = config.sizes(KEY)?.unwrap_or_default();
    let sizes = Sizes::read_others(config, &DEFAULTS, widths.iter().copied().max().unwrap_or_default())?;
    if widths.len() != sizes.layers {
        let message = format!("{} sizes are given for {} layers", widths.len(), sizes.layers);
        return Err(config.wrong(KEY, message));
    }
    match widths.iter().find(|width| !(1..=LARGEST_WIDTH).contains(*width)) {
        Some(width) => Err(config.wrong(KEY, format!("{width} should be from 1 to {LARGEST_WIDTH}"))),
        None => Ok((sizes, widths)),
    }
}

/// Of each layer, how many standard deviations above the mean gates must be; `None` where all count.
fn deviations(config: Fields<'_>, layers: usize) -> Result<Vec<Option<f32>>> {
    const KEY: &str = "activation_sparsity_pattern";
    // What GGUF files have: null for layers that keep everything.
    const DEVIATIONS: &str = "activation_sparsity_deviations";
    if let Some(given) = config.get(DEVIATIONS).and_then(serde_json::Value::as_array) {
        if given.len() != layers {
            let message = format!("{} numbers are given for {layers} layers", given.len());
            return Err(config.wrong(DEVIATIONS, message));
        }
        return Ok(given.iter().map(|number| number.as_f64().map(|number| number as f32)).collect());
    }
    let sparse = if layers > 10 { 10 } else { 0 };
    let default = || (0..layers).map(|index| if index < sparse { 0.95 } else { 0.0 }).collect();
    let parts = config.numbers(KEY)?.unwrap_or_else(default);
    if parts.len() != layers {
        return Err(config.wrong(KEY, format!("{} numbers are given for {layers} layers", parts.len())));
    }
    let of = |part: f64| match part {
        ..=0.0 => Ok(None),
        0.0..1.0 => Ok(Some(normal_quantile(part) as f32)),
        _ => Err(config.wrong(KEY, format!("{part} should be below 1"))),
    };
    parts.into_iter().map(of).collect()
}

/// The number that a normally distributed one is below with this probability, by bisection.
fn normal_quantile(probability: f64) -> f64 {
    let (mut low, mut high) = (-40.0, 40.0);
    for _ in 0..100 {
        let middle = (low + high) / 2.0;
        if below(middle) < probability { low = middle } else { high = middle }
    }
    // The last digits are roundings.
    ((low + high) / 2.0 * 1e12).round() / 1e12
}

/// The probability that a normally distributed number is below `x`: by the power series of its density, or by
/// the continued fraction of its tail.
fn below(x: f64) -> f64 {
    let density = (-x * x / 2.0).exp() / std::f64::consts::TAU.sqrt();
    if x.abs() > 4.0 {
        let fraction = (1..=60).rev().fold(x.abs(), |rest, n| x.abs() + f64::from(n) / rest);
        let tail = density / fraction;
        return if x < 0.0 { tail } else { 1.0 - tail };
    }
    let (mut term, mut sum) = (x, x);
    for n in 1..120 {
        term *= x * x / f64::from(2 * n + 1);
        sum += term;
    }
    0.5 + density * sum
}

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let (sizes, widths) = widths(config)?;
    let hidden = sizes.hidden;
    let epsilon = positive(config, "rms_norm_eps", 1e-6)?;
    let biases = AttentionBiases::read(config)?;
    let activation = activation(config, "hidden_activation", Activation::GeluTanh)?;
    let tied = flag(config, "tie_word_embeddings", true)?;
    let logit_cap = optional_positive(config, "final_logit_softcapping", Some(30.0))?;
    let default = |index| if (index + 1) % 5 == 0 { FULL } else { SLIDING };
    let types = layer_types(config, sizes.layers, &[FULL, SLIDING], default)?;
    let sources = shared_sources(config, &types, 15)?;
    let windows = layer_windows(config, &types, window(config, "sliding_window", Some(512))?)?;
    let deviations = deviations(config, sizes.layers)?;
    let rope = RopeSettings { theta: 1e6, ..sizes.rope(config) };
    let LayerRopes { full, sliding } = rope.read_by_layer_type((Some("rope_local_base_freq"), 10_000.0))?;
    let Some(inputs) = LayerInputs::read(config, 256)? else {
        let message =
            "layers without embeddings of their own are not supported for this model_type".to_owned();
        return Err(config.unsupported("hidden_size_per_layer_input", message));
    };
    let count = config.size("altup_num_inputs", 1..=MOST_STREAMS)?.unwrap_or(4);
    let active = config.size("altup_active_idx", 0..=count - 1)?.unwrap_or(0);
    let scaled = flag(config, "altup_correct_scale", true)?;
    let rank = config.size("laurel_rank", 1..=LARGEST_WIDTH)?.unwrap_or(64);

    let base = roles.base("model.", "embed_tokens");
    let norm = |name: &str| roles.rms_norm(name, hidden, epsilon);
    let linear = |name: &str, outputs, inputs| roles.linear(name, outputs, inputs, false);
    let layer_embeddings = inputs.embeddings(roles, &base, &sizes, epsilon)?;
    let projections = |name: &str| -> Result<Vec<_>> {
        (1..count).map(|index| linear(&format!("{base}{name}.{}", index - 1), hidden, hidden)).collect()
    };
    let streams = Streams::Predicted {
        projections: projections("altup_projections")?,
        merges: projections("altup_unembed_projections")?,
        least: LEAST_SQUARE,
    };
    let layer = |index: usize| {
        let layer_name = format!("{base}layers.{index}");
        let name = |part: &str| format!("{layer_name}.{part}");
        let is_full = types[index] == FULL;
        let kind = Kind {
            name: types[index],
            sizes,
            window: windows[index],
            rope: if is_full { full.clone() } else { sliding.clone() },
            keys_as_values: false,
        };
        let mixer = mixer(roles, &name("self_attn"), &kind, (biases, epsilon), sources[index])?;
        let (before, after) = (norm(&name("input_layernorm"))?, norm(&name("post_attention_layernorm"))?);
        let mut attention = between_norms(before, mixer, after);
        attention.laurel = Some(Laurel {
            left: linear(&name("laurel.linear_left"), rank, hidden)?,
            right: linear(&name("laurel.linear_right"), hidden, rank)?,
            norm: norm(&name("laurel.post_laurel_norm"))?,
            scale: std::f32::consts::FRAC_1_SQRT_2,
        });
        let gating = match deviations[index] {
            Some(deviations) => Gating::Sparse { activation, deviations },
            None => Gating::Activated(activation),
        };
        let mlp = roles.gated_mlp_of(&name("mlp"), PROJECTIONS, [hidden, widths[index]], gating, false)?;
        let mlp = between_norms(
            norm(&name("pre_feedforward_layernorm"))?,
            mlp,
            norm(&name("post_feedforward_layernorm"))?,
        );
        let (input, input_norm) = inputs.reader(roles, &layer_name, index, hidden, (activation, epsilon))?;
        let output_scale = name("altup.correct_output_scale");
        let altup = AltUp {
            active,
            norm: norm(&name("altup.router_norm"))?,
            input_scale: (hidden as f32).recip(),
            router: linear(&name("altup.modality_router"), count, hidden)?,
            prediction: linear(&name("altup.prediction_coefs"), count * count, count)?,
            correction: linear(&name("altup.correction_coefs"), count, count)?,
            output_scale: scaled.then(|| roles.tensor(&output_scale, &[hidden])).transpose()?,
            input,
            input_norm,
        };
        Ok(Layer {
            blocks: vec![attention, mlp],
            arrangement: Arrangement::Sequential,
            altup: Some(altup),
            scale: None,
        })
    };
    let outline = Outline {
        embedding_scale: embedding_scale(&sizes),
        layer_embeddings: Some(layer_embeddings),
        streams: Some(streams),
        logit_soft_cap: logit_cap,
        wrapper_scales: true,
        ..Outline::new(&sizes, &base, tied)
    };
    roles.decoder(outline, norm, layer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_tables() {
        for (probability, expected) in
            [(0.5, 0.0), (0.95, 1.644_853_627), (0.3, -0.524_400_513), (1e-7, -5.199_337_582)]
        {
            let found = normal_quantile(probability);
            assert!((found - expected).abs() < 1e-8, "{probability}: {found}");
        }
    }
}
