//! EAGLE-3 draft heads (Li et al., 2025, "EAGLE-3: Scaling up Inference Acceleration of Large Language Models
//! via Training-Time Test"): checkpoints of one layer or a few, trained for another checkpoint's model.
//!
//! Config fields, tensor names and arithmetic follow SGLang's and vLLM's `llama_eagle3`, and for nested
//! configs the library speculators. GGUF files are opened with the fields and names of the former.

use std::sync::Arc;

use mlxcel_core::{Error, ErrorKind, ModelPart, Result, TokenId};

use super::blocks::{AttentionBiases, by_head, core, plain, pre_norm, sequential};
use super::roles::{OPERATION, Roles};
use super::settings::{
    LARGEST_LAYER_COUNT, LARGEST_VOCABULARY, LARGEST_WIDTH, SLIDING, SizeDefaults, Sizes, activation,
    positive,
};
use super::text::TextModel;
use crate::checkpoint::{Checkpoint, DRAFT_HEAD};
use crate::config::Fields;
use crate::decoder::{
    Activation, Attention, Block, Decoder, Embedding, Head, InputStates, Layer, Linear, Norm, OutputStates,
};
use crate::element::ElementType;
use crate::read::formats::integers;

/// The projection of the model's states to the width of the head.
const FUSION: &str = "fc";
/// The config field that names layers of the model.
const LAYERS: &str = "eagle_aux_hidden_state_layer_ids";
/// The config field of the model's width, if the head has another.
const TARGET_WIDTH: &str = "target_hidden_size";
/// The config field that names the kind of head in files of the library speculators.
const KIND: &str = "speculators_model_type";
/// The tensor of each logit's token, less the logit's index.
const DIFFERENCES: &str = "d2t";
/// The tensor of each logit's token in GGUF files.
const TOKENS: &str = "draft_tokens";

/// Whether a checkpoint is such a head: by its name, else by its tensors, since some have the name of a whole
/// model.
pub(super) fn is_head(checkpoint: &Checkpoint) -> bool {
    let config = checkpoint.config();
    let named = config.texts("architectures").ok().flatten().unwrap_or_default();
    named.iter().any(|architecture| architecture.to_lowercase().contains("eagle3"))
        || config.mentions(KIND)
        || (checkpoint.has("fc.weight")
            && checkpoint.has(&format!("{}.hidden_norm.weight", first(checkpoint))))
}

/// The module of the first layer.
fn first(checkpoint: &Checkpoint) -> &'static str {
    if checkpoint.has("midlayer.hidden_norm.weight") { "midlayer" } else { "layers.0" }
}

/// The checkpoint of a head.
struct HeadFile<'a> {
    checkpoint: &'a Checkpoint,
    /// The roles of its tensors, which begin with a prefix beside those of the model; with the settings of
    /// its layers.
    roles: Roles<'a>,
    /// The objects that settings of the head itself are in; the first that has one counts.
    settings: Vec<Fields<'a>>,
}

impl<'a> HeadFile<'a> {
    fn read(checkpoint: &'a Checkpoint) -> Result<Self> {
        let config = checkpoint.config();
        if !is_head(checkpoint) {
            let message =
                "the checkpoint is no EAGLE-3 head: neither `architectures` nor its tensors are those of one";
            return Err(config.unsupported("architectures", message.to_owned()));
        }
        if let Some(kind) = config.text(KIND)?.filter(|kind| *kind != "eagle3") {
            let message =
                format!("draft heads of the kind '{}' are not supported; eagle3 is", kind.escape_debug());
            return Err(config.unsupported(KIND, message));
        }
        let text = match config.object("transformer_layer_config")? {
            Some(layers) => TextModel::of(layers.text("model_type")?.unwrap_or("llama"), layers)?,
            None => TextModel::of(checkpoint.model_type(), config)?,
        };
        let settings = config.object("eagle_config")?.into_iter().chain([config]).collect();
        let roles = Roles::new(checkpoint, text, ModelPart::DraftHead).under(DRAFT_HEAD);
        let this = Self { checkpoint, roles, settings };
        let refuse = |fields: Fields<'_>, key: &str, what: &str| {
            Err(fields.unsupported(key, format!("EAGLE-3 heads {what} are not supported")))
        };
        if !this.flag("use_aux_hidden_state", true)? {
            return refuse(config, "use_aux_hidden_state", "that read the last hidden state alone");
        }
        if this.flag("norm_before_fc", false)? && this.norms_each()? {
            return refuse(config, "fc_norm", "with two kinds of norms before the projection");
        }
        let layers = this.roles.config;
        if layers.get("kv_lora_rank").is_some() {
            return refuse(layers, "kv_lora_rank", "with latent attention");
        }
        // Some have the list of their model, which is longer.
        let own = layers.size("num_hidden_layers", 1..=LARGEST_LAYER_COUNT)?.unwrap_or(1);
        if layers.texts("layer_types")?.unwrap_or_default().iter().take(own).any(|kind| *kind == SLIDING) {
            return refuse(layers, "layer_types", "with windows");
        }
        Ok(this)
    }

    /// A setting of the head.
    fn flag(&self, key: &str, default: bool) -> Result<bool> {
        let found = self.settings.iter().find(|fields| fields.get(key).is_some());
        Ok(found.map(|fields| fields.flag(key)).transpose()?.flatten().unwrap_or(default))
    }

    /// Whether each state of the model has a norm of its own.
    fn norms_each(&self) -> Result<bool> {
        // The second is an older name.
        Ok(self.flag("fc_norm", false)? || self.flag("use_aux_norm", false)?)
    }

    /// Whether there is a bias of this module.
    fn has_bias(&self, module: &str) -> bool {
        self.roles.has(&format!("{module}.bias"))
    }

    fn epsilon(&self) -> Result<f32> {
        positive(self.roles.config, "rms_norm_eps", 1e-6)
    }
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
    let file = HeadFile::read(head)?;
    let roles = &file.roles;
    if target.streams.is_some() {
        let message = "EAGLE-3 heads for models with several residual streams are not supported";
        return Err(Error::unsupported(OPERATION, message).with_context("model_type", &target.model_type));
    }
    let (width, own) = (sizes(&file, target)?.hidden, target.hidden_size);
    let depths = depths(&file, target.layers.len())?;
    let norm = |name: String, width| roles.rms_norm(&name, width, file.epsilon()?);
    let is_joined = file.flag("norm_before_fc", false)?;
    let mut joined_norm = is_joined.then(|| norm("input_norm".to_owned(), depths.len() * own)).transpose()?;
    // The others are older names.
    let name = |at: usize| match ["aux_norm_low", "aux_norm_mid", "aux_norm_high"].get(at) {
        Some(name) if roles.has(&format!("{name}.weight")) => (*name).to_owned(),
        _ => format!("fc_norm.{at}"),
    };
    let normed = if file.norms_each()? { depths.len() } else { 0 };
    let mut state_norms = (0..normed).map(|at| norm(name(at), own)).collect::<Result<Vec<_>>>()?;
    let mut projection = roles.linear(FUSION, width, depths.len() * own, file.has_bias(FUSION))?;
    // They belong to the model's weights.
    let table = roles.take_weights();
    let mut moved = |weight| target.weights.add(table.get(weight).clone());
    for norm in joined_norm.iter_mut().chain(&mut state_norms) {
        norm.weight = norm.weight.map(&mut moved);
    }
    projection.weight = moved(projection.weight);
    projection.bias = projection.bias.map(moved);
    target.output_states = Some(OutputStates::Fused { depths, state_norms, joined_norm, projection });
    Ok(())
}

/// The depths whose states the head reads, of a model with this many layers: by default those before the
/// third layer, that in the middle, and the third from the end. `eagle_config` names layers whose results are
/// read, as SGLang takes it; the field beside it depths, as vLLM, speculators and llama.cpp do.
fn depths(file: &HeadFile<'_>, layers: usize) -> Result<Vec<usize>> {
    let config = file.checkpoint.config();
    let inner = config.object("eagle_config")?.map(|inner| inner.sizes(LAYERS)).transpose()?.flatten();
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
fn sizes(file: &HeadFile<'_>, target: &Decoder) -> Result<Sizes> {
    let defaults = SizeDefaults { layers: 1, ..SizeDefaults::LLAMA };
    let sizes = Sizes::read(file.roles.config, &defaults)?;
    if sizes.vocabulary != target.vocabulary_size {
        return Err(mismatch("vocab_size", sizes.vocabulary, target.vocabulary_size));
    }
    let width = file.checkpoint.config().size(TARGET_WIDTH, 1..=LARGEST_WIDTH)?;
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
    let file = HeadFile::read(head)?;
    let roles = &file.roles;
    let sizes = sizes(&file, target)?;
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
    let (weight, element_type) = if has_own {
        let table = roles.matrix("embed_tokens", sizes.vocabulary, sizes.hidden)?;
        let element_type = roles.activation_type(&table)?;
        (roles.add(table), element_type)
    } else {
        let table = target.weight(target.embedding.weight);
        let element_type = roles.activation_type(table)?;
        (roles.borrow(table), element_type)
    };
    let epsilon = file.epsilon()?;
    let norm = |name: &str| roles.rms_norm(name, sizes.hidden, epsilon);
    let before_residual = file.flag("norm_before_residual", false)?;
    let first = first(head);
    let embedding_norm = norm(&format!("{first}.input_layernorm"))?;
    let hidden_norm = norm(&format!("{first}.hidden_norm"))?;
    let layers = (0..sizes.layers).map(|index| match index {
        0 => file.layer(first, &sizes, (!before_residual).then_some(hidden_norm), 2),
        _ => {
            let name = format!("layers.{index}");
            if roles.has(&format!("{name}.hidden_norm.weight")) {
                // Before attention, SGLang takes this norm there, and vLLM the other.
                let message = "heads with a norm of hidden states in a later layer are not supported";
                return Err(Error::unsupported(OPERATION, message)
                    .with_context("tensor", format!("{name}.hidden_norm.weight")));
            }
            file.layer(&name, &sizes, Some(norm(&format!("{name}.input_layernorm"))?), 1)
        }
    });
    let layers = layers.collect::<Result<Vec<_>>>()?;
    let last_norm = norm("norm")?;
    let (projection, head_tokens) = logits(&file, &sizes, target)?;
    let embedding =
        Embedding { weight, scale: 1.0, positions: None, types: None, norm: None, projection: None };
    let is_normed = file.flag("norm_output", false)?;
    Ok(Decoder {
        model_type: "eagle3".to_owned(),
        notes: Vec::new(),
        vocabulary_size: sizes.vocabulary,
        hidden_size: sizes.hidden,
        // Rotary embeddings have no end, and the head follows its model.
        context_length: target.context_length,
        element_type,
        embedding,
        input_states: Some(InputStates::Beside {
            embedding_norm,
            state_norm: before_residual.then_some(hidden_norm),
        }),
        layer_embeddings: None,
        streams: None,
        layers,
        norm: Some(last_norm),
        head: Some(projection),
        head_tokens,
        output_states: Some(if is_normed { OutputStates::Normed } else { OutputStates::BeforeNorm }),
        weights: roles.take_weights(),
        gguf_architecture: None,
    })
}

impl HeadFile<'_> {
    /// The layer of a module, whose attention reads `count` times the hidden size.
    fn layer(&self, name: &str, sizes: &Sizes, norm: Option<Norm>, count: usize) -> Result<Layer> {
        let roles = &self.roles;
        let module = format!("{name}.self_attn");
        let rope = sizes.rope(roles.config).read()?;
        let head_norm = |part: &str| {
            let name = format!("{module}.{part}");
            let has = roles.has(&format!("{name}.weight"));
            Ok(has
                .then(|| roles.rms_norm(&name, sizes.head_dim, self.epsilon()?))
                .transpose()?
                .and_then(by_head))
        };
        // Settings are of little use: SGLang does not read those of attention.
        let biases = AttentionBiases {
            inputs: self.has_bias(&format!("{module}.q_proj")),
            output: self.has_bias(&format!("{module}.o_proj")),
        };
        let core = core(sizes.scale(), None, Some(&rope));
        let attention = Attention {
            query_norm: head_norm("q_norm")?,
            key_norm: head_norm("k_norm")?,
            ..roles.wide_attention(&module, count * sizes.hidden, sizes, biases, core)?
        };
        let activation = activation(roles.config, "hidden_act", Activation::Silu)?;
        let mlp = format!("{name}.mlp");
        let biases = self.has_bias(&format!("{mlp}.gate_proj"));
        let mlp = roles.gated_mlp(&mlp, [sizes.hidden, sizes.intermediate], activation, biases)?;
        let mlp_norm =
            roles.rms_norm(&format!("{name}.post_attention_layernorm"), sizes.hidden, self.epsilon()?)?;
        Ok(sequential([Block { norm_before: norm, ..plain(attention) }, pre_norm(mlp_norm, mlp)]))
    }
}

/// The projection to logits, and the token of each if they are not those of all tokens.
fn logits(file: &HeadFile<'_>, sizes: &Sizes, target: &Decoder) -> Result<(Head, Option<Arc<[TokenId]>>)> {
    let roles = &file.roles;
    let mapping = [TOKENS, DIFFERENCES].into_iter().find(|name| roles.has(name));
    let listed = || mapping.and_then(|name| roles.shape(name)?.first().copied());
    let count = file.checkpoint.config().size("draft_vocab_size", 1..=LARGEST_VOCABULARY)?;
    let count = count.or_else(listed).unwrap_or(sizes.vocabulary);
    let tied = !roles.has_matrix("lm_head");
    let projection = if tied {
        let shared = target.head.filter(|_| sizes.hidden == target.hidden_size && count == sizes.vocabulary);
        let shared = shared.ok_or_else(|| {
            let message = "the draft head has no projection to logits, and the model's does not fit";
            Error::new(ErrorKind::NotFound, OPERATION, message).with_context("tensor", "lm_head.weight")
        })?;
        let weight = roles.borrow(target.weight(shared.projection.weight));
        let bias = shared.projection.bias.map(|bias| roles.borrow(target.weight(bias)));
        Linear { weight, bias, ..shared.projection }
    } else {
        roles.linear("lm_head", count, sizes.hidden, false)?
    };
    let head_tokens = match mapping {
        None if count == sizes.vocabulary => None,
        _ => Some(tokens(file.checkpoint, mapping.unwrap_or(DIFFERENCES), count, sizes.vocabulary)?),
    };
    Ok((Head { projection, tied, scale: 1.0, soft_cap: None }, head_tokens))
}

/// The token of each of `count` logits, from the tensor of this name.
fn tokens(head: &Checkpoint, name: &'static str, count: usize, vocabulary: usize) -> Result<Arc<[TokenId]>> {
    let view = head.tensor(name)?;
    let wrong = |message: &'static str| {
        Error::new(ErrorKind::Corrupt, OPERATION, message).with_context("tensor", name)
    };
    let is_fitting = view.element_type == ElementType::I64 && view.shape == [count];
    let numbers = integers::numbers(&view).filter(|_| is_fitting);
    let numbers = numbers
        .ok_or_else(|| wrong("the tokens of a draft head's logits should be as many 64-bit integers"))?;
    let mut is_known = vec![false; vocabulary];
    let token = |(index, number): (usize, i64)| {
        let first = if name == DIFFERENCES { index as i64 } else { 0 };
        let token = usize::try_from(first.saturating_add(number)).unwrap_or(usize::MAX);
        // A token that is out of range or known is refused.
        if is_known.get_mut(token).is_none_or(|known| std::mem::replace(known, true)) {
            return Err(wrong("a logit of the draft head belongs to no token of its own"));
        }
        Ok(token as TokenId)
    };
    numbers.into_iter().enumerate().map(token).collect()
}
