//! Persimmon: layer norms, also of the queries and keys of each head, biases, rotary embedding of half of
//! each head, and a squared ReLU without a gate.
//!
//! Config fields, defaults and arithmetic follow transformers' `PersimmonConfig` and `PersimmonForCausalLM`.

use super::prelude::*;

pub(super) const FAMILY: Family = Family::new(&["persimmon"], &[2], describe);

const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 262_144,
    intermediate: 16_384,
    layers: 36,
    query_heads: 64,
    context: 16_384,
    ..SizeDefaults::LLAMA
};

/// The norms of queries and keys of each head, which Phi has as well.
pub(super) const HEAD_NORMS: (NormScope, [&str; 2]) = (NormScope::Head, ["q_layernorm", "k_layernorm"]);

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let sizes = Sizes::read(config, &DEFAULTS)?.with_equal_heads(config)?;
    let hidden = sizes.hidden;
    let partial = Partial::Even { key: "partial_rotary_factor", default: 0.5 };
    let rope = RopeSettings { partial, ..sizes.rope(config) }.read()?;
    let variant = Variant {
        epsilon: 1e-5,
        epsilon_key: "layer_norm_eps",
        norm_kind: NormKind::Layer,
        last_norm: "final_layernorm",
        head_norms: flag(config, "qk_layernorm", true)?.then_some(HEAD_NORMS),
        mlp_form: MlpForm::Plain(["dense_h_to_4h", "dense_4h_to_h"]),
        mlp_biases: true,
        activation: Activation::ReluSquared,
        ..Variant::PLAIN
    };
    let attention = |_, layer: &str| {
        let module = format!("{layer}.self_attn");
        let fused = roles.fused(&format!("{module}.query_key_value"), 3 * hidden, hidden, true)?;
        let output = roles.linear(&format!("{module}.dense"), hidden, hidden, true)?;
        let core = core(sizes.scale(), None, Some(&rope));
        let attention = plain_attention(&sizes, fused.by_group(&sizes), output, core);
        Ok(variant.normed(roles, &sizes, &module, attention)?.into())
    };
    let mlp = variant.mlp(roles, &sizes)?;
    variant.decoder_of(roles, &sizes, attention, |_, layer| mlp(layer))
}
