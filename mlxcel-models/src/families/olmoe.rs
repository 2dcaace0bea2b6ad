//! OLMoE: experts in every layer, and norms over all heads of queries and keys.
//!
//! Config fields, defaults and arithmetic follow transformers' `OlmoeConfig` and `OlmoeForCausalLM`.

use mlxcel_core::Result;

use super::Family;
use super::blocks::{AttentionBiases, core};
use super::experts::ExpertSizes;
use super::llama::{Variant, decoder_with};
use super::roles::Roles;
use super::settings::{SizeDefaults, Sizes, activation, flag, optional_positive};
use crate::decoder::{Activation, Decoder, NormScope};

pub(super) const FAMILY: Family = Family::new(&["olmoe"], &[50_279], describe);

const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 50_304,
    hidden: 2048,
    intermediate: 2048,
    layers: 16,
    query_heads: 16,
    kv_heads: None,
    head_dim: None,
    context: 4096,
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
        attention_biases: AttentionBiases::all(flag(config, "attention_bias", false)?),
        head_norms: Some((NormScope::Full, ["q_norm", "k_norm"])),
        clip: optional_positive(config, "clip_qkv", None)?,
        ..Variant::PLAIN
    };
    let core = |_| core(sizes.scale(), None, Some(&rope));
    decoder_with(roles, &sizes, &variant, core, |_, layer| {
        let module = format!("{layer}.mlp");
        roles.softmax_experts(&module, "gate", experts, normalised, activation, || Ok(None))
    })
}
