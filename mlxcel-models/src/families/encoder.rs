//! Encoders: networks without a head, whose attention is bidirectional.

use mlxcel_core::Result;

use super::blocks::core;
use crate::config::Fields;
use crate::decoder::{Attention, AttentionCore, AttentionMask, Decoder, Mixer, Operation};
use crate::rope::Rope;

/// Attention to all positions, or to those at a distance of less than `window`, in both directions.
pub(super) fn both_ways(scale: f32, window: Option<usize>, rope: Option<&Rope>) -> AttentionCore {
    AttentionCore { mask: AttentionMask::Bidirectional, ..core(scale, window, rope) }
}

/// The number of token types in the field `type_vocab_size`, which may be 0 if `optional`; types are bytes.
pub(super) fn token_types(config: Fields<'_>, default: usize, optional: bool) -> Result<usize> {
    Ok(config.size("type_vocab_size", usize::from(!optional)..=256)?.unwrap_or(default))
}

/// Whether attention is causal, in the settings of decoders.
pub(super) const CAUSAL: &str = "is_causal";

/// `decoder` with attention in both directions, as embedding models are made of decoders (gte-Qwen2).
pub(super) fn read_both_ways(config: Fields<'_>, mut decoder: Decoder) -> Result<Decoder> {
    for block in decoder.layers.iter_mut().flat_map(|layer| &mut layer.blocks) {
        let Operation::Mixer(mixer) = &mut block.operation else { continue };
        match mixer {
            Mixer::Attention(Attention { core, .. }) if core.mask == AttentionMask::Bidirectional => {}
            Mixer::Attention(Attention { core, .. })
                if (core.window, core.soft_cap, core.sinks, core.query_scale) == (None, None, None, None) =>
            {
                core.mask = AttentionMask::Bidirectional;
            }
            _ => {
                let message = "only plain attention can read in both directions".to_owned();
                return Err(config.unsupported(CAUSAL, message));
            }
        }
    }
    Ok(decoder)
}
