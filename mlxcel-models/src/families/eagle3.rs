//! EAGLE-3 draft heads (Li et al., 2025, "EAGLE-3: Scaling up Inference Acceleration of Large Language Models
//! via Training-Time Test"): checkpoints of one layer, trained for another checkpoint's model.
//!
//! Config fields, tensor names and arithmetic follow vLLM's and SGLang's `llama_eagle3`.

use std::sync::Arc;

use mlxcel_core::{Error, ErrorKind, ModelPart, Result, TokenId};

use super::blocks::{AttentionBiases, core, pre_norm, sequential};
use super::roles::{OPERATION, Roles};
use super::settings::{LARGEST_VOCABULARY, LARGEST_WIDTH, SizeDefaults, Sizes, activation, flag, positive};
use super::text::TextModel;
use crate::checkpoint::{Checkpoint, DRAFT_HEAD};
use crate::config::Fields;
use crate::decoder::{Activation, Decoder, Embedding, Head, InputStates, Linear, OutputStates};
use crate::element::ElementType;
use crate::rope::RopeSettings;

/// The projection of the model's states to the width of the head.
const FUSION: &str = "fc";
/// The config field that names layers of the model.
const LAYERS: &str = "eagle_aux_hidden_state_layer_ids";

/// The config field of the model's width, if the head has another.
const TARGET_WIDTH: &str = "target_hidden_size";

/// Fields that change the arithmetic, with the values that leave it as it is here.
const VARIANTS: &[&str] = &["norm_before_residual", "norm_before_fc", "fc_norm", "norm_output"];

/// Whether a checkpoint is such a head.
pub(super) fn is_head(config: Fields<'_>) -> bool {
    let named = config.texts("architectures").ok().flatten().unwrap_or_default();
    named.iter().any(|architecture| architecture.to_lowercase().contains("eagle3"))
}

/// The roles of the tensors of a head, which begin with a prefix beside those of the model.
fn roles(head: &Checkpoint) -> Result<Roles<'_>> {
    let config = head.config();
    if !is_head(config) {
        let message = "the checkpoint is no EAGLE-3 head: none of its `architectures` is called so";
        return Err(config.unsupported("architectures", message.to_owned()));
    }
    let settings = [Some(config), config.object("eagle_config")?];
    for settings in settings.into_iter().flatten() {
        for &key in VARIANTS {
            if flag(settings, key, false)? {
                let message = format!("EAGLE-3 heads with `{key}` are not supported");
                return Err(settings.unsupported(key, message));
            }
        }
    }
    if config.mentions("transformer_layer_config") {
        let message = "EAGLE-3 heads in the layout of the library speculators are not supported";
        return Err(config.unsupported("transformer_layer_config", message.to_owned()));
    }
    let text = TextModel::of(head.model_type(), config)?;
    Ok(Roles::new(head, text, ModelPart::DraftHead).under(DRAFT_HEAD))
}

/// The error of a head that was trained for another model: its `field` is `own`, and that of the model
/// `expected`.
fn mismatch(field: &'static str, own: usize, expected: usize) -> Error {
    let message = "the draft head was trained for another model";
    Error::new(ErrorKind::InvalidInput, OPERATION, message)
        .with_context("field", field)
        .with_context("draft_head", own)
        .with_context("model", expected)
}

/// Lets `target` return the states that `head` reads.
pub(super) fn return_states(head: &Checkpoint, target: &mut Decoder) -> Result<()> {
    let roles = roles(head)?;
    let config = roles.config;
    if target.streams.is_some() {
        let message = "EAGLE-3 heads for models with several residual streams are not supported";
        return Err(Error::unsupported(OPERATION, message).with_context("model_type", &target.model_type));
    }
    let width = sizes(config, target)?.hidden;
    let depths = depths(config, target.layers.len())?;
    let own = roles.linear(FUSION, width, depths.len() * target.hidden_size, flag(config, "bias", false)?)?;
    // They belong to the model's weights.
    let table = roles.take_weights();
    let mut add = |weight| target.weights.add(table.get(weight).clone());
    let projection = Linear { weight: add(own.weight), bias: own.bias.map(add), ..own };
    target.output_states = Some(OutputStates::Fused { depths, projection });
    Ok(())
}

/// The depths whose states the head reads, of a model with this many layers: by default those before the third
/// layer, that in the middle, and the third from the end. `eagle_config` names layers whose results are read,
/// as SGLang takes it; the field beside it depths, as vLLM does.
fn depths(config: Fields<'_>, layers: usize) -> Result<Vec<usize>> {
    let inner = match config.object("eagle_config")? {
        Some(inner) => inner.sizes(LAYERS)?,
        None => None,
    };
    let named = match inner {
        Some(results) => Some(results.into_iter().map(|layer| layer.saturating_add(1)).collect()),
        None => config.sizes(LAYERS)?,
    };
    let mut depths = named.unwrap_or_else(|| vec![2, layers / 2, layers.saturating_sub(3)]);
    depths.sort_unstable();
    if depths.is_empty() || depths.windows(2).any(|pair| pair[0] == pair[1]) || depths.last() > Some(&layers)
    {
        let message = "the draft head reads layers that the model does not have, or one of them twice";
        return Err(Error::new(ErrorKind::InvalidInput, OPERATION, message)
            .with_context("field", LAYERS)
            .with_context("depths", format!("{depths:?}"))
            .with_context("layers", layers));
    }
    Ok(depths)
}

/// The sizes of a head, which has to be one for `target`.
fn sizes(config: Fields<'_>, target: &Decoder) -> Result<Sizes> {
    let defaults = SizeDefaults {
        vocabulary: 32_000,
        hidden: 4096,
        intermediate: 11_008,
        layers: 1,
        query_heads: 32,
        kv_heads: None,
        head_dim: None,
        context: 2048,
    };
    let sizes = Sizes::read(config, &defaults)?;
    if sizes.layers != 1 {
        let message = "EAGLE-3 heads have one layer";
        return Err(config.unsupported("num_hidden_layers", message.to_owned()));
    }
    if sizes.vocabulary != target.vocabulary_size {
        return Err(mismatch("vocab_size", sizes.vocabulary, target.vocabulary_size));
    }
    let width = config.size(TARGET_WIDTH, 1..=LARGEST_WIDTH)?;
    match width.unwrap_or(sizes.hidden) {
        width if width == target.hidden_size => Ok(sizes),
        other => {
            let field = if width.is_some() { TARGET_WIDTH } else { "hidden_size" };
            Err(mismatch(field, other, target.hidden_size))
        }
    }
}

/// The decoder of `head`, which drafts for `target` and borrows its embedding and its head if it has none.
pub(super) fn describe(head: &Checkpoint, target: &Decoder) -> Result<Decoder> {
    let roles = roles(head)?;
    let config = roles.config;
    let sizes = sizes(config, target)?;
    // A head without the projection of states is one of another kind.
    if !roles.has_matrix(FUSION) {
        let message = "the checkpoint has no projection of its model's hidden states";
        return Err(Error::new(ErrorKind::NotFound, OPERATION, message)
            .with_context("tensor", format!("{FUSION}.weight")));
    }
    let has_own = roles.has_matrix("embed_tokens");
    if !has_own && sizes.hidden != target.hidden_size {
        return Err(mismatch("hidden_size", sizes.hidden, target.hidden_size));
    }
    let epsilon = positive(config, "rms_norm_eps", 1e-6)?;
    let norm = |name: &str| roles.rms_norm(name, sizes.hidden, epsilon);
    let (weight, element_type) = if has_own {
        let table = roles.matrix("embed_tokens", sizes.vocabulary, sizes.hidden)?;
        let element_type = roles.activation_type(&table)?;
        (roles.add(table), element_type)
    } else {
        let table = target.weight(target.embedding.weight);
        let element_type = roles.activation_type(table)?;
        (roles.borrow(table), element_type)
    };
    let layer = if roles.has("midlayer.hidden_norm.weight") { "midlayer" } else { "layers.0" };
    let embedding_norm = norm(&format!("{layer}.input_layernorm"))?;
    let rope = RopeSettings::new(config, sizes.head_dim, sizes.context).read()?;
    let attention = roles.wide_attention(
        &format!("{layer}.self_attn"),
        2 * sizes.hidden,
        &sizes,
        AttentionBiases::all(flag(config, "attention_bias", false)?),
        core(sizes.scale(), None, Some(&rope)),
    )?;
    let activation = activation(config, "hidden_act", Activation::Silu)?;
    let mlp = roles.gated_mlp(
        &format!("{layer}.mlp"),
        [sizes.hidden, sizes.intermediate],
        activation,
        flag(config, "mlp_bias", false)?,
    )?;
    let blocks = [
        pre_norm(norm(&format!("{layer}.hidden_norm"))?, attention),
        pre_norm(norm(&format!("{layer}.post_attention_layernorm"))?, mlp),
    ];
    let last_norm = norm("norm")?;
    let (projection, head_tokens) = logits(head, &roles, &sizes, target)?;
    let embedding = Embedding { weight, scale: 1.0, positions: None, types: None, norm: None };
    Ok(Decoder {
        model_type: "eagle3".to_owned(),
        notes: Vec::new(),
        vocabulary_size: sizes.vocabulary,
        hidden_size: sizes.hidden,
        // Rotary embeddings have no end, and the head follows its model.
        context_length: target.context_length,
        element_type,
        embedding,
        input_states: Some(InputStates::Beside { embedding_norm }),
        layer_embeddings: None,
        streams: None,
        layers: vec![sequential(blocks)],
        norm: Some(last_norm),
        head: Some(projection),
        head_tokens,
        output_states: Some(OutputStates::BeforeNorm),
        weights: roles.take_weights(),
        gguf_architecture: None,
    })
}

/// The projection to logits, and the token of each if they are not those of all tokens.
fn logits(
    head: &Checkpoint,
    roles: &Roles<'_>,
    sizes: &Sizes,
    target: &Decoder,
) -> Result<(Head, Option<Arc<[TokenId]>>)> {
    let count = roles.config.size("draft_vocab_size", 1..=LARGEST_VOCABULARY)?.unwrap_or(sizes.vocabulary);
    let projection = if roles.has_matrix("lm_head") {
        roles.linear("lm_head", count, sizes.hidden, false)?
    } else {
        let shared = target.head.filter(|_| sizes.hidden == target.hidden_size && count == sizes.vocabulary);
        let shared = shared.ok_or_else(|| {
            let message = "the draft head has no projection to logits, and the model's does not fit";
            Error::new(ErrorKind::NotFound, OPERATION, message).with_context("tensor", "lm_head.weight")
        })?;
        let weight = roles.borrow(target.weight(shared.projection.weight));
        let bias = shared.projection.bias.map(|bias| roles.borrow(target.weight(bias)));
        Linear { weight, bias, ..shared.projection }
    };
    let head_tokens = if roles.has("d2t") {
        Some(tokens(head, count, sizes.vocabulary)?)
    } else if count == sizes.vocabulary {
        None
    } else {
        return Err(head
            .tensor("d2t")
            .err()
            .unwrap_or_else(|| mismatch("vocab_size", count, sizes.vocabulary)));
    };
    let tied = !roles.has_matrix("lm_head");
    Ok((Head { projection, tied, scale: 1.0, soft_cap: None }, head_tokens))
}

/// The token of each of `count` logits, which the file has less the logit's index.
fn tokens(head: &Checkpoint, count: usize, vocabulary: usize) -> Result<Arc<[TokenId]>> {
    let view = head.tensor("d2t")?;
    let wrong = |message: &'static str| {
        Error::new(ErrorKind::Corrupt, OPERATION, message).with_context("tensor", "d2t")
    };
    if view.element_type != ElementType::I64 || view.shape != [count] {
        return Err(wrong("the tokens of a draft head's logits should be as many 64-bit integers"));
    }
    let differences =
        view.bytes.chunks_exact(8).map(|bytes| i64::from_le_bytes(bytes.try_into().unwrap_or_default()));
    let mut is_known = vec![false; vocabulary];
    let token = |(index, difference): (usize, i64)| {
        let token = usize::try_from((index as i64).saturating_add(difference)).unwrap_or(usize::MAX);
        // A token that is out of range or known is refused.
        if is_known.get_mut(token).is_none_or(|known| std::mem::replace(known, true)) {
            return Err(wrong("a logit of the draft head belongs to no token of its own"));
        }
        Ok(token as TokenId)
    };
    differences.enumerate().map(token).collect()
}
