//! Mellum 2: Qwen3-MoE's attention and experts, with windows in some layers and a rotary embedding for each
//! type of layer.
//!
//! Config fields, defaults and arithmetic follow transformers' `MellumConfig` and `MellumForCausalLM`. The
//! multi-token prediction layer, `mtp`, is ignored.

use super::experts::ExpertSizes;
use super::prelude::*;
use super::sparse_layers::sparse_layer_types;

pub(super) const FAMILY: Family =
    Family { conversion: Conversion::sensitive(&["mlp.gate"]), ..Family::new(&["mellum"], &[], describe) };

const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 98_304,
    hidden: 2304,
    intermediate: 7168,
    layers: 28,
    query_heads: 32,
    kv_heads: Some(4),
    head_dim: Some(128),
    context: 131_072,
};

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    // llama.cpp's converter lets it turn off windows, and transformers does not read it.
    expect_flag(config, "use_sliding_window", true)?;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let types = layer_types(config, sizes.layers, &[FULL, SLIDING], |_| FULL)?;
    let window = window(config, "sliding_window", Some(1024))?;
    let windows = layer_windows(config, &types, window)?;
    let settings = sizes.rope(config);
    let rope = |layer_type: &&str| {
        let theta = if *layer_type == FULL { 500_000.0 } else { 10_000.0 };
        settings.read_type_or(layer_type, |settings| settings.read_with(None, theta))
    };
    let ropes = types.iter().map(rope).collect::<Result<Vec<_>>>()?;
    let sparse = sparse_layer_types(config, sizes.layers, 0)?;
    let activation = activation(config, "hidden_act", Activation::Silu)?;
    let experts = ExpertSizes::read(config, &sizes, &["num_local_experts", "num_experts"], 1, [64, 8])?;
    let experts = experts.of_own_width(config, 896)?;
    let normalised = flag(config, "norm_topk_prob", true)?;
    let attention_biases = AttentionBiases::read(config)?;
    let variant = Variant { attention_biases, head_norms: HEAD_NORMS, ..Variant::PLAIN };
    let core = |index: usize| core(sizes.scale(), windows[index], Some(&ropes[index]));
    let mlp = variant.mlp(roles, &sizes)?;
    variant.decoder_with(roles, &sizes, core, |index, layer| {
        if !sparse[index] {
            return mlp(layer);
        }
        roles.softmax_experts(&format!("{layer}.mlp"), "gate", experts, normalised, activation, None)
    })
}
