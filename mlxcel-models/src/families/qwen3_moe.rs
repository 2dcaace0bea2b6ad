//! Qwen3-MoE: Qwen3 with experts instead of most MLPs.
//!
//! Config fields, defaults and arithmetic follow transformers' `Qwen3MoeConfig` and `Qwen3MoeForCausalLM`.

use super::experts::ExpertSizes;
use super::prelude::*;
use super::qwen2_moe;
use super::sparse_layers::sparse_layers;

pub(super) const FAMILY: Family =
    Family { conversion: Conversion::sensitive(&["mlp.gate"]), ..Family::new(&["qwen3_moe"], &[], describe) };

const DEFAULTS: SizeDefaults =
    SizeDefaults { intermediate: 6144, query_heads: 32, kv_heads: Some(4), ..qwen2_moe::DEFAULTS };

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
    let attention_biases = AttentionBiases::read(config)?;
    let variant = Variant { attention_biases, head_norms: HEAD_NORMS, ..Variant::PLAIN };
    let core = |_| core(sizes.scale(), window, Some(&rope));
    let mlp = variant.mlp(roles, &sizes)?;
    variant.decoder_with(roles, &sizes, core, |index, layer| {
        if !is_sparse(index) {
            return mlp(layer);
        }
        roles.softmax_experts(&format!("{layer}.mlp"), "gate", experts, normalised, activation, None)
    })
}
