//! Llama, and everything published as `model_type: llama` (SmolLM, TinyLlama, Yi, …).
//!
//! Config fields, defaults and arithmetic follow transformers' `LlamaConfig` and `LlamaForCausalLM`. Families
//! that differ from it by their settings alone go through [`decoder`] too, and those with other parts behind
//! the same norms through [`decoder_with`] and [`decoder_of`].

use mlxcel_core::Result;

use super::Family;
use super::blocks::{AttentionBiases, core, plain_norm, pre_norm, sequential};
use super::outline::{DraftHeadModules, Outline};
use super::roles::Roles;
use super::settings::{SizeDefaults, Sizes, activation, flag, positive};
use crate::decoder::{
    Activation, Attention, AttentionCore, Block, Decoder, HeadNorm, Norm, NormKind, NormScope, Operation,
};

pub(super) const FAMILY: Family = Family::new(&["llama"], &[2], describe);

pub(super) const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 32_000,
    hidden: 4096,
    intermediate: 11_008,
    layers: 32,
    query_heads: 32,
    kv_heads: None,
    head_dim: None,
    context: 2048,
};

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let rope = sizes.rope(config).read()?;
    let variant = Variant {
        attention_biases: AttentionBiases::all(flag(config, "attention_bias", false)?),
        mlp_biases: flag(config, "mlp_bias", false)?,
        ..Variant::PLAIN
    };
    decoder(roles, &sizes, &variant, |_| core(sizes.scale(), None, Some(&rope)))
}

/// What families of Llama's structure do otherwise.
pub(super) struct Variant {
    /// The epsilon where the settings do not give one.
    pub(super) epsilon: f64,
    /// The field of the epsilon.
    pub(super) epsilon_key: &'static str,
    /// The kind of the norms before blocks and at the end; layer norms have biases.
    pub(super) norm_kind: NormKind,
    /// Whether these norms have neither factors nor biases.
    pub(super) bare_norms: bool,
    /// What is added to the factors of these norms.
    pub(super) norm_offset: f32,
    /// The names of the norms before attention and before the MLP.
    pub(super) norms: [&'static str; 2],
    /// The names of the norms after attention and after the MLP, if there are any.
    pub(super) norms_after: Option<[&'static str; 2]>,
    /// The name of the norm after the last layer.
    pub(super) last_norm: &'static str,
    pub(super) attention_biases: AttentionBiases,
    pub(super) mlp_biases: bool,
    /// Whether the head is tied where `tie_word_embeddings` does not say.
    pub(super) tied: bool,
    /// Whether the head has a bias.
    pub(super) head_bias: bool,
    /// The norms of queries and keys, if there are any: the elements normalized together, and the names of
    /// both.
    pub(super) head_norms: Option<(NormScope, [&'static str; 2])>,
    /// Clamps queries, keys and values to this magnitude.
    pub(super) clip: Option<f32>,
    pub(super) embedding_scale: f32,
    pub(super) residual_scale: f32,
    pub(super) logit_scale: f32,
    pub(super) logit_soft_cap: Option<f32>,
    /// Whether a model that wraps the text model scales its logits too.
    pub(super) wrapper_scales: bool,
    /// Whether the layer behind the last one may be a draft head.
    pub(super) draft_head: bool,
}

impl Variant {
    /// Llama without biases.
    pub(super) const PLAIN: Self = Self {
        epsilon: 1e-6,
        epsilon_key: "rms_norm_eps",
        norm_kind: NormKind::Rms,
        bare_norms: false,
        norm_offset: 0.0,
        norms: ["input_layernorm", "post_attention_layernorm"],
        norms_after: None,
        last_norm: "norm",
        attention_biases: AttentionBiases { inputs: false, output: false },
        mlp_biases: false,
        tied: false,
        head_bias: false,
        head_norms: None,
        clip: None,
        embedding_scale: 1.0,
        residual_scale: 1.0,
        logit_scale: 1.0,
        logit_soft_cap: None,
        wrapper_scales: false,
        draft_head: false,
    };
}

/// The norms of queries and keys of each head that Qwen3 and its successors have.
pub(super) const HEAD_NORMS: Option<(NormScope, [&str; 2])> = Some((NormScope::Head, ["q_norm", "k_norm"]));

/// The decoder of a checkpoint with Llama's structure and tensor names; `core` is the attention of a layer.
pub(super) fn decoder(
    roles: &Roles<'_>,
    sizes: &Sizes,
    variant: &Variant,
    core: impl Fn(usize) -> AttentionCore,
) -> Result<Decoder> {
    let activation = activation(roles.config, "hidden_act", Activation::Silu)?;
    let shape = [sizes.hidden, sizes.intermediate];
    decoder_with(roles, sizes, variant, core, |_, layer| {
        Ok(roles.gated_mlp(&format!("{layer}.mlp"), shape, activation, variant.mlp_biases)?.into())
    })
}

/// [`decoder`] with another operation instead of the MLP: `second` makes that of a layer from its index and
/// name.
pub(super) fn decoder_with(
    roles: &Roles<'_>,
    sizes: &Sizes,
    variant: &Variant,
    core: impl Fn(usize) -> AttentionCore,
    second: impl Fn(usize, &str) -> Result<Operation>,
) -> Result<Decoder> {
    let epsilon = positive(roles.config, variant.epsilon_key, variant.epsilon)?;
    let head_norm = |module: &str, which: usize, width: usize| match variant.head_norms {
        None => Ok(None),
        Some((scope, names)) => {
            let width = if scope == NormScope::Full { width } else { sizes.head_dim };
            let norm = roles.rms_norm(&format!("{module}.{}", names[which]), width, epsilon)?;
            Ok(Some(HeadNorm { norm, scope }))
        }
    };
    let attention = |index: usize, layer: &str| {
        let module = format!("{layer}.self_attn");
        let attention = Attention {
            clip: variant.clip,
            query_norm: head_norm(&module, 0, sizes.query_width())?,
            key_norm: head_norm(&module, 1, sizes.kv_width())?,
            ..roles.attention(&module, sizes, variant.attention_biases, core(index))?
        };
        Ok(attention.into())
    };
    decoder_of(roles, sizes, variant, attention, second)
}

/// [`decoder_with`] another mixer instead of attention: `first` makes that of a layer from its index and name.
pub(super) fn decoder_of(
    roles: &Roles<'_>,
    sizes: &Sizes,
    variant: &Variant,
    first: impl Fn(usize, &str) -> Result<Operation>,
    second: impl Fn(usize, &str) -> Result<Operation>,
) -> Result<Decoder> {
    let config = roles.config;
    let epsilon = positive(config, variant.epsilon_key, variant.epsilon)?;
    let tied = flag(config, "tie_word_embeddings", variant.tied)?;
    let base = roles.base("model.", "embed_tokens");
    let norm = |name: &str| {
        let norm = match variant.norm_kind {
            kind if variant.bare_norms => Norm { kind, ..plain_norm(sizes.hidden, epsilon) },
            NormKind::Rms => roles.rms_norm(name, sizes.hidden, epsilon)?,
            NormKind::Layer => roles.layer_norm(name, sizes.hidden, epsilon, true)?,
        };
        Ok(Norm { offset: variant.norm_offset, ..norm })
    };
    let layer = |index: usize| {
        let name = format!("{base}layers.{index}");
        let [before_first, before_second] = variant.norms.map(|norm| format!("{name}.{norm}"));
        let after = |which: usize| {
            variant.norms_after.map(|names| norm(&format!("{name}.{}", names[which]))).transpose()
        };
        let residual_scale = variant.residual_scale;
        let first = pre_norm(norm(&before_first)?, first(index, &name)?);
        let first = Block { norm_after: after(0)?, residual_scale, ..first };
        let second = pre_norm(norm(&before_second)?, second(index, &name)?);
        Ok(sequential([first, Block { norm_after: after(1)?, residual_scale, ..second }]))
    };
    let draft_head = variant.draft_head.then(|| DraftHeadModules::behind(&base, sizes.layers));
    let outline = Outline {
        norm: format!("{base}{}", variant.last_norm),
        embedding_scale: variant.embedding_scale,
        logit_scale: variant.logit_scale,
        logit_soft_cap: variant.logit_soft_cap,
        wrapper_scales: variant.wrapper_scales,
        head_bias: variant.head_bias,
        draft_head,
        ..Outline::new(sizes, &base, tied)
    };
    roles.decoder(outline, norm, layer)
}
