//! InternLM 3: Llama's network, whose biases are called `qkv_bias` and `bias`.
//!
//! Config fields, defaults and arithmetic follow transformers' `InternLM3Config` and its `LlamaForCausalLM`.

use super::prelude::*;

pub(super) const FAMILY: Family = Family::new(&["internlm3"], &[2], describe);

const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 128_512,
    intermediate: 10_240,
    layers: 48,
    kv_heads: Some(2),
    head_dim: Some(128),
    context: 32_768,
    ..SizeDefaults::LLAMA
};

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let rope = sizes.rope(config).read()?;
    let attention_biases = aliased_flag(config, ["qkv_bias", "attention_bias"])?;
    let mlp_biases = aliased_flag(config, ["bias", "mlp_bias"])?;
    if attention_biases != mlp_biases {
        let message = format!(
            "biases of the MLP without those of attention, or the other way round, are not supported: \
            it is {mlp_biases}, and that of attention {attention_biases}"
        );
        let key = if config.mentions("bias") { "bias" } else { "mlp_bias" };
        return Err(config.unsupported(key, message));
    }
    let variant = Variant {
        epsilon: 1e-5,
        attention_biases: AttentionBiases::all(attention_biases),
        mlp_biases,
        ..Variant::PLAIN
    };
    variant.decoder(roles, &sizes, |_| core(sizes.scale(), None, Some(&rope)))
}

/// The flag under the first of two names that is there; false where neither is.
fn aliased_flag(config: Fields<'_>, keys: [&str; 2]) -> Result<bool> {
    let key = if config.mentions(keys[0]) { keys[0] } else { keys[1] };
    flag(config, key, false)
}
