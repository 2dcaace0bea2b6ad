//! Falcon: one matrix of queries, keys and values with few key/value heads, MLPs without gates, and attention
//! and MLP side by side.
//!
//! Config fields, defaults and arithmetic follow transformers' `FalconConfig` and `FalconForCausalLM`.

use mlxcel_core::Result;

use super::Family;
use super::blocks::{core, parallel, plain_attention, pre_norm, sequential};
use super::outline::Outline;
use super::roles::Roles;
use super::settings::{
    LARGEST_HEAD_COUNT, LARGEST_WIDTH, SizeDefaults, Sizes, activation, expect_flag, expect_shared, flag,
    positive,
};
use crate::config::Fields;
use crate::decoder::{Activation, Decoder};

pub(super) const FAMILY: Family = Family::new(&["falcon"], &[11], describe);

const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 65_024,
    hidden: 4544,
    intermediate: 0,
    layers: 32,
    query_heads: 71,
    kv_heads: None,
    head_dim: None,
    context: 2048,
};

/// How the blocks of a layer are connected.
#[derive(Clone, Copy)]
enum Blocks {
    /// One after the other.
    Sequential,
    /// Side by side behind one norm.
    SharedNorm,
    /// Side by side, each behind its own norm.
    OwnNorms,
}

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    expect_flag(config, "alibi", false)?;
    expect_flag(config, "apply_residual_connection_post_layernorm", false)?;
    let newer = flag(config, "new_decoder_architecture", false)?;
    let sizes = sizes(config, newer)?;
    let blocks = blocks(config, newer)?;
    let epsilon = positive(config, "layer_norm_epsilon", 1e-5)?;
    let biases = flag(config, "bias", false)?;
    let activation = activation(config, "activation", Activation::Gelu)?;
    let tied = flag(config, "tie_word_embeddings", true)?;
    let by_group = flag(config, "fused_by_group", true)?;
    let rope = sizes.rope(config).read()?;

    let base = roles.base("transformer.", "word_embeddings");
    let norm = |name: &str| roles.layer_norm(name, sizes.hidden, epsilon, true);
    let attention = |name: &str| {
        let (queries, keys) = (sizes.query_width(), sizes.kv_width());
        let name = |part: &str| format!("{name}.{part}");
        let fused = roles.fused(&name("query_key_value"), queries + 2 * keys, sizes.hidden, biases)?;
        // In GGUF files all queries, keys and values follow each other.
        let inputs = if by_group { fused.by_group(&sizes) } else { fused.in_order(&sizes) };
        let output = roles.linear(&name("dense"), sizes.hidden, queries, biases)?;
        Ok(plain_attention(&sizes, inputs, output, core(sizes.scale(), None, Some(&rope))))
    };
    let mlp = |name: &str| {
        let shape = [sizes.hidden, sizes.intermediate];
        roles.plain_mlp_of(name, ["dense_h_to_4h", "dense_4h_to_h"], shape, activation, biases)
    };
    let layer = |index: usize| {
        let name = |part: &str| format!("{base}h.{index}.{part}");
        let first = if matches!(blocks, Blocks::OwnNorms) { "ln_attn" } else { "input_layernorm" };
        let first = norm(&name(first))?;
        let attention = pre_norm(first, attention(&name("self_attention"))?);
        let second = match blocks {
            Blocks::Sequential => norm(&name("post_attention_layernorm"))?,
            Blocks::SharedNorm => first,
            // In GGUF files it has the name of the shared one.
            Blocks::OwnNorms => norm(&name(if by_group { "ln_mlp" } else { "input_layernorm" }))?,
        };
        let blocks_of_layer = [attention, pre_norm(second, mlp(&name("mlp"))?)];
        Ok(match blocks {
            Blocks::Sequential => sequential(blocks_of_layer),
            Blocks::SharedNorm | Blocks::OwnNorms => parallel(blocks_of_layer),
        })
    };
    let outline = Outline {
        embedding: format!("{base}word_embeddings"),
        norm: format!("{base}ln_f"),
        ..Outline::new(&sizes, &base, tied)
    };
    roles.decoder(outline, norm, layer)
}

/// The sizes. The newer architecture has any number of key/value heads, the older one or as many as query
/// heads.
fn sizes(config: Fields<'_>, newer: bool) -> Result<Sizes> {
    const KEY: &str = "num_kv_heads";
    let width = config.size("ffn_hidden_size", 1..=LARGEST_WIDTH)?;
    let sizes = Sizes::read_others(config, &DEFAULTS, width.unwrap_or(0))?.with_equal_heads(config)?;
    let given = config.size(KEY, 1..=LARGEST_HEAD_COUNT)?.unwrap_or(sizes.query_heads);
    let kv_heads = match (newer, flag(config, "multi_query", true)?) {
        (true, _) => given,
        (false, true) => 1,
        (false, false) => sizes.query_heads,
    };
    if kv_heads != given && kv_heads > 1 {
        let message =
            format!("{given} should be the number of heads, {kv_heads}, where each has its own keys");
        return Err(config.wrong(KEY, message));
    }
    expect_shared(config, KEY, kv_heads, sizes.query_heads)?;
    Ok(Sizes { kv_heads, intermediate: width.unwrap_or(4 * sizes.hidden), ..sizes })
}

/// How blocks are connected.
fn blocks(config: Fields<'_>, newer: bool) -> Result<Blocks> {
    const PARALLEL: &str = "parallel_attn";
    let norms = config.size("num_ln_in_parallel_attn", 1..=2)?;
    Ok(match (flag(config, PARALLEL, true)?, newer) {
        (false, false) => Blocks::Sequential,
        (false, true) => {
            let message = "false is not supported with new_decoder_architecture".to_owned();
            return Err(config.unsupported(PARALLEL, message));
        }
        (true, true) if norms != Some(1) => Blocks::OwnNorms,
        (true, _) => Blocks::SharedNorm,
    })
}
