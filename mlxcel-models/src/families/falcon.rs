//! Falcon: one matrix of queries, keys and values with few key/value heads, MLPs without gates, and attention
//! and MLP side by side.
//!
//! Config fields, defaults and arithmetic follow transformers' `FalconConfig` and `FalconForCausalLM`.

use super::prelude::*;

pub(super) const FAMILY: Family = Family::new(&["falcon"], &[11], describe);

const DEFAULTS: SizeDefaults =
    SizeDefaults { vocabulary: 65_024, hidden: 4544, query_heads: 71, ..SizeDefaults::LLAMA };

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    expect_flag(config, "alibi", false)?;
    expect_flag(config, "apply_residual_connection_post_layernorm", false)?;
    let newer = flag(config, "new_decoder_architecture", false)?;
    let by_group = flag(config, "fused_by_group", true)?;
    let sizes = sizes(config, newer)?;
    let (norms, parallel) = blocks(config, newer, by_group)?;
    let biases = flag(config, "bias", false)?;
    let rope = sizes.rope(config).read()?;
    let variant = Variant {
        base: "transformer.",
        embedding: "word_embeddings",
        layers: "h",
        epsilon: 1e-5,
        epsilon_key: "layer_norm_epsilon",
        norm_kind: NormKind::Layer,
        norms: Some(norms),
        parallel,
        last_norm: "ln_f",
        mlp_form: MlpForm::Plain(["dense_h_to_4h", "dense_4h_to_h"]),
        mlp_biases: biases,
        activation_key: "activation",
        activation: Activation::Gelu,
        tied: true,
        ..Variant::PLAIN
    };
    let attention = |_, layer: &str| {
        let (queries, keys) = (sizes.query_width(), sizes.kv_width());
        let name = |part: &str| format!("{layer}.self_attention.{part}");
        let fused = roles.fused(&name("query_key_value"), queries + 2 * keys, sizes.hidden, biases)?;
        // In GGUF files all queries, keys and values follow each other.
        let inputs = if by_group { fused.by_group(&sizes) } else { fused.in_order(&sizes) };
        let output = roles.linear(&name("dense"), sizes.hidden, queries, biases)?;
        Ok(plain_attention(&sizes, inputs, output, core(sizes.scale(), None, Some(&rope))).into())
    };
    let mlp = variant.mlp(roles, &sizes)?;
    variant.decoder_of(roles, &sizes, attention, |_, layer| mlp(layer))
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

/// The norms before attention and before the MLP, and whether both are side by side: perhaps behind one norm.
fn blocks(config: Fields<'_>, newer: bool, published: bool) -> Result<([&'static str; 2], bool)> {
    const PARALLEL: &str = "parallel_attn";
    let norms = config.size("num_ln_in_parallel_attn", 1..=2)?;
    match (flag(config, PARALLEL, true)?, newer) {
        (false, false) => Ok((["input_layernorm", "post_attention_layernorm"], false)),
        (false, true) => {
            let message = "false is not supported with new_decoder_architecture".to_owned();
            Err(config.unsupported(PARALLEL, message))
        }
        // In GGUF files that of the MLP has the name of the shared one.
        (true, true) if norms != Some(1) => {
            Ok((["ln_attn", if published { "ln_mlp" } else { "input_layernorm" }], true))
        }
        (true, _) => Ok((["input_layernorm"; 2], true)),
    }
}
