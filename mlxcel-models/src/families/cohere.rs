//! Cohere (Command R, Aya): parallel attention and MLP after one layer norm, rotary embedding of adjacent
//! elements, and in Command R+ norms of queries and keys with factors of their own for each head.
//!
//! Config fields, defaults and arithmetic follow transformers' `CohereConfig` and `CohereForCausalLM`.

use super::prelude::*;

pub(super) const FAMILY: Family = Family::new(&["cohere"], &[255_001], describe);

pub(super) const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 256_000,
    hidden: 8192,
    intermediate: 22_528,
    layers: 40,
    query_heads: 64,
    context: 8192,
    ..SizeDefaults::LLAMA
};

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let variant = variant(config)?;
    let epsilon = positive(config, variant.epsilon_key, variant.epsilon)?;
    let is_normed = flag(config, "use_qk_norm", false)?;
    let rope = RopeSettings { theta: 500_000.0, interleaved: true, ..sizes.rope(config) }.read()?;
    let head_norm = |name: String, heads: usize| {
        let weight = Some(roles.tensor(&format!("{name}.weight"), &[heads, sizes.head_dim])?);
        Ok(by_head(Norm { kind: NormKind::Layer, weight, ..plain_norm(sizes.head_dim, epsilon) }))
    };
    let attention = |_, layer: &str| {
        let core = core(sizes.scale(), None, Some(&rope));
        let mut attention = variant.attention(roles, &sizes, layer, core)?;
        if is_normed {
            attention.query_norm = head_norm(format!("{layer}.self_attn.q_norm"), sizes.query_heads)?;
            attention.key_norm = head_norm(format!("{layer}.self_attn.k_norm"), sizes.kv_heads)?;
        }
        Ok(attention.into())
    };
    let mlp = variant.mlp(roles, &sizes)?;
    variant.decoder_of(roles, &sizes, attention, |_, layer| mlp(layer))
}

/// Llama with parallel blocks behind one layer norm, as the generations of Cohere have them.
pub(super) fn variant(config: Fields<'_>) -> Result<Variant> {
    Ok(Variant {
        epsilon: 1e-5,
        epsilon_key: "layer_norm_eps",
        norm_kind: NormKind::Layer,
        norm_biases: false,
        norms: Some(["input_layernorm"; 2]),
        parallel: true,
        attention_biases: AttentionBiases::read(config)?,
        tied: true,
        logit_scale: number(config, "logit_scale", 0.0625)?,
        ..Variant::PLAIN
    })
}
