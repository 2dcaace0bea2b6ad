//! Embedding, final norm and head.

use mlxcel_core::Result;

use super::encoder::{CAUSAL, read_both_ways};
use super::roles::{Roles, refuse_order};
use super::settings::{Sizes, flag};
use crate::decoder::{
    Decoder, Embedding, Head, InputStates, Layer, LayerEmbeddings, Norm, OutputStates, PositionTable, Streams,
};

/// The parts of a decoder that are not its layers.
#[derive(Clone, Debug)]
pub(super) struct Outline {
    pub(super) vocabulary: usize,
    pub(super) hidden: usize,
    pub(super) layers: usize,
    pub(super) context: usize,
    /// The module of the token embedding.
    pub(super) embedding: String,
    pub(super) embedding_scale: f32,
    /// The module of the norm of embeddings.
    pub(super) embedding_norm: Option<String>,
    pub(super) layer_embeddings: Option<LayerEmbeddings>,
    pub(super) streams: Option<Streams>,
    /// The module of learned positions, and the row of position 0.
    pub(super) positions: Option<(String, usize)>,
    /// The module of the norm after the last layer.
    pub(super) norm: String,
    /// The module of the head, if it is not the embedding.
    pub(super) head: String,
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
            embedding: format!("{base}embed_tokens"),
            embedding_scale: 1.0,
            embedding_norm: None,
            layer_embeddings: None,
            streams: None,
            positions: None,
            norm: format!("{base}norm"),
            head: "lm_head".to_owned(),
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
    /// The decoder of this outline: `norm` makes the norm of a module, `layer` the layer of an index.
    pub(super) fn decoder(
        &self,
        outline: Outline,
        norm: impl Fn(&str) -> Result<Norm>,
        layer: impl Fn(usize) -> Result<Layer>,
    ) -> Result<Decoder> {
        let Outline {
            vocabulary,
            hidden,
            layers,
            context,
            embedding: embedding_name,
            embedding_scale,
            embedding_norm,
            layer_embeddings,
            streams,
            positions,
            norm: norm_name,
            head,
            tied,
            head_bias,
            logit_scale,
            logit_soft_cap,
            wrapper_scales,
            draft_head,
        } = outline;
        let table = self.matrix(&embedding_name, vocabulary, hidden)?;
        refuse_order(&table, "embeddings")?;
        let element_type = self.activation_type(&table)?;
        let weight = self.add(table.clone());
        let positions = match positions {
            Some((name, offset)) => {
                let weight = self.add(self.matrix(&name, context + offset, hidden)?);
                Some(PositionTable { weight, offset })
            }
            None => None,
        };
        let embedding_norm = embedding_norm.map(|name| norm(&name)).transpose()?;
        let embedding = Embedding {
            weight,
            scale: embedding_scale,
            positions,
            types: None,
            norm: embedding_norm,
            projection: None,
        };
        let draft_head = self.is_draft_head().then(|| self.expect_draft_head(draft_head)).transpose()?;
        let input_states = draft_head.as_ref().map(|modules| {
            let embedding_norm = norm(&modules.embedding_norm)?;
            let state_norm = norm(&modules.state_norm)?;
            let projection = self.linear(&modules.projection, hidden, 2 * hidden, false)?;
            Ok(InputStates::Projected { embedding_norm, state_norm, projection })
        });
        let input_states = input_states.transpose()?;
        let (indices, norm_name) = match draft_head {
            Some(modules) => (layers..layers + 1, modules.norm),
            None => (0..layers, norm_name),
        };
        // Each layer has tensors of its own, so their number is bounded by what is in the files.
        let layers = indices.map(layer).collect::<Result<Vec<_>>>()?;
        let norm = norm(&norm_name)?;
        let is_causal = flag(self.config, CAUSAL, true)?;
        // Models that wrap a text model have a head of their own, which seldom scales or caps.
        let is_plain = self.is_wrapped() && !wrapper_scales;
        let (scale, soft_cap) = if is_plain { (1.0, None) } else { (logit_scale, logit_soft_cap) };
        // Where later tokens are seen, none is left to be predicted.
        let lacks_head = is_causal && self.lacks_head(&head, &embedding_name)?;
        let head = if is_causal {
            let (tied, weight) = self.head(&head, table, tied || lacks_head)?;
            let bias = self.bias(&head, vocabulary, head_bias && !lacks_head)?;
            Some(Head { projection: self.projection(weight, bias), tied, scale, soft_cap })
        } else {
            None
        };
        let (model_type, mut notes) = self.title();
        if lacks_head && !tied {
            notes.push(
                "the checkpoint has no output head: it is for embeddings, and generates nothing sensible"
                    .to_owned(),
            );
        }
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
            layer_embeddings,
            streams,
            layers,
            norm: Some(norm),
            head,
            weights: self.take_weights(),
            gguf_architecture: self.gguf_architecture(),
        };
        if is_causal { Ok(decoder) } else { read_both_ways(self.config, decoder) }
    }
}
