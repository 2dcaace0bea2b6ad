//! Features of decoders, and which of them an engine supports.

use std::collections::BTreeSet;
use std::fmt;

use mlxcel_core::{Error, Result};

use super::{
    Activation, Arrangement, Attention, AttentionCore, AttentionMask, DecayScope, Decoder, DistanceBias,
    Experts, Gating, Mixer, Mlp, NormKind, NormScope, Operation, Scoring,
};

macro_rules! features {
    ($($(#[$doc:meta])* $name:ident => $text:literal,)+) => {
        /// A part of the description that an engine may or may not support. Prints as its name, such as `soft
        /// cap of scores`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Feature {
            $($(#[$doc])* $name,)+
        }

        impl Feature {
            /// Every feature.
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];

            /// The name, as errors give it.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)+
                }
            }
        }
    };
}

features! {
    /// [`Mixer::Attention`].
    Attention => "attention",
    /// [`AttentionMask::Bidirectional`].
    BidirectionalAttention => "attention in both directions",
    /// [`DistanceBias::Slopes`].
    Alibi => "scores lowered by distance",
    /// [`DistanceBias::Buckets`].
    DistanceBuckets => "scores by buckets of distances",
    /// [`AttentionCore::window`](super::AttentionCore::window).
    Window => "sliding window",
    /// [`AttentionMask::Chunked`].
    ChunkedAttention => "attention within chunks",
    /// Attention without a rotary embedding.
    NoPositions => "attention without positions",
    /// A rotary embedding of adjacent elements.
    InterleavedRope => "interleaved rotary embedding",
    /// A rotary embedding whose frequencies depend on the length of the sequence.
    LengthDependentRope => "rotary embedding by the length of the sequence",
    /// [`AttentionCore::soft_cap`](super::AttentionCore::soft_cap).
    ScoreSoftCap => "soft cap of scores",
    /// [`AttentionCore::sinks`](super::AttentionCore::sinks).
    Sinks => "attention sinks",
    /// [`AttentionCore::query_scale`](super::AttentionCore::query_scale), and that of latent attention.
    QueryScale => "scale of queries by position",
    /// A norm of queries or keys by head.
    HeadNorm => "norm of queries and keys by head",
    /// A norm of queries or keys over all heads.
    FullNorm => "norm of queries and keys over all heads",
    /// [`NormScope::RotatedHead`].
    RotatedNorm => "norm of queries and keys after rotation",
    /// [`Attention::clip`].
    Clip => "limit of queries, keys and values",
    /// [`Mixer::Shared`].
    SharedAttention => "attention to the keys of another layer",
    /// [`Attention::value_norm`].
    ValueNorm => "norm of values",
    /// [`Attention::gate`].
    AttentionGate => "gated attention",
    /// [`Attention::value_dim`] that is not [`Attention::head_dim`].
    ValueWidth => "values of another width than keys",
    /// [`Attention::output_norm`], or [`Mlp::Gated::norm`].
    InnerNorm => "norm before an output projection",
    /// [`Mixer::Latent`].
    LatentAttention => "latent attention",
    /// [`LatentAttention::sparse`](super::LatentAttention::sparse).
    SparseAttention => "attention to selected positions",
    /// [`Mixer::Compressed`].
    CompressedAttention => "attention to compressed positions",
    /// [`Mixer::ShortConvolution`].
    ShortConvolution => "short convolution",
    /// [`Mixer::DeltaRule`].
    DeltaRule => "gated delta rule",
    /// [`DecayScope::Channel`].
    ChannelDecay => "decay by channel",
    /// [`Mixer::StateSpace`].
    StateSpace => "state space",
    /// [`Mixer::SelectiveScan`].
    SelectiveScan => "selective scan",
    /// [`Mixer::GeneralizedDeltaRule`].
    GeneralizedDeltaRule => "generalised delta rule",
    /// [`Mixer::ShiftedMlp`].
    ShiftedMlp => "MLP that reads the token before",
    /// [`NormKind::Layer`].
    LayerNorm => "layer norm",
    /// [`Mlp::Plain`].
    PlainMlp => "MLP without a gate",
    /// [`Mlp::Xielu`].
    Xielu => "xIELU",
    /// [`Gating::Sparse`].
    SparseGate => "sparse gate of MLPs",
    /// [`Decoder::streams`].
    Streams => "several residual streams",
    /// [`Block::connection`](super::Block::connection).
    HyperConnections => "hyper-connections",
    /// [`Block::laurel`](super::Block::laurel).
    Laurel => "residual of low rank",
    /// [`Gating::Ungated`].
    UngatedExperts => "experts without gates",
    /// [`Gating::Limited`].
    LimitedGate => "limited gate of MLPs",
    /// [`Gating::ClampedSwiglu`].
    ClampedSwiglu => "clamped SwiGLU",
    /// [`Operation::Experts`].
    Experts => "experts",
    /// [`Router::groups`](super::Router::groups).
    ExpertGroups => "groups of experts",
    /// [`Scoring::Sigmoid`].
    SigmoidRouter => "router with sigmoids",
    /// [`Scoring::RootSoftplus`].
    RootSoftplusRouter => "router with roots of softplus",
    /// [`Router::by_token`](super::Router::by_token).
    TokenRouter => "experts by token",
    /// [`Scoring::SparseMixer`].
    SparseMixer => "sparse mixer router",
    /// [`Router::weighs_inputs`](super::Router::weighs_inputs).
    WeightedInputs => "experts with weighted inputs",
    /// [`Experts::shared`].
    SharedExpert => "shared expert",
    /// Norms inside of [`Experts`], and factors of each expert's weights.
    NormedExperts => "experts with norms of their own",
    /// [`Experts::identities`].
    IdentityExperts => "identity experts",
    /// [`Decoder::input_states`].
    InputStates => "draft head",
    /// [`Decoder::output_states`].
    OutputStates => "hidden states beside logits",
    /// [`Decoder::head_tokens`].
    PartialHead => "logits of a part of the vocabulary",
    /// [`Decoder::layer_embeddings`].
    LayerEmbeddings => "embeddings for each layer",
    /// [`Layer::scale`](super::Layer::scale).
    LayerScale => "scale of layers",
    /// [`Embedding::positions`](super::Embedding::positions).
    LearnedPositions => "learned positions",
    /// [`Embedding::types`](super::Embedding::types).
    TokenTypes => "token types",
    /// [`Embedding::norm`](super::Embedding::norm).
    EmbeddingNorm => "norm of embeddings",
    /// [`Embedding::projection`](super::Embedding::projection).
    ProjectedEmbedding => "embeddings of another width",
    /// [`Block::deferred`](super::Block::deferred).
    Shortcut => "shortcut connections",
    /// [`Block::norm_output`](super::Block::norm_output).
    PostNorm => "norm of the residual stream",
    /// [`Arrangement::Parallel`].
    ParallelBlocks => "parallel blocks",
    /// [`Head::soft_cap`](super::Head::soft_cap).
    LogitSoftCap => "soft cap of logits",
}

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A set of features.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FeatureSet(BTreeSet<Feature>);

impl FeatureSet {
    /// All features.
    pub fn all() -> Self {
        Self(Feature::ALL.iter().copied().collect())
    }

    /// Removes `feature`.
    #[must_use]
    pub fn without(mut self, feature: Feature) -> Self {
        self.0.remove(&feature);
        self
    }

    /// Whether the set contains `feature`.
    pub fn contains(&self, feature: Feature) -> bool {
        self.0.contains(&feature)
    }

    /// The features, in the order of [`Feature::ALL`].
    pub fn iter(&self) -> impl Iterator<Item = Feature> + '_ {
        self.0.iter().copied()
    }

    fn add(&mut self, used: bool, feature: Feature) {
        if used {
            self.0.insert(feature);
        }
    }
}

impl Decoder {
    /// The features that the decoder uses.
    pub fn features(&self) -> FeatureSet {
        let mut used = FeatureSet::default();
        used.add(self.embedding.positions.is_some(), Feature::LearnedPositions);
        used.add(self.embedding.types.is_some(), Feature::TokenTypes);
        used.add(self.embedding.norm.is_some(), Feature::EmbeddingNorm);
        used.add(self.embedding.projection.is_some(), Feature::ProjectedEmbedding);
        used.add(self.input_states.is_some(), Feature::InputStates);
        used.add(self.output_states.is_some(), Feature::OutputStates);
        used.add(self.head_tokens.is_some(), Feature::PartialHead);
        used.add(self.layer_embeddings.is_some(), Feature::LayerEmbeddings);
        used.add(self.streams.is_some(), Feature::Streams);
        used.add(self.head.is_some_and(|head| head.soft_cap.is_some()), Feature::LogitSoftCap);
        let mut outer = self.norm.iter().chain(&self.embedding.norm);
        used.add(outer.any(|norm| norm.kind == NormKind::Layer), Feature::LayerNorm);
        for layer in &self.layers {
            used.add(layer.arrangement == Arrangement::Parallel, Feature::ParallelBlocks);
            used.add(layer.scale.is_some(), Feature::LayerScale);
            for block in &layer.blocks {
                used.add(block.norm_output.is_some(), Feature::PostNorm);
                used.add(block.laurel.is_some(), Feature::Laurel);
                used.add(block.connection.is_some(), Feature::HyperConnections);
                used.add(block.deferred, Feature::Shortcut);
                let mut norms = block.norm_before.iter().chain(&block.norm_after).chain(&block.norm_output);
                used.add(norms.any(|norm| norm.kind == NormKind::Layer), Feature::LayerNorm);
                match &block.operation {
                    Operation::Mixer(mixer) => used.mixer(mixer),
                    Operation::Mlp(mlp) => used.mlp(mlp),
                    Operation::Experts(experts) => used.experts(experts),
                    Operation::LayerInput(_) => used.add(true, Feature::LayerEmbeddings),
                }
            }
        }
        used
    }

    /// Fails unless the decoder uses only features in `runs`. The error names `engine`.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](mlxcel_core::ErrorKind::Unsupported), naming the first unsupported feature.
    pub fn require(&self, runs: &FeatureSet, engine: &str) -> Result<()> {
        match self.features().iter().find(|&feature| !runs.contains(feature)) {
            None => Ok(()),
            Some(missing) => {
                let message = format!("the engine {engine} does not run models with this feature: {missing}");
                Err(Error::unsupported("load model", message)
                    .with_context("feature", missing)
                    .with_context("model_type", &self.model_type))
            }
        }
    }
}

impl FeatureSet {
    fn mixer(&mut self, mixer: &Mixer) {
        match mixer {
            Mixer::Attention(attention) => self.attention(attention),
            Mixer::Shared(shared) => {
                self.add(true, Feature::SharedAttention);
                self.core(&shared.core);
                self.add(shared.query_norm.is_some(), Feature::HeadNorm);
            }
            Mixer::Latent(latent) => {
                self.add(true, Feature::LatentAttention);
                self.add(latent.query_scale.is_some(), Feature::QueryScale);
                self.add(latent.gate.is_some(), Feature::AttentionGate);
                self.add(latent.sparse.is_some(), Feature::SparseAttention);
                match &latent.rope {
                    None => self.add(true, Feature::NoPositions),
                    Some(rope) => self.rope(rope),
                }
            }
            Mixer::Compressed(attention) => {
                self.add(true, Feature::CompressedAttention);
                self.core(&attention.core);
            }
            Mixer::ShortConvolution(_) => self.add(true, Feature::ShortConvolution),
            Mixer::DeltaRule(mixer) => {
                self.add(true, Feature::DeltaRule);
                self.add(mixer.decay_scope == DecayScope::Channel, Feature::ChannelDecay);
            }
            Mixer::StateSpace(_) => self.add(true, Feature::StateSpace),
            Mixer::SelectiveScan(_) => self.add(true, Feature::SelectiveScan),
            Mixer::GeneralizedDeltaRule(mixer) => {
                self.add(true, Feature::GeneralizedDeltaRule);
                self.add(mixer.norm.kind == NormKind::Layer, Feature::LayerNorm);
            }
            Mixer::ShiftedMlp(mixer) => {
                self.add(true, Feature::ShiftedMlp);
                self.mlp(&mixer.mlp);
            }
        }
    }

    fn attention(&mut self, attention: &Attention) {
        self.add(true, Feature::Attention);
        self.core(&attention.core);
        self.add(attention.value_norm.is_some(), Feature::ValueNorm);
        self.add(attention.clip.is_some(), Feature::Clip);
        self.add(attention.gate.is_some(), Feature::AttentionGate);
        self.add(attention.value_dim != attention.head_dim, Feature::ValueWidth);
        self.add(attention.output_norm.is_some(), Feature::InnerNorm);
        self.add(attention.output_norm.is_some_and(|norm| norm.kind == NormKind::Layer), Feature::LayerNorm);
        for norm in attention.query_norm.iter().chain(&attention.key_norm) {
            match norm.scope {
                NormScope::Head => self.add(true, Feature::HeadNorm),
                NormScope::RotatedHead => self.add(true, Feature::RotatedNorm),
                NormScope::Full => self.add(true, Feature::FullNorm),
            }
            self.add(norm.norm.kind == NormKind::Layer, Feature::LayerNorm);
        }
    }

    fn core(&mut self, core: &AttentionCore) {
        self.add(core.mask == AttentionMask::Bidirectional, Feature::BidirectionalAttention);
        self.add(core.mask == AttentionMask::Chunked, Feature::ChunkedAttention);
        self.add(core.window.is_some() && core.mask != AttentionMask::Chunked, Feature::Window);
        self.add(core.soft_cap.is_some(), Feature::ScoreSoftCap);
        self.add(core.sinks.is_some(), Feature::Sinks);
        self.add(core.query_scale.is_some(), Feature::QueryScale);
        match &core.rope {
            None => self.add(core.distance.is_none(), Feature::NoPositions),
            Some(rope) => self.rope(rope),
        }
        match core.distance {
            None => {}
            Some(DistanceBias::Slopes) => self.add(true, Feature::Alibi),
            Some(DistanceBias::Buckets(_)) => self.add(true, Feature::DistanceBuckets),
        }
    }

    fn rope(&mut self, rope: &crate::rope::Rope) {
        self.add(rope.interleaved, Feature::InterleavedRope);
        self.add(rope.long.is_some(), Feature::LengthDependentRope);
    }

    fn mlp(&mut self, mlp: &Mlp) {
        match mlp {
            Mlp::Gated { gating, norm, .. } => {
                self.gating(*gating);
                self.add(norm.is_some(), Feature::InnerNorm);
            }
            Mlp::Plain { .. } => self.add(true, Feature::PlainMlp),
            Mlp::Xielu { .. } => self.add(true, Feature::Xielu),
        }
    }

    fn gating(&mut self, gating: Gating) {
        match gating {
            Gating::Activated(
                Activation::Silu
                | Activation::Gelu
                | Activation::GeluTanh
                | Activation::Relu
                | Activation::ReluSquared
                | Activation::Sigmoid
                | Activation::Tanh
                | Activation::Softplus,
            ) => {}
            Gating::Ungated(_) => self.add(true, Feature::UngatedExperts),
            Gating::Scaled { activation, scale: _ } => self.gating(Gating::Activated(activation)),
            Gating::Sparse { activation, deviations: _ } => {
                self.add(true, Feature::SparseGate);
                self.gating(Gating::Activated(activation));
            }
            Gating::Limited { activation, limit: _ } => {
                self.add(true, Feature::LimitedGate);
                self.gating(Gating::Activated(activation));
            }
            Gating::ClampedSwiglu { .. } => self.add(true, Feature::ClampedSwiglu),
        }
    }

    fn experts(&mut self, experts: &Experts) {
        self.add(true, Feature::Experts);
        self.add(experts.identities > 0, Feature::IdentityExperts);
        self.add(experts.router.groups.is_some(), Feature::ExpertGroups);
        match experts.router.scoring {
            Scoring::Softmax => {}
            Scoring::Sigmoid => self.add(true, Feature::SigmoidRouter),
            Scoring::RootSoftplus => self.add(true, Feature::RootSoftplusRouter),
            Scoring::SparseMixer { .. } => self.add(true, Feature::SparseMixer),
        }
        self.add(experts.router.by_token.is_some(), Feature::TokenRouter);
        self.add(experts.router.weighs_inputs, Feature::WeightedInputs);
        self.gating(experts.gating);
        let norms = [experts.norm_before, experts.norm_after, experts.router.norm];
        let is_normed = norms.iter().any(Option::is_some) || experts.router.expert_scales.is_some();
        self.add(is_normed, Feature::NormedExperts);
        if let Some(shared) = &experts.shared {
            self.add(true, Feature::SharedExpert);
            self.add(shared.norm_before.is_some() || shared.norm_after.is_some(), Feature::NormedExperts);
            self.mlp(&shared.mlp);
        }
    }
}
