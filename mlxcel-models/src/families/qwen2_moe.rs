//! Qwen2-MoE (and Qwen1.5-MoE): biases on queries, keys and values, and a gated shared expert beside the
//! chosen ones.
//!
//! Config fields, defaults and arithmetic follow transformers' `Qwen2MoeConfig` and `Qwen2MoeForCausalLM`.

use super::experts::{ExpertSizes, gated_shared_expert};
use super::prelude::*;
use super::qwen2;
use super::sparse_layers::sparse_layers;

pub(super) const FAMILY: Family = Family::new(&["qwen2_moe"], &[], describe);

pub(super) const DEFAULTS: SizeDefaults = SizeDefaults {
    hidden: 2048,
    intermediate: 5632,
    layers: 24,
    query_heads: 16,
    kv_heads: Some(16),
    ..qwen2::DEFAULTS
};

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let rope = sizes.rope(config).read()?;
    let windows = windows(config, sizes.layers)?;
    let biases = AttentionBiases::inputs(flag(config, "qkv_bias", true)?);
    let activation = activation(config, "hidden_act", Activation::Silu)?;
    let shared_width = config.size("shared_expert_intermediate_size", 1..=LARGEST_WIDTH)?.unwrap_or(5632);
    let experts = ExpertSizes::read(config, &sizes, &["num_experts"], 0, [60, 4])?;
    let experts = experts.of_own_width(config, 1408)?;
    let normalised = flag(config, "norm_topk_prob", false)?;
    let is_sparse = sparse_layers(config, experts.count, &[])?;

    let variant = Variant { attention_biases: biases, ..Variant::PLAIN };
    let core = |index: usize| core(sizes.scale(), windows.get(index).copied().flatten(), Some(&rope));
    let mlp = variant.mlp(roles, &sizes)?;
    variant.decoder_with(roles, &sizes, core, |index, layer| {
        if !is_sparse(index) {
            return mlp(layer);
        }
        let module = format!("{layer}.mlp");
        let shared = gated_shared_expert(roles, &module, [sizes.hidden, shared_width], activation)?;
        roles.softmax_experts(&module, "gate", experts, normalised, activation, shared)
    })
}

/// For each layer its window: none unless `use_sliding_window`, and then by `layer_types`, or in every other
/// one of the first `max_window_layers`.
fn windows(config: Fields<'_>, layers: usize) -> Result<Vec<Option<usize>>> {
    const USED: &str = "use_sliding_window";
    let used = flag(config, USED, false)?;
    let last = config.size("max_window_layers", 0..=usize::MAX)?.unwrap_or(28);
    let windowed = |index: usize| used && index.is_multiple_of(2) && index < last;
    let types =
        layer_types(config, layers, &[FULL, SLIDING], |index| if windowed(index) { SLIDING } else { FULL })?;
    if !used && types.contains(&SLIDING) {
        return Err(config.wrong(USED, "layer_types has windows, but this setting disables them".to_owned()));
    }
    if !used {
        return Ok(vec![None; layers]);
    }
    // In windowed layers transformers takes `null` for no window.
    let window = window(config, "sliding_window", Some(4096))?;
    if window.is_none() { Ok(vec![None; layers]) } else { layer_windows(config, &types, window) }
}
