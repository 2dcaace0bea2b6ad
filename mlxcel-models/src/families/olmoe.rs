//! OLMoE: experts in every layer, and norms over all heads of queries and keys.
//!
//! Config fields, defaults and arithmetic follow transformers' `OlmoeConfig` and `OlmoeForCausalLM`.

use super::experts::ExpertSizes;
use super::olmo2::{self, FULL_NORMS};
use super::prelude::*;

pub(super) const FAMILY: Family = Family::new(&["olmoe"], &[50_279], describe);

const DEFAULTS: SizeDefaults = SizeDefaults {
    hidden: 2048,
    intermediate: 2048,
    layers: 16,
    query_heads: 16,
    context: 4096,
    ..olmo2::DEFAULTS
};

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let rope = sizes.rope(config).read()?;
    let activation = activation(config, "hidden_act", Activation::Silu)?;
    let experts = ExpertSizes::read(config, &sizes, &["num_experts", "num_local_experts"], 1, [64, 8])?;
    let normalised = flag(config, "norm_topk_prob", false)?;
    let variant = Variant {
        epsilon: 1e-5,
        attention_biases: AttentionBiases::read(config)?,
        head_norms: FULL_NORMS,
        clip: optional_positive(config, "clip_qkv", None)?,
        ..Variant::PLAIN
    };
    let core = |_| core(sizes.scale(), None, Some(&rope));
    variant.decoder_with(roles, &sizes, core, |_, layer| {
        let module = format!("{layer}.mlp");
        roles.softmax_experts(&module, "gate", experts, normalised, activation, None)
    })
}
