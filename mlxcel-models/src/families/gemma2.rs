//! Gemma 2: Gemma with norms before and after each operation, soft caps, and a window in every other layer.
//!
//! Config fields, defaults and arithmetic follow transformers' `Gemma2Config` and `Gemma2ForCausalLM`.

use super::gemma::embedding_scale;
use super::prelude::*;

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
    expect_flag(roles.config, "use_bidirectional_attention", false)?;
    capped(roles, variant)
}

/// The decoder of a checkpoint with Gemma 2's sizes, soft caps and windows; `variant` makes what it does
/// otherwise than Llama from its sizes and the cap of logits if the settings have none.
pub(super) fn capped(
    roles: &Roles<'_>,
    variant: impl FnOnce(Fields<'_>, &Sizes, Option<f64>) -> Result<Variant>,
) -> Result<Decoder> {
    let config = roles.config;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let scale = positive(config, "query_pre_attn_scalar", 256.0)?.powf(-0.5);
    let soft_cap = optional_positive(config, "attn_logit_softcapping", Some(50.0))?;
    let window = window(config, "sliding_window", Some(4096))?;
    let windows = sliding_windows(config, sizes.layers, window, |index| index % 2 == 0)?;
    let rope = sizes.rope(config).read()?;
    variant(config, &sizes, Some(30.0))?.decoder(roles, &sizes, |index| AttentionCore {
        soft_cap,
        ..core(scale, windows[index], Some(&rope))
    })
}

/// What Gemma 2 and Gemma 3 do otherwise than Llama; `cap` is that of logits if the settings have none.
pub(super) fn variant(config: Fields<'_>, sizes: &Sizes, cap: Option<f64>) -> Result<Variant> {
    Ok(Variant {
        norm_offset: 1.0,
        norms: Some(["input_layernorm", "pre_feedforward_layernorm"]),
        norms_after: Some(["post_attention_layernorm", "post_feedforward_layernorm"]),
        attention_biases: AttentionBiases::read(config)?,
        activation_key: "hidden_activation",
        activation: Activation::GeluTanh,
        tied: true,
        embedding_scale: embedding_scale(sizes),
        logit_soft_cap: optional_positive(config, "final_logit_softcapping", cap)?,
        ..Variant::PLAIN
    })
}
