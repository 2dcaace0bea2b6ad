//! The description of a network, which families produce and engines read.
//!
//! Its types are exhaustive on purpose: none is `#[non_exhaustive]`, and code that reads one destructures it
//! by field, so that a new field does not compile until every reader handles it.

mod attention;
mod collect;
mod compressed;
mod display;
mod features;
mod input_states;
mod layer_input;
mod mlp;
mod output_states;
mod packed;
mod parts;
mod recurrent;
mod role;
mod state;
mod streams;
mod table;
mod weight;

use std::sync::Arc;

use mlxcel_core::TokenId;

use crate::element::ElementType;

pub(crate) use attention::DISTANCE_BUCKETS;
pub use attention::{
    Attention, AttentionCore, AttentionMask, DistanceBias, HeadNorm, Indexer, LARGEST_DISTANCE,
    LatentAttention, LatentQuery, NormScope, PositionScale, SharedAttention, SparseAttention, alibi_slopes,
    distance_bucket,
};
pub use compressed::{CompressedAttention, Compressor, EntryIndexer};
pub use features::{Feature, FeatureSet};
pub use input_states::InputStates;
pub use layer_input::{LayerEmbeddings, LayerInput};
pub use mlp::{ExpertGroups, Experts, Mlp, Router, Scoring, SharedExpert};
pub use output_states::OutputStates;
pub use packed::Packed;
pub use parts::{Activation, Gating, HeadLinear, Linear, Norm, NormKind, Projection, Xielu};
pub use recurrent::{
    Convolution, Decay, DecayScope, DeltaRule, GeneralizedDeltaRule, HeadSharing, SelectiveScan, ShiftedMlp,
    ShiftedProjection, ShortConvolution, StateSpace, StateSpaceScales,
};
pub use role::WeightRole;
pub use state::{StateGroup, StateShape, StateSlot};
pub use streams::{AltUp, HyperConnection, Laurel, StreamMixer, Streams};
pub use table::{WeightId, WeightTable};
pub use weight::{Selection, WeightRef};

/// A language model, described as data: a decoder, or an encoder, whose attention is
/// [bidirectional](AttentionMask::Bidirectional).
///
/// A token's row of [`embedding`](Self::embedding) passes through [`layers`](Self::layers) and
/// [`norm`](Self::norm), which gives its hidden state, and [`head`](Self::head) computes a logit for every
/// token of the vocabulary. The description contains names and shapes of weights; their bytes come from
/// [`Checkpoint::weight`](crate::Checkpoint::weight). It prints as a summary in which equal layers are
/// grouped. [`walk`](crate::walk) interprets it.
#[derive(Clone, Debug, PartialEq)]
pub struct Decoder {
    /// The `model_type` of `config.json`, such as `llama`.
    pub model_type: String,
    /// Notes for users, one sentence each, such as that images are not supported.
    pub notes: Vec<String>,
    /// The number of token ids.
    pub vocabulary_size: usize,
    /// The width of the residual stream.
    pub hidden_size: usize,
    /// The maximum length of a sequence.
    pub context_length: usize,
    /// The activation type of the checkpoint's authors.
    pub element_type: ElementType,
    /// The weights that the other fields refer to.
    pub weights: WeightTable,
    /// The table of token embeddings.
    pub embedding: Embedding,
    /// The hidden states of another model that a draft head reads beside the tokens; `None` for other models.
    pub input_states: Option<InputStates>,
    /// Embeddings of tokens that layers read beside the residual stream, if any.
    pub layer_embeddings: Option<LayerEmbeddings>,
    /// The residual streams, if there are several. Each layer then has an [`AltUp`], or each block a
    /// [`HyperConnection`].
    pub streams: Option<Streams>,
    /// The layers, first to last.
    pub layers: Vec<Layer>,
    /// The norm after the last layer.
    pub norm: Option<Norm>,
    /// The projection to logits; `None` if the model does not generate, as encoders do not.
    pub head: Option<Head>,
    /// The token of each logit, if the head computes those of a part of the vocabulary alone, as some draft
    /// heads do: others are minus infinity. `None` if there is one for every token, in order.
    pub head_tokens: Option<Arc<[TokenId]>>,
    /// The hidden states of all tokens of a pass that are results beside the logits, as draft heads read
    /// them; `None` if there are none.
    pub output_states: Option<OutputStates>,
    /// The architecture of the GGUF file that the weights are in, whose converter reorders the rows of some;
    /// `None` for weights in safetensors files, whose rows are as published.
    pub gguf_architecture: Option<&'static str>,
}

/// The token embedding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Embedding {
    /// `[vocabulary_size, width]`, one row per token; the width is `hidden_size` unless there is a
    /// projection.
    pub weight: WeightId,
    /// A factor of the rows.
    pub scale: f32,
    /// Learned position embeddings, which are added to the rows, if any.
    pub positions: Option<PositionTable>,
    /// Embeddings of token types, which are added to the rows, if any.
    pub types: Option<TypeTable>,
    /// The norm of the sum.
    pub norm: Option<Norm>,
    /// The width of rows to `hidden_size`, after the norm, if they are of another width (Clark et al., 2020,
    /// "ELECTRA").
    pub projection: Option<Linear>,
}

/// Embeddings of token types, such as the segments of a pair of texts (Devlin et al., 2018, "BERT").
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TypeTable {
    /// `[rows, width]`.
    pub weight: WeightId,
    /// The number of types.
    pub rows: usize,
}

/// Learned position embeddings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PositionTable {
    /// `[rows, width]`.
    pub weight: WeightId,
    /// The row of position 0.
    pub offset: usize,
}

/// One layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    /// Its blocks, in order.
    pub blocks: Vec<Block>,
    /// How they are connected.
    pub arrangement: Arrangement,
    /// How the other residual streams follow, if there are several.
    pub altup: Option<AltUp>,
    /// `[1]`: a factor of the residual stream after the layer, if any (Gemma 4).
    pub scale: Option<WeightId>,
}

/// How the blocks of a layer are connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Arrangement {
    /// Each block reads the residual stream after the previous block.
    Sequential,
    /// All blocks read the layer's input, and their results are summed.
    Parallel,
}

/// `norm_output(x + residual_scale · norm_after(operation(input_scale · norm_before(x))))`.
#[derive(Clone, Debug, PartialEq)]
pub struct Block {
    /// The norm before the operation.
    pub norm_before: Option<Norm>,
    /// A factor of the operation's input.
    pub input_scale: f32,
    /// The operation.
    pub operation: Operation,
    /// The norm after the operation.
    pub norm_after: Option<Norm>,
    /// A residual of low rank in addition. Only in sequential layers.
    pub laurel: Option<Laurel>,
    /// A factor of the result before it is added to the residual stream.
    pub residual_scale: f32,
    /// The norm of the residual stream after the sum (post-norm, Vaswani et al., 2017). Only in sequential
    /// layers.
    pub norm_output: Option<Norm>,
    /// Whether the result is added to the residual stream behind the last block of the layer instead of
    /// here, so that the blocks between do not read it (Cai et al., 2024, "Shortcut-connected
    /// Expert Parallelism"; LongCat-Flash). Only in sequential layers, and without `laurel` and
    /// `norm_output`.
    pub deferred: bool,
    /// How the block reads and writes all residual streams, if there are several that blocks mix. Only in
    /// sequential layers, and without `laurel`, `norm_output` and `deferred`.
    pub connection: Option<HyperConnection>,
}

/// The operation of a [`Block`].
#[derive(Clone, Debug, PartialEq)]
pub enum Operation {
    /// Mixes positions.
    Mixer(Mixer),
    /// Processes each position separately.
    Mlp(Mlp),
    /// Processes each position separately, with the experts chosen for it.
    Experts(Experts),
    /// Reads the layer's part of [`Decoder::layer_embeddings`].
    LayerInput(LayerInput),
}

/// An operation that mixes positions and, unless it is bidirectional, keeps state between steps.
#[derive(Clone, Debug, PartialEq)]
pub enum Mixer {
    /// Self-attention; if causal, its state is the keys and values of earlier positions.
    Attention(Attention),
    /// Self-attention over the keys and values of an earlier layer.
    Shared(SharedAttention),
    /// Attention over compressed latents, which are the state.
    Latent(LatentAttention),
    /// Attention to a window and to compressed positions before it. Its state is the keys of the window, the
    /// entries that positions are compressed to, and what the next entries are made of.
    Compressed(Box<CompressedAttention>),
    /// A short gated convolution; its state is the last inputs.
    ShortConvolution(ShortConvolution),
    /// The gated delta rule, a linear recurrence.
    DeltaRule(DeltaRule),
    /// A selective state space, a linear recurrence.
    StateSpace(StateSpace),
    /// A selective state space with decays of channels, a linear recurrence.
    SelectiveScan(SelectiveScan),
    /// The generalised delta rule, a linear recurrence.
    GeneralizedDeltaRule(GeneralizedDeltaRule),
    /// An MLP that reads the token before too, which is its state.
    ShiftedMlp(ShiftedMlp),
}

/// The projection to logits: `softcap(scale · (x · weightᵀ + bias))`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Head {
    /// `hidden_size` to the [logits](Decoder::logits). A tied head's weight is the embedding's.
    pub projection: Linear,
    /// Whether the head shares the embedding's weight.
    pub tied: bool,
    /// A factor of the logits.
    pub scale: f32,
    /// Logits become `cap · tanh(logit / cap)`.
    pub soft_cap: Option<f32>,
}

impl Mixer {
    /// The rotary embeddings, that of queries first.
    pub fn ropes(&self) -> impl Iterator<Item = &crate::rope::Rope> {
        let (own, entries) = match self {
            Self::Attention(attention) => (attention.core.rope.as_ref(), None),
            Self::Shared(shared) => (shared.core.rope.as_ref(), None),
            Self::Latent(latent) => (latent.rope.as_ref(), None),
            Self::Compressed(attention) => (attention.core.rope.as_ref(), attention.compressor.as_ref()),
            Self::ShortConvolution(_)
            | Self::DeltaRule(_)
            | Self::StateSpace(_)
            | Self::SelectiveScan(_)
            | Self::GeneralizedDeltaRule(_)
            | Self::ShiftedMlp(_) => (None, None),
        };
        own.into_iter().chain(entries.map(|compressor| &compressor.rope))
    }
}

impl Decoder {
    /// All weights without duplicates, in the order of use: embedding, layers, final norm, head. A tied head
    /// shares the embedding's weight and is not repeated. The parts of a packed weight are in
    /// [`WeightRef::tensors`]. The order depends only on the description.
    pub fn weights(&self) -> impl Iterator<Item = &WeightRef> {
        self.weights.iter()
    }

    /// The weight with this id.
    pub fn weight(&self, id: WeightId) -> &WeightRef {
        self.weights.get(id)
    }

    /// Whether a token's hidden state depends on later tokens, so that a text is computed whole in one pass.
    pub fn is_bidirectional(&self) -> bool {
        self.mixers().any(|mixer| match mixer {
            Mixer::Attention(attention) => attention.core.mask == AttentionMask::Bidirectional,
            Mixer::Shared(_)
            | Mixer::Latent(_)
            | Mixer::Compressed(_)
            | Mixer::ShortConvolution(_)
            | Mixer::DeltaRule(_)
            | Mixer::StateSpace(_)
            | Mixer::SelectiveScan(_)
            | Mixer::GeneralizedDeltaRule(_)
            | Mixer::ShiftedMlp(_) => false,
        })
    }

    /// The number of token types, of which rows may have others than 0; 0 without embeddings of types.
    pub fn token_types(&self) -> usize {
        self.embedding.types.map_or(0, |types| types.rows)
    }

    /// The mixers, in the order in which [`walk`](crate::walk) visits them.
    pub fn mixers(&self) -> impl Iterator<Item = &Mixer> {
        self.layers.iter().flat_map(|layer| &layer.blocks).filter_map(|block| match &block.operation {
            Operation::Mixer(mixer) => Some(mixer),
            Operation::Mlp(_) | Operation::Experts(_) | Operation::LayerInput(_) => None,
        })
    }

    /// The number of logits that [`head`](Self::head) computes.
    pub fn logits(&self) -> usize {
        self.head_tokens.as_ref().map_or(self.vocabulary_size, |tokens| tokens.len())
    }

    /// The distinct rotary embeddings, in the order of first use.
    pub fn ropes(&self) -> Vec<&crate::rope::Rope> {
        let mut ropes = Vec::new();
        for rope in self.mixers().flat_map(Mixer::ropes) {
            if !ropes.contains(&rope) {
                ropes.push(rope);
            }
        }
        ropes
    }

    /// The sequence lengths at which rotary frequencies change.
    pub fn rope_epochs(&self) -> crate::rope::RopeEpochs {
        crate::rope::RopeEpochs::new(self.ropes())
    }

    /// The number of parameters: the values of all [`weights`](Self::weights).
    pub fn parameters(&self) -> u64 {
        self.weights().map(|weight| weight.elements() as u64).sum()
    }

    /// The bytes of all [`weights`](Self::weights) as stored, including scales and biases of quantized ones.
    pub fn weight_bytes(&self) -> u64 {
        self.weights().flat_map(WeightRef::tensors).map(|tensor| tensor.byte_len() as u64).sum()
    }

    /// About how many bytes the intermediate results of a pass over `tokens` tokens take, of which `outputs`
    /// have logits: float32 values of four times the widest projection for each token, and the logits.
    pub fn pass_bytes(&self, tokens: usize, outputs: usize) -> u64 {
        let sizes = self.weights().flat_map(|weight| weight.shape.iter().copied());
        let widest = sizes.filter(|&size| size != self.vocabulary_size).max().unwrap_or(self.hidden_size);
        let values = 4_usize.saturating_mul(tokens).saturating_mul(widest);
        let logits = outputs.saturating_mul(self.logits());
        values.saturating_add(logits).saturating_mul(size_of::<f32>()) as u64
    }
}
