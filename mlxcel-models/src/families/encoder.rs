//! Encoders: networks without a head, whose attention is bidirectional.

use mlxcel_core::Result;

use super::blocks::core;
use super::roles::{Roles, refuse_order};
use super::settings::Sizes;
use crate::config::Fields;
use crate::decoder::{
    Attention, AttentionCore, AttentionMask, Decoder, Embedding, Layer, Mixer, Norm, Operation,
    PositionTable, TypeTable,
};
use crate::rope::Rope;

/// The parts of an encoder that are not its layers.
#[derive(Clone, Debug, Default)]
pub(super) struct EncoderOutline {
    /// The module of the token embedding.
    pub(super) embedding: String,
    /// The module of learned positions, and the row of position 0.
    pub(super) positions: Option<(String, usize)>,
    /// The module of embeddings of token types, and their number.
    pub(super) types: Option<(String, usize)>,
    /// The module of the norm of embeddings.
    pub(super) embedding_norm: Option<String>,
    /// The module that projects embeddings to the hidden size, and the width of their rows.
    pub(super) projection: Option<(String, usize)>,
    /// The module of the norm after the last layer.
    pub(super) norm: Option<String>,
}

impl Roles<'_> {
    /// The encoder of this outline: `norm` makes the norm of a module, `layer` the layer of an index.
    pub(super) fn encoder(
        &self,
        sizes: &Sizes,
        outline: &EncoderOutline,
        norm: impl Fn(&str) -> Result<Norm>,
        layer: impl Fn(usize) -> Result<Layer>,
    ) -> Result<Decoder> {
        let &Sizes { vocabulary, hidden, layers, context, .. } = sizes;
        let EncoderOutline { embedding, positions, types, embedding_norm, projection, norm: last } = outline;
        let width = projection.as_ref().map_or(hidden, |(_, width)| *width);
        let table = self.matrix(embedding, vocabulary, width)?;
        refuse_order(&table, "embeddings")?;
        let element_type = self.activation_type(&table)?;
        let weight = self.add(table);
        let table = |name: &str, rows| self.matrix(name, rows, width).map(|table| self.add(table));
        let positions = positions.as_ref().map(|(name, offset)| {
            Ok(PositionTable { weight: table(name, context + offset)?, offset: *offset })
        });
        let positions = positions.transpose()?;
        let types =
            types.as_ref().map(|(name, rows)| Ok(TypeTable { weight: table(name, *rows)?, rows: *rows }));
        let types = types.transpose()?;
        let embedding_norm = embedding_norm.as_deref().map(&norm).transpose()?;
        let projection = projection.as_ref().map(|(name, width)| self.linear(name, hidden, *width, true));
        let projection = projection.transpose()?;
        let embedding = Embedding { weight, scale: 1.0, positions, types, norm: embedding_norm, projection };
        // Each layer has tensors of its own, so their number is bounded by what is in the files.
        let layers = (0..layers).map(layer).collect::<Result<Vec<_>>>()?;
        let norm = last.as_deref().map(&norm).transpose()?;
        let (model_type, notes) = self.title();
        Ok(Decoder {
            model_type,
            notes,
            vocabulary_size: vocabulary,
            hidden_size: hidden,
            context_length: context,
            element_type,
            embedding,
            input_states: None,
            layer_embeddings: None,
            streams: None,
            layers,
            norm,
            head: None,
            weights: self.take_weights(),
            head_tokens: None,
            output_states: None,
            gguf_architecture: self.gguf_architecture(),
        })
    }
}

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
