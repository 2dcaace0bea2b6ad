//! Gemma 2: Gemma with norms before and after each operation, soft caps, and a window in every other layer.
//!
//! Config fields, defaults and arithmetic follow transformers' `Gemma2Config` and `Gemma2ForCausalLM`.

use mlxcel_core::Result;

use super::Family;
use super::blocks::{AttentionBiases, between_norms, by_head, core, sequential};
use super::gemma::embedding_scale;
use super::outline::Outline;
use super::roles::Roles;
use super::settings::{
    SizeDefaults, Sizes, activation, expect_flag, flag, optional_positive, positive, sliding_windows, window,
};
use crate::decoder::{Activation, Attention, AttentionCore, Decoder};

pub(super) const FAMILY: Family = Family::new(&["gemma2"], &[1], describe);

pub(super) const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 256_000,
    hidden: 2304,
    intermediate: 9216,
    layers: 26,
    query_heads: 8,
    kv_heads: Some(4),
    head_dim: Some(256),
    context: 8192,
};

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    expect_flag(config, "use_bidirectional_attention", false)?;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let scale = positive(config, "query_pre_attn_scalar", 256.0)?.powf(-0.5);
    let score_cap = optional_positive(config, "attn_logit_softcapping", Some(50.0))?;
    let window = window(config, "sliding_window", Some(4096))?;
    let windows = sliding_windows(config, sizes.layers, window, |index| index % 2 == 0)?;
    let rope = sizes.rope(config).read()?;
    decoder(roles, &sizes, Some(30.0), false, |index| AttentionCore {
        soft_cap: score_cap,
        ..core(scale, windows[index], Some(&rope))
    })
}

/// The decoder of a checkpoint with Gemma 2's structure and tensor names. Each head of queries and keys may be
/// `normed`; `cap` is that of logits if the settings have none, and `core` the attention of a layer.
pub(super) fn decoder(
    roles: &Roles<'_>,
    sizes: &Sizes,
    cap: Option<f64>,
    normed: bool,
    core: impl Fn(usize) -> AttentionCore,
) -> Result<Decoder> {
    let config = roles.config;
    let epsilon = positive(config, "rms_norm_eps", 1e-6)?;
    let biases = AttentionBiases::all(flag(config, "attention_bias", false)?);
    let activation = activation(config, "hidden_activation", Activation::GeluTanh)?;
    let tied = flag(config, "tie_word_embeddings", true)?;

    let base = roles.base("model.", "embed_tokens");
    let norm = |name: &str| roles.offset_rms_norm(name, sizes.hidden, epsilon);
    let head_norm = |name: &str| match normed {
        true => Ok(by_head(roles.offset_rms_norm(name, sizes.head_dim, epsilon)?)),
        false => Ok(None),
    };
    let layer = |index: usize| {
        let name = |part: &str| format!("{base}layers.{index}.{part}");
        Ok(sequential([
            between_norms(
                norm(&name("input_layernorm"))?,
                Attention {
                    query_norm: head_norm(&name("self_attn.q_norm"))?,
                    key_norm: head_norm(&name("self_attn.k_norm"))?,
                    ..roles.attention(&name("self_attn"), sizes, biases, core(index))?
                },
                norm(&name("post_attention_layernorm"))?,
            ),
            between_norms(
                norm(&name("pre_feedforward_layernorm"))?,
                roles.gated_mlp(&name("mlp"), [sizes.hidden, sizes.intermediate], activation, false)?,
                norm(&name("post_feedforward_layernorm"))?,
            ),
        ]))
    };
    let outline = Outline {
        embedding_scale: embedding_scale(sizes),
        logit_soft_cap: optional_positive(config, "final_logit_softcapping", cap)?,
        ..Outline::new(sizes, &base, tied)
    };
    roles.decoder(outline, norm, layer)
}
