//! Gemma 3: Gemma 2 with norms of queries and keys instead of soft caps; five layers with a window for each
//! one without, with different bases of the rotary embedding. EmbeddingGemma reads texts in both directions.
//!
//! Config fields, defaults and arithmetic follow transformers' `Gemma3TextConfig` and `Gemma3ForCausalLM`,
//! which reads `attn_logit_softcapping` and does not use it.

use super::gemma2;
use super::prelude::*;
use crate::rope::LayerRopes;

pub(super) const FAMILY: Family = Family::new(&["gemma3_text"], &[1], describe);

const DEFAULTS: SizeDefaults = SizeDefaults { vocabulary: 262_208, context: 131_072, ..gemma2::DEFAULTS };

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let scale = positive(config, "query_pre_attn_scalar", 256.0)?.powf(-0.5);
    let pattern = config.size("sliding_window_pattern", 1..=LARGEST_LAYER_COUNT)?.unwrap_or(6);
    let both_ways = flag(config, "use_bidirectional_attention", false)?;
    // Half of it on either side, and the position itself.
    let size = |window: usize| if both_ways { window / 2 + 1 } else { window };
    let window = window(config, "sliding_window", Some(4096))?.map(size);
    let windows = sliding_windows(config, sizes.layers, window, |index| (index + 1) % pattern != 0)?;
    let rope = RopeSettings { theta: 1e6, ..sizes.rope(config) };
    let LayerRopes { full, sliding } = rope.read_by_layer_type((Some("rope_local_base_freq"), 10_000.0))?;
    let mask = if both_ways { AttentionMask::Bidirectional } else { AttentionMask::Causal };
    let variant = Variant { head_norms: HEAD_NORMS, ..gemma2::variant(config, &sizes, None)? };
    let decoder = variant.decoder(roles, &sizes, |index| {
        let rope = if windows[index].is_some() { &sliding } else { &full };
        AttentionCore { mask, ..core(scale, windows[index], Some(rope)) }
    })?;
    // Of a text that is read in both directions, no token is left to be predicted.
    Ok(if both_ways { Decoder { head: None, ..decoder } } else { decoder })
}
