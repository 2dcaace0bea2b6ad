//! Qwen3-MoE: Qwen3 with experts instead of most MLPs.
//!
//! Config fields, defaults and arithmetic follow transformers' `Qwen3MoeConfig` and `Qwen3MoeForCausalLM`.

use mlxcel_core::Result;

use super::blocks::{AttentionBiases, core};
use super::experts::ExpertSizes;
use super::llama::{HEAD_NORMS, Variant, decoder_with};
use super::roles::Roles;
use super::settings::{SizeDefaults, Sizes, activation, flag, window};
use super::sparse_layers::sparse_layers;
use super::{Conversion, Family};
use crate::decoder::{Activation, Decoder};

pub(super) const FAMILY: Family =
    Family { conversion: Conversion::sensitive(&["mlp.gate"]), ..Family::new(&["qwen3_moe"], &[], describe) };

const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 151_936,
    hidden: 2048,
    intermediate: 6144,
    layers: 24,
    query_heads: 32,
    kv_heads: Some(4),
    head_dim: None,
    context: 32_768,
};

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let rope = sizes.rope(config).read()?;
    let windowed = flag(config, "use_sliding_window", false)?;
    let window = if windowed { window(config, "sliding_window", Some(4096))? } else { None };
    let activation = activation(config, "hidden_act", Activation::Silu)?;
    let experts = ExpertSizes::read(config, &sizes, &["num_experts", "num_local_experts"], 0, [128, 8])?;
    let experts = experts.of_own_width(config, 768)?;
    let normalised = flag(config, "norm_topk_prob", false)?;
    let is_sparse = sparse_layers(config, experts.count, &[])?;
    let variant = Variant {
        attention_biases: AttentionBiases::all(flag(config, "attention_bias", false)?),
        head_norms: HEAD_NORMS,
        ..Variant::PLAIN
    };
    let core = |_| core(sizes.scale(), window, Some(&rope));
    decoder_with(roles, &sizes, &variant, core, |index, layer| {
        let name = format!("{layer}.mlp");
        if !is_sparse(index) {
            let mlp = roles.gated_mlp(&name, [sizes.hidden, sizes.intermediate], activation, false)?;
            return Ok(mlp.into());
        }
        roles.softmax_experts(&name, "gate", experts, normalised, activation, || Ok(None))
    })
}
