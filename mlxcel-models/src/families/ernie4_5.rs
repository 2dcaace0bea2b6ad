//! ERNIE 4.5: Llama with rotary embedding of adjacent elements.
//!
//! Config fields, defaults and arithmetic follow transformers' `Ernie4_5Config` and `Ernie4_5ForCausalLM`.

use super::prelude::*;

pub(super) const FAMILY: Family = Family::new(&["ernie4_5"], &[2], describe);

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let defaults = SizeDefaults {
        vocabulary: 103_424,
        hidden: 1024,
        intermediate: 3072,
        layers: 18,
        query_heads: 16,
        kv_heads: Some(2),
        head_dim: Some(128),
        context: 131_072,
    };
    let sizes = Sizes::read(config, &defaults)?;
    let rope = RopeSettings { theta: 500_000.0, interleaved: true, ..sizes.rope(config) }.read()?;
    let biases = flag(config, "use_bias", false)?;
    let variant = Variant {
        epsilon: 1e-5,
        attention_biases: AttentionBiases::all(biases),
        mlp_biases: biases,
        tied: true,
        ..Variant::PLAIN
    };
    variant.decoder(roles, &sizes, |_| core(sizes.scale(), None, Some(&rope)))
}
