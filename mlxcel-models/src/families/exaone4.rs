//! EXAONE 4: norms after each operation, and per-head norms of queries and keys; in models with windows,
//! layers without one have no rotary embedding.
//!
//! Config fields, defaults and arithmetic follow transformers' `Exaone4Config` and `Exaone4ForCausalLM`.

use super::olmo2::NORMS_BEHIND;
use super::prelude::*;

pub(super) const FAMILY: Family = Family::new(&["exaone4"], &[2], describe);

pub(super) const DEFAULTS: SizeDefaults =
    SizeDefaults { vocabulary: 102_400, intermediate: 16_384, kv_heads: Some(32), ..SizeDefaults::LLAMA };

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let views = views(config, sizes.layers)?;
    let rope = sizes.rope(config).read()?;
    let variant = Variant { head_norms: HEAD_NORMS, ..NORMS_BEHIND };
    variant.decoder(roles, &sizes, |index| {
        let (window, rotated) = views[index];
        core(sizes.scale(), window, Some(&rope).filter(|_| rotated))
    })
}

/// Of each layer how many positions it sees, and whether it rotates queries and keys.
pub(super) fn views(config: Fields<'_>, layers: usize) -> Result<Vec<(Option<usize>, bool)>> {
    const PATTERN: &str = "sliding_window_pattern";
    let window = window(config, "sliding_window", Some(4096))?;
    let listed = config.get("layer_types").is_some();
    let pattern = match config.get(PATTERN) {
        // Letters are for the reader where types are listed too.
        Some(letters) if letters.is_string() && !listed => {
            let message = "a letter pattern is not supported; list the layers in layer_types".to_owned();
            return Err(config.unsupported(PATTERN, message));
        }
        Some(number) if !listed && window.is_some() && !number.is_string() => {
            config.size(PATTERN, 1..=LARGEST_LAYER_COUNT)?.unwrap_or(4)
        }
        _ => 4,
    };
    let is_sliding = |index| window.is_some() && (index + 1) % pattern != 0;
    let windows = sliding_windows(config, layers, window, is_sliding)?;
    Ok(windows.into_iter().map(|own| (own, window.is_none() || own.is_some())).collect())
}
