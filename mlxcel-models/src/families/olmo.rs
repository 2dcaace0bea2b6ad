//! OLMo: Llama with layer norms that have no weights, and limits of queries, keys and values.
//!
//! Config fields, defaults and arithmetic follow transformers' `OlmoConfig` and `OlmoForCausalLM`.

use super::olmo2::DEFAULTS;
use super::prelude::*;

pub(super) const FAMILY: Family = Family::new(&["olmo"], &[50_279], describe);

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let rope = sizes.rope(config).read()?;
    let variant = Variant {
        // Only GGUF files say it; it is the same in all.
        epsilon_key: "layer_norm_eps",
        epsilon: 1e-5,
        norm_kind: NormKind::Layer,
        bare_norms: true,
        attention_biases: AttentionBiases::read(config)?,
        clip: optional_positive(config, "clip_qkv", None)?,
        ..Variant::PLAIN
    };
    variant.decoder(roles, &sizes, |_| core(sizes.scale(), None, Some(&rope)))
}
