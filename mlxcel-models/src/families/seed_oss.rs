//! Seed-OSS: Llama with biases on queries, keys and values.
//!
//! Config fields, defaults and arithmetic follow transformers' `SeedOssConfig` and `SeedOssForCausalLM`.

use super::prelude::*;

pub(super) const FAMILY: Family = Family::new(&["seed_oss"], &[2], describe);

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let defaults = SizeDefaults {
        vocabulary: 155_136,
        hidden: 4096,
        intermediate: 27_648,
        layers: 64,
        query_heads: 80,
        kv_heads: Some(8),
        head_dim: Some(128),
        context: 524_288,
    };
    let sizes = Sizes::read(config, &defaults)?;
    let rope = sizes.rope(config).read()?;
    let variant = Variant {
        attention_biases: AttentionBiases {
            inputs: flag(config, "attention_bias", true)?,
            output: flag(config, "attention_out_bias", false)?,
        },
        mlp_biases: flag(config, "mlp_bias", false)?,
        ..Variant::PLAIN
    };
    variant.decoder(roles, &sizes, |_| core(sizes.scale(), None, Some(&rope)))
}
