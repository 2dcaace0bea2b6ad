//! The description of a decoder network that every family maps to and every engine reads.
//!
//! Its types are open on purpose: none is `#[non_exhaustive]`, and code that reads one takes it apart by name, so that
//! a part that is added later cannot be skipped in silence.

mod attention;
mod display;
mod features;
mod mlp;
mod parts;
mod recurrent;
mod role;
mod state;
mod table;
mod weight;

use crate::element::ElementType;

pub use attention::{
    Attention, AttentionCore, HeadNorm, LatentAttention, LatentQuery, NormScope, PositionScale,
};
pub use features::{Feature, FeatureSet};
pub use mlp::{ExpertGroups, Experts, Mlp, Router, Scoring, SharedExpert};
pub use parts::{Activation, Gating, HeadLinear, Linear, Norm, NormKind};
pub use recurrent::{Convolution, DeltaRule, ShortConvolution, StateSpace};
pub use role::WeightRole;
pub use state::{StateGroup, StateShape, StateSlot};
pub use table::{WeightId, WeightTable};
pub use weight::{Selection, WeightRef};

/// A decoder-only language model, described as data.
///
/// A token's row of [`embedding`](Self::embedding) goes through [`layers`](Self::layers), then through
/// [`norm`](Self::norm), and [`head`](Self::head) turns it into a logit for every token of the vocabulary. It holds
/// names and shapes of weights and no bytes of them; those come from
/// [`Checkpoint::weight`](crate::Checkpoint::weight). It prints as a summary with equal layers grouped, and
/// [`walk`](crate::walk) is the one place that interprets it.
#[derive(Clone, Debug, PartialEq)]
pub struct Decoder {
    /// The architecture's name in `config.json`, such as `llama`.
    pub model_type: String,
    /// What a user should know about what is left out, such as that images are not supported; a sentence each.
    pub notes: Vec<String>,
    /// The number of token ids, and of logits.
    pub vocabulary_size: usize,
    /// The width of the stream that the layers read and add to.
    pub hidden_size: usize,
    /// The most positions that a sequence may have.
    pub context_length: usize,
    /// The type in which the checkpoint's authors run activations.
    pub element_type: ElementType,
    /// The weights that the other fields refer to.
    pub weights: WeightTable,
    /// The table of token embeddings.
    pub embedding: Embedding,
    /// The layers, first to last.
    pub layers: Vec<Layer>,
    /// The norm after the last layer.
    pub norm: Norm,
    /// The projection to logits.
    pub head: Head,
}

/// How tokens become the stream.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Embedding {
    /// `[vocabulary_size, hidden_size]`, a row a token.
    pub weight: WeightId,
    /// What rows are multiplied with.
    pub scale: f32,
    /// A table of learned positions whose rows are added, where there is one.
    pub positions: Option<PositionTable>,
}

/// Learned positions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PositionTable {
    /// `[rows, hidden_size]`.
    pub weight: WeightId,
    /// The row of position 0.
    pub offset: usize,
}

/// One layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    /// Its blocks, in order.
    pub blocks: Vec<Block>,
    /// How they are joined.
    pub arrangement: Arrangement,
}

/// How the blocks of a layer are joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Arrangement {
    /// Each block reads the stream after the block before it has been added.
    Sequential,
    /// All blocks read the stream as it comes into the layer, and their results are added together.
    Parallel,
}

/// `x + residual_scale · norm_after(operation(norm_before(x)))`.
#[derive(Clone, Debug, PartialEq)]
pub struct Block {
    /// The norm in front of the operation.
    pub norm_before: Option<Norm>,
    /// What is computed.
    pub operation: Operation,
    /// The norm behind it.
    pub norm_after: Option<Norm>,
    /// What the result is multiplied with before it is added to the stream.
    pub residual_scale: f32,
}

/// The operation of a [`Block`].
#[derive(Clone, Debug, PartialEq)]
pub enum Operation {
    /// Positions see each other.
    Mixer(Mixer),
    /// Each position by itself.
    Mlp(Mlp),
    /// Each position by itself, through the experts that are chosen for it.
    Experts(Experts),
}

/// An operation through which positions see each other, and which keeps state between steps.
#[derive(Clone, Debug, PartialEq)]
pub enum Mixer {
    /// Causal self-attention; its state is the keys and values of earlier positions.
    Attention(Attention),
    /// Attention over compressed latents, which are its state.
    Latent(LatentAttention),
    /// A short gated convolution; its state is the last inputs.
    ShortConvolution(ShortConvolution),
    /// The gated delta rule, a linear recurrence.
    DeltaRule(DeltaRule),
    /// A selective state space, a linear recurrence.
    StateSpace(StateSpace),
}

/// The projection to logits: `softcap(scale · (x · weightᵀ + bias))`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Head {
    /// `hidden_size` to the vocabulary; the weight of a tied head is the embedding's table.
    pub projection: Linear,
    /// Whether it is the embedding's table.
    pub tied: bool,
    /// What logits are multiplied with.
    pub scale: f32,
    /// Logits become `cap · tanh(logit / cap)`.
    pub soft_cap: Option<f32>,
}

impl Mixer {
    /// Its rotary embedding, where it has one.
    pub fn rope(&self) -> Option<&crate::Rope> {
        match self {
            Self::Attention(attention) => attention.core.rope.as_ref(),
            Self::Latent(latent) => Some(&latent.rope),
            Self::ShortConvolution(_) | Self::DeltaRule(_) | Self::StateSpace(_) => None,
        }
    }
}

impl Decoder {
    /// Every weight once, in the order of use: embedding, layers, final norm, head. A tied head is the embedding, so
    /// it does not come again. Of a quantized weight the companions come with it, in [`WeightRef::tensors`]. The order
    /// depends on nothing but the description.
    pub fn weights(&self) -> impl Iterator<Item = &WeightRef> {
        self.weights.iter()
    }

    /// The weight of an index.
    pub fn weight(&self, id: WeightId) -> &WeightRef {
        self.weights.get(id)
    }

    /// The mixers, in the order of the walk.
    pub fn mixers(&self) -> impl Iterator<Item = &Mixer> {
        self.layers.iter().flat_map(|layer| &layer.blocks).filter_map(|block| match &block.operation {
            Operation::Mixer(mixer) => Some(mixer),
            Operation::Mlp(_) | Operation::Experts(_) => None,
        })
    }

    /// The rotary embeddings, each once, in the order in which layers first use them.
    pub fn ropes(&self) -> Vec<&crate::Rope> {
        let mut ropes = Vec::new();
        for rope in self.mixers().filter_map(Mixer::rope) {
            if !ropes.contains(&rope) {
                ropes.push(rope);
            }
        }
        ropes
    }

    /// The lengths of sequences between which its rotary embeddings change.
    pub fn rope_epochs(&self) -> crate::RopeEpochs {
        crate::RopeEpochs::new(self.ropes())
    }

    /// The number of parameters: values of all [`weights`](Self::weights).
    pub fn parameters(&self) -> u64 {
        self.weights().map(|weight| weight.elements() as u64).sum()
    }

    /// The bytes of all [`weights`](Self::weights) as they are stored, scales and biases of quantized ones included.
    pub fn weight_bytes(&self) -> u64 {
        self.weights().flat_map(WeightRef::tensors).map(|tensor| tensor.byte_len() as u64).sum()
    }
}
