//! SmolLM3: Llama with some layers without rotary embedding.
//!
//! Config fields, defaults and arithmetic follow transformers' `SmolLM3Config` and `SmolLM3ForCausalLM`.

use super::prelude::*;

pub(super) const FAMILY: Family = Family::new(&["smollm3"], &[128_001], describe);

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let defaults = SizeDefaults {
        vocabulary: 128_256,
        hidden: 2048,
        layers: 36,
        query_heads: 16,
        kv_heads: Some(4),
        context: 32_768,
        ..SizeDefaults::LLAMA
    };
    let sizes = Sizes::read(config, &defaults)?;
    let rotated = rotated_layers(config, sizes.layers)?;
    let window = window(config, "sliding_window", None)?;
    let sliding = flag(config, "use_sliding_window", false)? && window.is_some();
    let windows = sliding_windows(config, sizes.layers, window, |index| sliding && !rotated[index])?;
    let rope = RopeSettings { theta: 2e6, ..sizes.rope(config) }.read()?;
    let variant = Variant {
        attention_biases: AttentionBiases::read(config)?,
        mlp_biases: flag(config, "mlp_bias", false)?,
        tied: true,
        ..Variant::PLAIN
    };
    variant.decoder(roles, &sizes, |index| {
        core(sizes.scale(), windows[index], Some(&rope).filter(|_| rotated[index]))
    })
}

/// Which layers rotate queries and keys: those with a number other than zero in `no_rope_layers`, whatever
/// its name, or all but one of every `no_rope_layer_interval`.
fn rotated_layers(config: Fields<'_>, layers: usize) -> Result<Vec<bool>> {
    const KEY: &str = "no_rope_layers";
    let Some(numbers) = config.sizes(KEY)? else {
        let interval = config.size("no_rope_layer_interval", 1..=LARGEST_LAYER_COUNT)?.unwrap_or(4);
        return Ok((1..=layers).map(|number| number % interval != 0).collect());
    };
    if numbers.len() < layers {
        return Err(config.wrong(KEY, format!("{} numbers are given for {layers} layers", numbers.len())));
    }
    Ok(numbers.into_iter().map(|number| number != 0).collect())
}
