//! Decoders of Llama's structure: layers of attention and an MLP behind norms, between an embedding and a head.
//!
//! Families that differ from Llama by their settings alone go through [`Variant::decoder`], those with other parts
//! behind the same norms through [`Variant::decoder_with`] and [`Variant::decoder_of`].

use mlxcel_core::Result;

use super::blocks::{AttentionBiases, parallel, plain, plain_norm, sequential};
use super::outline::{DraftHeadModules, Outline};
use super::roles::Roles;
use super::settings::{Sizes, activation, flag, positive};
use crate::decoder::{
    Activation, Attention, AttentionCore, Block, Decoder, HeadNorm, Norm, NormKind, NormScope, Operation,
};

/// What families of Llama's structure do otherwise.
pub(super) struct Variant {
    /// What stands before the names of the network's modules.
    pub(super) base: &'static str,
    /// The module of the token embedding.
    pub(super) embedding: &'static str,
    /// The module of the norm of embeddings, if there is one.
    pub(super) embedding_norm: Option<&'static str>,
    /// The module of learned positions, and the row of position 0.
    pub(super) positions: Option<(&'static str, usize)>,
    /// What stands before the numbers of layers.
    pub(super) layers: &'static str,
    /// The epsilon where the settings do not give one.
    pub(super) epsilon: f64,
    /// The field of the epsilon.
    pub(super) epsilon_key: &'static str,
    /// The kind of all norms.
    pub(super) norm_kind: NormKind,
    /// Whether layer norms have biases.
    pub(super) norm_biases: bool,
    /// Whether norms have neither factors nor biases.
    pub(super) bare_norms: bool,
    /// What is added to the factors of norms.
    pub(super) norm_offset: f32,
    /// The names of the norms before attention and before the MLP, if there are any.
    pub(super) norms: Option<[&'static str; 2]>,
    /// The names of the norms after attention and after the MLP, if there are any.
    pub(super) norms_after: Option<[&'static str; 2]>,
    /// Whether attention and MLP both read the layer's input.
    pub(super) parallel: bool,
    /// The name of the norm after the last layer.
    pub(super) last_norm: &'static str,
    pub(super) attention_biases: AttentionBiases,
    /// The norms of queries and keys, if there are any: the elements normalized together, and the names of
    /// both.
    pub(super) head_norms: Option<(NormScope, [&'static str; 2])>,
    /// Clamps queries, keys and values to this magnitude.
    pub(super) clip: Option<f32>,
    /// The module of the MLP.
    pub(super) mlp: &'static str,
    pub(super) mlp_form: MlpForm,
    pub(super) mlp_biases: bool,
    /// The field of the activation.
    pub(super) activation_key: &'static str,
    /// The activation where the settings do not give one.
    pub(super) activation: Activation,
    /// The field of whether the head is tied.
    pub(super) tied_key: &'static str,
    /// Whether it is where the settings do not say.
    pub(super) tied: bool,
    /// The module of the head; `None` for encoders.
    pub(super) head: Option<&'static str>,
    /// Whether the head has a bias.
    pub(super) head_bias: bool,
    pub(super) embedding_scale: f32,
    pub(super) residual_scale: f32,
    pub(super) logit_scale: f32,
    pub(super) logit_soft_cap: Option<f32>,
    /// Whether a model that wraps the text model scales its logits too.
    pub(super) wrapper_scales: bool,
    /// Whether the layer behind the last one may be a draft head.
    pub(super) draft_head: bool,
}

/// The projections of an MLP.
#[derive(Clone, Copy)]
pub(super) enum MlpForm {
    /// `gate_proj`, `up_proj` and `down_proj`.
    Gated,
    /// `gate_up_proj`, with the rows of the gate in front, and `down_proj`.
    Fused,
    /// One up and one down, of these names.
    Plain([&'static str; 2]),
}

impl Variant {
    /// Llama without biases.
    pub(super) const PLAIN: Self = Self {
        base: "model.",
        embedding: "embed_tokens",
        embedding_norm: None,
        positions: None,
        layers: "layers",
        epsilon: 1e-6,
        epsilon_key: "rms_norm_eps",
        norm_kind: NormKind::Rms,
        norm_biases: true,
        bare_norms: false,
        norm_offset: 0.0,
        norms: Some(["input_layernorm", "post_attention_layernorm"]),
        norms_after: None,
        parallel: false,
        last_norm: "norm",
        attention_biases: AttentionBiases::NONE,
        head_norms: None,
        clip: None,
        mlp: "mlp",
        mlp_form: MlpForm::Gated,
        mlp_biases: false,
        activation_key: "hidden_act",
        activation: Activation::Silu,
        tied_key: "tie_word_embeddings",
        tied: false,
        head: Some("lm_head"),
        head_bias: false,
        embedding_scale: 1.0,
        residual_scale: 1.0,
        logit_scale: 1.0,
        logit_soft_cap: None,
        wrapper_scales: false,
        draft_head: false,
    };

    /// The norm called `name`.
    fn norm(&self, roles: &Roles<'_>, name: &str, width: usize) -> Result<Norm> {
        let epsilon = positive(roles.config, self.epsilon_key, self.epsilon)?;
        let norm = match self.norm_kind {
            kind if self.bare_norms => Norm { kind, ..plain_norm(width, epsilon) },
            NormKind::Rms => roles.rms_norm(name, width, epsilon)?,
            NormKind::Layer => roles.layer_norm(name, width, epsilon, self.norm_biases)?,
        };
        Ok(Norm { offset: self.norm_offset, ..norm })
    }

    /// The attention of a layer.
    pub(super) fn attention(
        &self,
        roles: &Roles<'_>,
        sizes: &Sizes,
        layer: &str,
        core: AttentionCore,
    ) -> Result<Attention> {
        let module = format!("{layer}.self_attn");
        let attention = roles.attention(&module, sizes, self.attention_biases, core)?;
        self.normed(roles, sizes, &module, attention)
    }

    /// `attention`, whose module this is, with norms of queries and keys, and their limit.
    pub(super) fn normed(
        &self,
        roles: &Roles<'_>,
        sizes: &Sizes,
        module: &str,
        attention: Attention,
    ) -> Result<Attention> {
        let norm = |which: usize, width: usize| {
            let norm = |(scope, names): (NormScope, [&str; 2])| {
                let width = if scope == NormScope::Full { width } else { sizes.head_dim };
                Ok(HeadNorm { norm: self.norm(roles, &format!("{module}.{}", names[which]), width)?, scope })
            };
            self.head_norms.map(norm).transpose()
        };
        let (query_norm, key_norm) = (norm(0, sizes.query_width())?, norm(1, sizes.kv_width())?);
        Ok(Attention { query_norm, key_norm, clip: self.clip, ..attention })
    }

    /// What makes the MLP of a layer from its name.
    pub(super) fn mlp(&self, roles: &Roles<'_>, sizes: &Sizes) -> Result<impl Fn(&str) -> Result<Operation>> {
        let activation = activation(roles.config, self.activation_key, self.activation)?;
        let shape = [sizes.hidden, sizes.intermediate];
        Ok(move |layer: &str| {
            let module = format!("{layer}.{}", self.mlp);
            let mlp = match self.mlp_form {
                MlpForm::Gated => roles.gated_mlp(&module, shape, activation, self.mlp_biases),
                MlpForm::Fused => roles.fused_gated_mlp(
                    &module,
                    ["gate_up_proj", "down_proj"],
                    shape,
                    activation,
                    self.mlp_biases,
                ),
                MlpForm::Plain(names) => roles.plain_mlp(&module, names, shape, activation, self.mlp_biases),
            };
            Ok(mlp?.into())
        })
    }

    /// The decoder of a checkpoint with Llama's structure; `core` is the attention of a layer.
    pub(super) fn decoder(
        &self,
        roles: &Roles<'_>,
        sizes: &Sizes,
        core: impl Fn(usize) -> AttentionCore,
    ) -> Result<Decoder> {
        let mlp = self.mlp(roles, sizes)?;
        self.decoder_with(roles, sizes, core, |_, layer| mlp(layer))
    }

    /// [`decoder`](Self::decoder) with another operation instead of the MLP: `second` makes that of a layer
    /// from its index and name.
    pub(super) fn decoder_with(
        &self,
        roles: &Roles<'_>,
        sizes: &Sizes,
        core: impl Fn(usize) -> AttentionCore,
        second: impl Fn(usize, &str) -> Result<Operation>,
    ) -> Result<Decoder> {
        let attention =
            |index: usize, layer: &str| Ok(self.attention(roles, sizes, layer, core(index))?.into());
        self.decoder_of(roles, sizes, attention, second)
    }

    /// [`decoder_with`](Self::decoder_with) another mixer instead of attention: `first` makes that of a layer
    /// from its index and name.
    pub(super) fn decoder_of(
        &self,
        roles: &Roles<'_>,
        sizes: &Sizes,
        first: impl Fn(usize, &str) -> Result<Operation>,
        second: impl Fn(usize, &str) -> Result<Operation>,
    ) -> Result<Decoder> {
        let tied = flag(roles.config, self.tied_key, self.tied)?;
        let base = roles.base(self.base, self.embedding);
        let norm = |name: &str| self.norm(roles, name, sizes.hidden);
        let layer = |index: usize| {
            let name = format!("{base}{}.{index}", self.layers);
            let named = |names: Option<[&str; 2]>, which: usize| {
                names.map(|names| norm(&format!("{name}.{}", names[which]))).transpose()
            };
            let residual_scale = self.residual_scale;
            let norm_before = named(self.norms, 0)?;
            let first = plain(first(index, &name)?);
            let norm_after = named(self.norms_after, 0)?;
            let first = Block { norm_before, norm_after, residual_scale, ..first };
            let norm_before = named(self.norms, 1)?;
            let second = plain(second(index, &name)?);
            let norm_after = named(self.norms_after, 1)?;
            let second = Block { norm_before, norm_after, residual_scale, ..second };
            Ok(if self.parallel { parallel([first, second]) } else { sequential([first, second]) })
        };
        let within = |module: &str| format!("{base}{module}");
        let outline = Outline {
            is_bare: base != self.base,
            embedding: within(self.embedding),
            embedding_norm: self.embedding_norm.map(within),
            positions: self.positions.map(|(table, offset)| (within(table), offset)),
            norm: Some(within(self.last_norm)),
            head: self.head,
            embedding_scale: self.embedding_scale,
            logit_scale: self.logit_scale,
            logit_soft_cap: self.logit_soft_cap,
            wrapper_scales: self.wrapper_scales,
            head_bias: self.head_bias,
            draft_head: self.draft_head.then(|| DraftHeadModules::behind(&base, sizes.layers)),
            ..Outline::new(sizes, &base, tied)
        };
        roles.decoder(outline, norm, layer)
    }
}

/// The norms of queries and keys of each head that Qwen3 and its successors have.
pub(super) const HEAD_NORMS: Option<(NormScope, [&str; 2])> = Some((NormScope::Head, ["q_norm", "k_norm"]));
