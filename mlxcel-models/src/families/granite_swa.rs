//! Granite with windows (Granite Swash): Granite with attention sinks, a window in three of four layers, and
//! perhaps another rotary embedding, or none, in each layer.
//!
//! Config fields, defaults and arithmetic follow transformers' `GraniteSWAConfig` and
//! `GraniteSWAForCausalLM`. Its factor `sigmoid(logsumexp(scores) − sink)` of results is a sink's share of
//! the softmax.

use serde_json::Value;

use super::granite::{ATTENTION_SCALE, SENSITIVE, scaled};
use super::prelude::*;

pub(super) const FAMILY: Family = Family {
    conversion: Conversion::sensitive(SENSITIVE),
    ..Family::new(&["granite_swa"], &[100_257], describe)
};

const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 100_352,
    hidden: 2560,
    intermediate: 8192,
    layers: 24,
    query_heads: 20,
    kv_heads: Some(4),
    head_dim: None,
    context: 8192,
};

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let ropes = ropes(config, &sizes)?;
    let window = window(config, "sliding_window", Some(128))?;
    let windows = sliding_windows(config, sizes.layers, window, |index| !index.is_multiple_of(4))?;
    let scale = number(config, ATTENTION_SCALE, 1.0)?;
    let variant = Variant {
        epsilon: 1e-5,
        mlp_biases: flag(config, "mlp_bias", false)?,
        tied: true,
        ..scaled(config)?
    };
    let attention = |index: usize, layer: &str| {
        let sinks = Some(roles.tensor(&format!("{layer}.self_attn.sinks"), &[sizes.query_heads])?);
        let core = AttentionCore { sinks, ..core(scale, windows[index], ropes[index].as_ref()) };
        Ok(variant.attention(roles, &sizes, layer, core)?.into())
    };
    let mlp = variant.mlp(roles, &sizes)?;
    variant.decoder_of(roles, &sizes, attention, |_, layer| mlp(layer))
}

/// The rotary embedding of each layer, whose base `layer_rope_theta` gives before any other setting; zero
/// stands for none.
fn ropes(config: Fields<'_>, sizes: &Sizes) -> Result<Vec<Option<Rope>>> {
    const THETAS: &str = "layer_rope_theta";
    let Some(thetas) = config.numbers(THETAS)? else {
        return Ok(vec![Some(sizes.rope(config).read()?); sizes.layers]);
    };
    if thetas.len() != sizes.layers {
        let message = format!("{} numbers are given for {} layers", thetas.len(), sizes.layers);
        return Err(config.wrong(THETAS, message));
    }
    let rope = |theta: f64| {
        if theta == 0.0 {
            return Ok(None);
        }
        if theta < 0.0 {
            return Err(config.wrong(THETAS, format!("{theta} should be zero or above")));
        }
        let mut fields = config.all().clone();
        for key in ["rope_scaling", "rope_parameters"] {
            if let Some(Value::Object(settings)) = fields.get_mut(key) {
                settings.insert("rope_theta".to_owned(), theta.into());
            }
        }
        fields.insert("rope_theta".to_owned(), theta.into());
        sizes.rope(config.replaced(&fields)).read().map(Some)
    };
    thetas.into_iter().map(rope).collect()
}
