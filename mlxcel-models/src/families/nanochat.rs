//! nanochat: norms without weights, also of embeddings and of rotated queries and keys, rotation in the other
//! direction, MLPs without gates, and a soft cap of logits.
//!
//! Config fields, defaults and arithmetic follow transformers' `NanoChatConfig` and `NanoChatForCausalLM`.

use super::prelude::*;

pub(super) const FAMILY: Family = Family::new(&["nanochat"], &[1], describe);

const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 50_304,
    hidden: 768,
    intermediate: 8192,
    layers: 12,
    query_heads: 6,
    ..SizeDefaults::LLAMA
};

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let rope = sizes.rope(config).read()?.reversed();
    let variant = Variant {
        embedding_norm: Some("norm"),
        bare_norms: true,
        attention_biases: AttentionBiases::read(config)?,
        head_norms: Some((NormScope::RotatedHead, ["q_norm", "k_norm"])),
        mlp_form: MlpForm::Plain(["fc1", "fc2"]),
        activation: Activation::ReluSquared,
        logit_soft_cap: optional_positive(config, "final_logit_softcapping", Some(15.0))?,
        ..Variant::PLAIN
    };
    variant.decoder(roles, &sizes, |_| core(sizes.scale(), None, Some(&rope)))
}
