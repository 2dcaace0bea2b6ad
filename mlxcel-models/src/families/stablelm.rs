//! StableLM 2: layer norms, partial rotary embedding, and in the 12B model parallel attention and MLP.
//!
//! Config fields, defaults and arithmetic follow transformers' `StableLmConfig` and `StableLmForCausalLM`.

use super::prelude::*;

pub(super) const FAMILY: Family = Family::new(&["stablelm"], &[0], describe);

const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 50_304,
    hidden: 2560,
    intermediate: 6912,
    kv_heads: Some(32),
    context: 4096,
    ..SizeDefaults::LLAMA
};

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let sizes = Sizes {
        head_dim: head_dim(config, "num_attention_heads", sizes.hidden, sizes.query_heads)?,
        ..sizes
    };
    let is_normed = flag(config, "qk_layernorm", false)?;
    let parallel = flag(config, "use_parallel_residual", false)?;
    // transformers cuts heads behind an odd number of elements and turns one more.
    let partial = Partial::Even { key: "partial_rotary_factor", default: 0.25 };
    let rope = RopeSettings { partial, ..sizes.rope(config) }.read()?;
    let variant = Variant {
        epsilon: 1e-5,
        epsilon_key: "layer_norm_eps",
        norm_kind: NormKind::Layer,
        norms: Some([
            "input_layernorm",
            if parallel { "input_layernorm" } else { "post_attention_layernorm" },
        ]),
        parallel,
        attention_biases: AttentionBiases::inputs(flag(config, "use_qkv_bias", false)?),
        ..Variant::PLAIN
    };
    let epsilon = positive(config, variant.epsilon_key, variant.epsilon)?;
    // Each head has a norm of its own.
    let head_norm = |name: String, heads: usize| {
        let factors = |head: usize| roles.dense(&format!("{name}.norms.{head}.weight"), &[sizes.head_dim]);
        let rest = (1..heads).map(factors).collect::<Result<Vec<_>>>()?;
        let weight = Some(roles.add(factors(0)?.stacked(rest)));
        Ok(by_head(Norm { kind: NormKind::Layer, weight, ..plain_norm(sizes.head_dim, epsilon) }))
    };
    let attention = |_, layer: &str| {
        let core = core(sizes.scale(), None, Some(&rope));
        let mut attention = variant.attention(roles, &sizes, layer, core)?;
        if is_normed {
            attention.query_norm = head_norm(format!("{layer}.self_attn.q_layernorm"), sizes.query_heads)?;
            attention.key_norm = head_norm(format!("{layer}.self_attn.k_layernorm"), sizes.kv_heads)?;
        }
        Ok(attention.into())
    };
    let mlp = variant.mlp(roles, &sizes)?;
    variant.decoder_of(roles, &sizes, attention, |_, layer| mlp(layer))
}
