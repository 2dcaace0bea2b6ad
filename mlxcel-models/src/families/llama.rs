//! Llama, and everything published as `model_type: llama` (SmolLM, TinyLlama, Yi, …).
//!
//! Settings, their defaults and the arithmetic are those of transformers' `LlamaConfig` and `LlamaForCausalLM`. Families
//! that add little to it are described here too, by their [`Variant`].

use mlxcel_core::Result;

use super::Family;
use super::roles::{Roles, activation, activation_type};
use crate::checkpoint::Checkpoint;
use crate::decoder::{
    Activation, Arrangement, Attention, AttentionCore, Block, Decoder, Embedding, Gating, Head, Layer, Linear,
    Mixer, Mlp, Operation,
};
use crate::rope::Rope;

pub(super) const FAMILY: Family = Family { model_types: &["llama"], assumed_stop_token: Some(2), describe };

// Far above any published model, and low enough that no product of two overflows.
const LARGEST_WIDTH: usize = 1 << 20;
const LARGEST_HEAD_COUNT: usize = 1 << 12;
const LARGEST_HEAD_DIM: usize = 1 << 12;
const LARGEST_LAYER_COUNT: usize = 1 << 12;
const LARGEST_VOCABULARY: usize = 1 << 24;
pub(super) const LARGEST_CONTEXT: usize = 1 << 30;

/// What a family of Llama's structure does otherwise.
pub(super) struct Variant {
    /// The context where `max_position_embeddings` does not give one.
    pub(super) context_length: usize,
    /// The key/value heads where `num_key_value_heads` is not mentioned; `None`: as many as query heads.
    pub(super) kv_heads: Option<usize>,
    /// Whether `attention_bias` and `mlp_bias` are among its settings.
    pub(super) biases: bool,
    /// How many positions a position sees.
    pub(super) window: Option<usize>,
}

fn describe(checkpoint: &Checkpoint) -> Result<Decoder> {
    describe_variant(
        checkpoint,
        &Variant { context_length: 2048, kv_heads: None, biases: true, window: None },
    )
}

/// The decoder of a checkpoint of Llama's structure and tensor names.
pub(super) fn describe_variant(checkpoint: &Checkpoint, variant: &Variant) -> Result<Decoder> {
    let config = checkpoint.config();
    let vocabulary_size = config.required_size("vocab_size", 1..=LARGEST_VOCABULARY)?;
    let hidden_size = config.required_size("hidden_size", 1..=LARGEST_WIDTH)?;
    let intermediate_size = config.required_size("intermediate_size", 1..=LARGEST_WIDTH)?;
    let layer_count = config.required_size("num_hidden_layers", 1..=LARGEST_LAYER_COUNT)?;
    let query_heads = config.required_size("num_attention_heads", 1..=LARGEST_HEAD_COUNT)?;
    let assumed_kv_heads = variant.kv_heads.filter(|_| !config.mentions("num_key_value_heads"));
    let kv_heads = config
        .size("num_key_value_heads", 1..=LARGEST_HEAD_COUNT)?
        .or(assumed_kv_heads)
        .unwrap_or(query_heads);
    if query_heads % kv_heads != 0 {
        let message =
            format!("{kv_heads} key/value heads cannot be shared evenly by {query_heads} query heads");
        return Err(config.wrong("num_key_value_heads", message));
    }
    let head_dim = match config.size("head_dim", 1..=LARGEST_HEAD_DIM)? {
        Some(head_dim) => head_dim,
        None if hidden_size % query_heads == 0 => hidden_size / query_heads,
        None => {
            let message = format!("{query_heads} heads do not divide hidden_size, {hidden_size}");
            return Err(config.wrong("num_attention_heads", message));
        }
    };
    if head_dim % 2 != 0 {
        let message =
            format!("heads of {head_dim} elements cannot be rotated in pairs; the number should be even");
        return Err(config.wrong("head_dim", message));
    }
    let context_length =
        config.size("max_position_embeddings", 1..=LARGEST_CONTEXT)?.unwrap_or(variant.context_length);
    let epsilon = config.positive("rms_norm_eps")?.unwrap_or(1e-6) as f32;
    let attention_bias = variant.biases && config.flag("attention_bias")?.unwrap_or(false);
    let mlp_bias = variant.biases && config.flag("mlp_bias")?.unwrap_or(false);
    let tied = config.flag("tie_word_embeddings")?.unwrap_or(false);
    let activation = activation(config, "hidden_act", Activation::Silu)?;
    let rope = Rope::from_config(config, head_dim, context_length)?;

    let roles = Roles::new(checkpoint);
    let table = roles.matrix("model.embed_tokens", vocabulary_size, hidden_size)?;
    let element_type = activation_type(config, &table)?;
    let embedding = Embedding { weight: roles.add(table.clone()), scale: 1.0, positions: None };
    let layer = |index: usize| {
        let name = |part: &str| format!("model.layers.{index}.{part}");
        let attention = |part: &str, outputs, inputs| {
            roles.linear(&name(&format!("self_attn.{part}")), outputs, inputs, attention_bias)
        };
        let mlp =
            |part: &str, outputs, inputs| roles.linear(&name(&format!("mlp.{part}")), outputs, inputs, mlp_bias);
        let mixer = Block {
            norm_before: Some(roles.rms_norm(&name("input_layernorm"), hidden_size, epsilon)?),
            operation: Operation::Mixer(Mixer::Attention(Attention {
                query_heads,
                kv_heads,
                head_dim,
                query: attention("q_proj", query_heads * head_dim, hidden_size)?,
                key: attention("k_proj", kv_heads * head_dim, hidden_size)?,
                value: attention("v_proj", kv_heads * head_dim, hidden_size)?,
                output: attention("o_proj", hidden_size, query_heads * head_dim)?,
                query_norm: None,
                key_norm: None,
                clip: None,
                gate: None,
                core: AttentionCore {
                    scale: (head_dim as f64).powf(-0.5) as f32,
                    window: variant.window,
                    rope: Some(rope.clone()),
                    soft_cap: None,
                    sinks: None,
                    query_scale: None,
                },
            })),
            norm_after: None,
            residual_scale: 1.0,
        };
        let mlp = Block {
            norm_before: Some(roles.rms_norm(&name("post_attention_layernorm"), hidden_size, epsilon)?),
            operation: Operation::Mlp(Mlp::Gated {
                gating: Gating::Activated(activation),
                gate: mlp("gate_proj", intermediate_size, hidden_size)?,
                up: mlp("up_proj", intermediate_size, hidden_size)?,
                down: mlp("down_proj", hidden_size, intermediate_size)?,
            }),
            norm_after: None,
            residual_scale: 1.0,
        };
        Ok(Layer { blocks: vec![mixer, mlp], arrangement: Arrangement::Sequential })
    };
    let layers = (0..layer_count).map(layer).collect::<Result<Vec<_>>>()?;
    let norm = roles.rms_norm("model.norm", hidden_size, epsilon)?;
    let weight = if tied { table } else { roles.matrix("lm_head", vocabulary_size, hidden_size)? };
    let projection =
        Linear { weight: roles.add(weight), bias: None, inputs: hidden_size, outputs: vocabulary_size };
    Ok(Decoder {
        model_type: checkpoint.model_type().to_owned(),
        vocabulary_size,
        hidden_size,
        context_length,
        element_type,
        embedding,
        layers,
        norm,
        head: Head { projection, tied, scale: 1.0, soft_cap: None },
        weights: roles.into_weights(),
    })
}
