//! DeepSeek-MoE: Llama with experts that are routed by a softmax beside shared ones.
//!
//! Config fields, defaults and tensor names follow `DeepseekConfig` and `DeepseekForCausalLM` of the
//! published files, and mlx-lm; the arithmetic is that of transformers' `LlamaForCausalLM` and
//! `DeepseekV2Moe`.

use super::experts::{GroupedDefaults, GroupedExperts, MOST_EXPERTS};
use super::prelude::*;

pub(super) const FAMILY: Family = Family::new(&["deepseek"], &[100_001], describe);

const DEFAULTS: SizeDefaults =
    SizeDefaults { vocabulary: 102_400, layers: 30, kv_heads: Some(32), ..SizeDefaults::LLAMA };
const EXPERTS: GroupedDefaults = GroupedDefaults {
    count_keys: &["n_routed_experts"],
    width: 1407,
    normalised: false,
    scoring: Scoring::Softmax,
    ..GroupedDefaults::PLAIN
};

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    expect_text(config, "scoring_func", "softmax")?;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let rope = sizes.rope(config).read()?;
    let activation = activation(config, "hidden_act", Activation::Silu)?;
    let is_sparse = config.size("n_routed_experts", 1..=MOST_EXPERTS)?.is_some();
    let dense_layers = config.size("first_k_dense_replace", 0..=LARGEST_LAYER_COUNT)?.unwrap_or(0);
    let distance = config.size("moe_layer_freq", 1..=LARGEST_LAYER_COUNT)?.unwrap_or(1);
    let has_shared = config.get("n_shared_experts").is_some();
    let shared_keys = if has_shared { EXPERTS.shared_keys } else { &[] };
    let defaults = GroupedDefaults { shared_keys, ..EXPERTS };
    let mixture = GroupedExperts::read(config, &sizes, activation, &defaults)?;
    let variant = Variant { attention_biases: AttentionBiases::read(config)?, ..Variant::PLAIN };
    let core = |_| core(sizes.scale(), None, Some(&rope));
    variant.decoder_with(roles, &sizes, core, |index, layer| {
        let sparse = is_sparse && index >= dense_layers && index.is_multiple_of(distance);
        mixture.or_mlp(roles, &format!("{layer}.mlp"), sparse)
    })
}
