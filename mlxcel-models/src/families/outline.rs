//! Embedding, final norm and head.

use mlxcel_core::Result;

use super::encoder::{CAUSAL, read_both_ways};
use super::roles::{Roles, refuse_order};
use super::settings::{Sizes, flag};
use crate::decoder::{
    Decoder, Embedding, Head, InputStates, Layer, LayerEmbeddings, Norm, OutputStates, PositionTable,
    Streams, TypeTable, WeightRef,
};

/// The parts of a decoder or an encoder that are not its layers.
#[derive(Clone, Debug)]
pub(super) struct Outline {
    pub(super) vocabulary: usize,
    pub(super) hidden: usize,
    pub(super) layers: usize,
    pub(super) context: usize,
    /// Whether the network was saved without what wraps it, a head included.
    pub(super) is_bare: bool,
    /// The module of the token embedding.
    pub(super) embedding: String,
    pub(super) embedding_scale: f32,
    /// The module of the norm of embeddings.
    pub(super) embedding_norm: Option<String>,
    pub(super) layer_embeddings: Option<LayerEmbeddings>,
    pub(super) streams: Option<Streams>,
    /// The module of learned positions, and the row of position 0.
    pub(super) positions: Option<(String, usize)>,
    /// The module of embeddings of token types, and their number.
    pub(super) types: Option<(String, usize)>,
    /// The module that projects embeddings to the hidden size, and the width of their rows.
    pub(super) projection: Option<(String, usize)>,
    /// The module of the norm after the last layer.
    pub(super) norm: Option<String>,
    /// The module of the head, if it is not the embedding. `None` for encoders, which have no head.
    pub(super) head: Option<&'static str>,
    /// Whether the head is the embedding.
    pub(super) tied: bool,
    /// Whether the head has a bias.
    pub(super) head_bias: bool,
    pub(super) logit_scale: f32,
    pub(super) logit_soft_cap: Option<f32>,
    /// Whether a model that wraps the text model scales and caps its logits too.
    pub(super) wrapper_scales: bool,
    /// The modules of the draft head, if the family's are known. Its layer has the index behind the last one.
    pub(super) draft_head: Option<DraftHeadModules>,
}

/// The modules of a draft head that its layer does not have.
#[derive(Clone, Debug)]
pub(super) struct DraftHeadModules {
    /// The norm of embeddings.
    pub(super) embedding_norm: String,
    /// The norm of the model's hidden states.
    pub(super) state_norm: String,
    /// The projection of both.
    pub(super) projection: String,
    /// The norm behind the layer.
    pub(super) norm: String,
}

impl DraftHeadModules {
    /// DeepSeek-V3's, which stand in the layer behind the last of `layers` layers.
    pub(super) fn behind(base: &str, layers: usize) -> Self {
        let name = |module: &str| format!("{base}layers.{layers}.{module}");
        Self {
            embedding_norm: name("enorm"),
            state_norm: name("hnorm"),
            projection: name("eh_proj"),
            norm: name("shared_head.norm"),
        }
    }
}

impl Outline {
    /// An outline with the modules `embed_tokens` and `norm` of `base`, and `lm_head` beside it.
    pub(super) fn new(sizes: &Sizes, base: &str, tied: bool) -> Self {
        let &Sizes { vocabulary, hidden, layers, context, .. } = sizes;
        Self::without_heads([vocabulary, hidden, layers, context], base, tied)
    }

    /// The same of a network without attention: the sizes of the vocabulary and of hidden states, the number
    /// of layers and the length of the context.
    pub(super) fn without_heads(
        [vocabulary, hidden, layers, context]: [usize; 4],
        base: &str,
        tied: bool,
    ) -> Self {
        Self {
            vocabulary,
            hidden,
            layers,
            context,
            is_bare: base.is_empty(),
            embedding: format!("{base}embed_tokens"),
            embedding_scale: 1.0,
            embedding_norm: None,
            layer_embeddings: None,
            streams: None,
            positions: None,
            types: None,
            projection: None,
            norm: Some(format!("{base}norm")),
            head: Some("lm_head"),
            tied,
            head_bias: false,
            logit_scale: 1.0,
            logit_soft_cap: None,
            wrapper_scales: false,
            draft_head: None,
        }
    }
}

impl Roles<'_> {
    /// The decoder or encoder of this outline: `norm` makes the norm of a module, `layer` the layer of an index.
    pub(super) fn decoder(
        &self,
        outline: Outline,
        norm: impl Fn(&str) -> Result<Norm>,
        layer: impl Fn(usize) -> Result<Layer>,
    ) -> Result<Decoder> {
        let Outline { vocabulary, hidden, layers, context, .. } = outline;
        let (embedding, table) = self.embedding(&outline, &norm)?;
        let element_type = self.activation_type(&table)?;
        let draft_head =
            self.is_draft_head().then(|| self.expect_draft_head(outline.draft_head.clone())).transpose()?;
        let input_states = draft_head.as_ref().map(|modules| {
            let embedding_norm = norm(&modules.embedding_norm)?;
            let state_norm = norm(&modules.state_norm)?;
            let projection = self.linear(&modules.projection, hidden, 2 * hidden, false)?;
            Ok(InputStates::Projected { embedding_norm, state_norm, projection })
        });
        let input_states = input_states.transpose()?;
        let (indices, norm_name) = match draft_head {
            Some(modules) => (layers..layers + 1, Some(modules.norm)),
            None => (0..layers, outline.norm.clone()),
        };
        // Each layer has tensors of its own, so their number is bounded by what is in the files.
        let layers = indices.map(layer).collect::<Result<Vec<_>>>()?;
        let norm = norm_name.as_deref().map(norm).transpose()?;
        let (model_type, mut notes) = self.title();
        // Where later tokens are seen, none is left to be predicted.
        let is_causal = outline.head.is_some() && flag(self.config, CAUSAL, true)?;
        let head = outline.head.filter(|_| is_causal);
        let head = head.map(|name| self.outline_head(&outline, name, table, &mut notes)).transpose()?;
        let decoder = Decoder {
            model_type,
            notes,
            vocabulary_size: vocabulary,
            hidden_size: hidden,
            context_length: context,
            element_type,
            embedding,
            head_tokens: None,
            output_states: input_states.is_some().then_some(OutputStates::Normed),
            input_states,
            layer_embeddings: outline.layer_embeddings,
            streams: outline.streams,
            layers,
            norm,
            head,
            weights: self.take_weights(),
            gguf_architecture: self.gguf_architecture(),
        };
        if is_causal { Ok(decoder) } else { read_both_ways(self.config, decoder) }
    }

    /// The embedding of an outline, and the table of tokens.
    fn embedding(
        &self,
        outline: &Outline,
        norm: impl Fn(&str) -> Result<Norm>,
    ) -> Result<(Embedding, WeightRef)> {
        let Outline { vocabulary, hidden, context, projection, .. } = outline;
        let width = projection.as_ref().map_or(*hidden, |(_, width)| *width);
        let tokens = self.matrix(&outline.embedding, *vocabulary, width)?;
        refuse_order(&tokens, "embeddings")?;
        let weight = self.add(tokens.clone());
        let table = |name: &str, rows| self.matrix(name, rows, width).map(|table| self.add(table));
        let positions = outline.positions.as_ref().map(|(name, offset)| {
            Ok(PositionTable { weight: table(name, context + offset)?, offset: *offset })
        });
        let positions = positions.transpose()?;
        let types = outline.types.as_ref();
        let types = types.map(|(name, rows)| Ok(TypeTable { weight: table(name, *rows)?, rows: *rows }));
        let types = types.transpose()?;
        let norm = outline.embedding_norm.as_deref().map(norm).transpose()?;
        let projection = projection.as_ref().map(|(name, width)| self.linear(name, *hidden, *width, true));
        let scale = outline.embedding_scale;
        let embedding =
            Embedding { weight, scale, positions, types, norm, projection: projection.transpose()? };
        Ok((embedding, tokens))
    }

    /// The head `name` of an outline, which may be the `table` of embeddings.
    fn outline_head(
        &self,
        outline: &Outline,
        name: &str,
        table: WeightRef,
        notes: &mut Vec<String>,
    ) -> Result<Head> {
        let lacks_head = self.lacks_head(name, outline.is_bare)?;
        let (tied, weight) = self.head(name, table, outline.tied || lacks_head)?;
        let bias = self.bias(name, outline.vocabulary, outline.head_bias && !lacks_head)?;
        if lacks_head && !outline.tied {
            notes.push(
                "the checkpoint has no output head: it is for embeddings, and generates nothing sensible"
                    .to_owned(),
            );
        }
        // Models that wrap a text model have a head of their own, which seldom scales or caps.
        let is_plain = self.is_wrapped() && !outline.wrapper_scales;
        let (scale, soft_cap) =
            if is_plain { (1.0, None) } else { (outline.logit_scale, outline.logit_soft_cap) };
        Ok(Head { projection: self.projection(weight, bias), tied, scale, soft_cap })
    }
}
