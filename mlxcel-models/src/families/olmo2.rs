//! OLMo 2: norms after each operation instead of before, and norms of queries and keys over all heads.
//!
//! Config fields, defaults and arithmetic follow transformers' `Olmo2Config` and `Olmo2ForCausalLM`.

use super::prelude::*;

pub(super) const FAMILY: Family = Family::new(&["olmo2"], &[50_279], describe);

pub(super) const DEFAULTS: SizeDefaults = SizeDefaults { vocabulary: 50_304, ..SizeDefaults::LLAMA };

/// Llama with norms after its operations instead of before, and without norms of queries and keys.
pub(super) const NORMS_BEHIND: Variant = Variant {
    epsilon: 1e-5,
    norms: None,
    norms_after: Some(["post_attention_layernorm", "post_feedforward_layernorm"]),
    ..Variant::PLAIN
};

/// The norms of queries and keys over all heads.
pub(super) const FULL_NORMS: Option<(NormScope, [&str; 2])> = Some((NormScope::Full, ["q_norm", "k_norm"]));

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let sizes = Sizes::read(roles.config, &DEFAULTS)?;
    let rope = sizes.rope(roles.config).read()?;
    variant(roles.config)?.decoder(roles, &sizes, |_| core(sizes.scale(), None, Some(&rope)))
}

/// What this generation and the next do otherwise than Llama.
pub(super) fn variant(config: Fields<'_>) -> Result<Variant> {
    let attention_biases = AttentionBiases::read(config)?;
    Ok(Variant { attention_biases, head_norms: FULL_NORMS, ..NORMS_BEHIND })
}
