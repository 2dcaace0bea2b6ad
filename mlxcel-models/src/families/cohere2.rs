//! Cohere 2 (Command R7B, Command A): parallel attention and MLP after one layer norm; of every four layers,
//! three have a window and rotary embedding of adjacent elements, and one attends to all positions without
//! rotary embedding.
//!
//! Config fields, defaults and arithmetic follow transformers' `Cohere2Config` and `Cohere2ForCausalLM`.

use super::cohere::{DEFAULTS, variant};
use super::prelude::*;

pub(super) const FAMILY: Family = Family::new(&["cohere2"], &[255_001], describe);

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    refuse_other_structures(config)?;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let pattern = config.size("sliding_window_pattern", 1..=LARGEST_LAYER_COUNT)?.unwrap_or(4);
    let window = window(config, "sliding_window", Some(4096))?;
    let windows = sliding_windows(config, sizes.layers, window, |index| (index + 1) % pattern != 0)?;
    let rope = RopeSettings { interleaved: true, ..sizes.rope(config) }.read()?;
    variant(config)?
        .decoder(roles, &sizes, |index| core(sizes.scale(), windows[index], windows[index].and(Some(&rope))))
}

/// The errors for what the keys of published files allow beyond what transformers implements.
pub(super) fn refuse_other_structures(config: Fields<'_>) -> Result<()> {
    expect_flag(config, "use_qk_norm", false)?;
    expect_flag(config, "use_gated_activation", true)?;
    expect_flag(config, "use_parallel_block", true)?;
    expect_number(config, "rotary_pct", 1.0)?;
    expect_text(config, "position_embedding_type", "rope_gptj")?;
    expect_text(config, "order_of_interleaved_layers", "local_attn_first")
}
