//! OLMo 3: OLMo 2 with a window in three of four layers, and rotary scaling only in those without.
//!
//! Config fields, defaults and arithmetic follow transformers' `Olmo3Config` and `Olmo3ForCausalLM`, where a
//! `rope_theta` beside `rope_scaling` applies to layers without a window.

use super::olmo2::{DEFAULTS, variant};
use super::prelude::*;
use crate::rope::LayerRopes;

pub(super) const FAMILY: Family = Family::new(&["olmo3"], &[50_279], describe);

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    const THETA: f64 = 500_000.0;
    let config = roles.config;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let window = window(config, "sliding_window", Some(4096))?;
    let windows = sliding_windows(config, sizes.layers, window, |index| (index + 1) % 4 != 0)?;
    let rope = RopeSettings { theta: THETA, ..sizes.rope(config) };
    let LayerRopes { full, sliding } = rope.read_by_layer_type((None, THETA))?;
    variant(config)?.decoder(roles, &sizes, |index| {
        let rope = if windows[index].is_some() { &sliding } else { &full };
        core(sizes.scale(), windows[index], Some(rope))
    })
}
