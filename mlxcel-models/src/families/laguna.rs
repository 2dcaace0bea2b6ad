//! Laguna: attention with gates by softplus, perhaps another number of query heads in each layer, windows in
//! some layers with a rotary embedding of their own, and experts that are routed by sigmoids beside a shared
//! one.
//!
//! Config fields, defaults and arithmetic follow transformers' `LagunaConfig` and `LagunaForCausalLM`.

use serde_json::Value;

use super::experts::{ExpertSizes, shared_experts, sigmoid_router};
use super::prelude::*;
use super::sparse_layers::sparse_layer_types;

pub(super) const FAMILY: Family = Family {
    conversion: Conversion {
        renamed: &[
            (".mlp.experts.e_score_correction_bias", ".mlp.gate.e_score_correction_bias"),
            (".mlp.shared_experts.", ".mlp.shared_expert."),
        ],
        renamed_modules: &[(".mlp.gate", ".mlp.gate.proj")],
        ..Conversion::sensitive(&["mlp.gate.proj"])
    },
    ..Family::new(&["laguna"], &[], describe)
};

const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 100_352,
    hidden: 2048,
    intermediate: 8192,
    layers: 40,
    query_heads: 48,
    kv_heads: Some(8),
    head_dim: Some(128),
    context: 131_072,
};

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let hidden = sizes.hidden;
    let types = layer_types(config, sizes.layers, &[FULL, SLIDING], |_| FULL)?;
    let windows = layer_windows(config, &types, window(config, "sliding_window", Some(512))?)?;
    let ropes =
        types.iter().map(|layer_type| rope(config, &sizes, layer_type)).collect::<Result<Vec<_>>>()?;
    let heads = heads(config, &sizes)?;
    let by_heads = has_gates_by_head(config)?;
    let biases = flag(config, "attention_bias", false)?;
    // What mlx-lm reads beyond transformers.
    expect_flag(config, "qkv_bias", biases)?;
    expect_text(config, "moe_router_score_func", "sigmoid")?;
    expect_flag(config, "moe_apply_router_weight_on_input", false)?;
    expect_number(config, "moe_router_logit_softcapping", 0.0)?;
    let activation = activation(config, "hidden_act", Activation::Silu)?;
    let experts = ExpertSizes::read(config, &sizes, &["num_experts"], 1, [256, 8])?;
    let experts = experts.of_own_width(config, 512)?;
    let shared_width = config.size("shared_expert_intermediate_size", 1..=LARGEST_WIDTH)?.unwrap_or(512);
    let scale = number(config, "moe_routed_scaling_factor", 1.0)?;
    let sparse = sparse_layer_types(config, sizes.layers, 1)?;
    let attention_biases = AttentionBiases::all(biases);
    let variant = Variant { attention_biases, head_norms: HEAD_NORMS, ..Variant::PLAIN };

    let attention = |index: usize, layer: &str| {
        let own = Sizes { query_heads: heads[index], ..sizes };
        let gates = if by_heads { own.query_heads } else { own.query_width() };
        let core = core(sizes.scale(), windows[index], Some(&ropes[index]));
        let attention = Attention {
            gate: Some(roles.linear(&format!("{layer}.self_attn.g_proj"), gates, hidden, false)?),
            gate_activation: Activation::Softplus,
            ..variant.attention(roles, &own, layer, core)?
        };
        Ok(attention.into())
    };
    let mlp = variant.mlp(roles, &sizes)?;
    variant.decoder_of(roles, &sizes, attention, |index, layer| {
        if !sparse[index] {
            return mlp(layer);
        }
        let module = format!("{layer}.mlp");
        // The names of transformers, and others that published files or mlx-lm have.
        let name = |parts: [&str; 2]| parts.map(|part| format!("{module}.{part}"));
        let gate = roles.first_matrix(&name(["gate", "gate.proj"]));
        let bias = name(["gate.e_score_correction_bias", "experts.e_score_correction_bias"]);
        let bias = roles.tensor_if_there(&roles.first_tensor(&bias), &[experts.count])?;
        let projection = roles.linear(&gate, experts.count, hidden, false)?;
        let router = Router { scale, normaliser: 0.0, ..sigmoid_router(projection, bias, true) };
        let shared = roles.first_matrix(&name(["shared_experts.up_proj", "shared_expert.up_proj"]));
        let shared = shared.trim_end_matches(".up_proj");
        let shared = shared_experts(roles, shared, [hidden, shared_width], activation, false)?;
        roles.mixture(&module, PROJECTIONS, experts, router, activation, shared)
    })
}

/// The rotary embedding of layers of one type.
fn rope(config: Fields<'_>, sizes: &Sizes, layer_type: &str) -> Result<Rope> {
    let partial = Partial::Part { key: "partial_rotary_factor", default: 1.0 };
    let settings = RopeSettings { partial, ..sizes.rope(config) };
    settings.read_type_or(layer_type, |settings| {
        let (theta, default) = if layer_type == FULL { (500_000.0, 0.5) } else { (10_000.0, 1.0) };
        RopeSettings { partial: Partial::Inner { default }, ..*settings }.read_with(None, theta)
    })
}

/// The number of query heads of each layer.
fn heads(config: Fields<'_>, sizes: &Sizes) -> Result<Vec<usize>> {
    const HEADS: &str = "num_attention_heads_per_layer";
    let heads = config.sizes(HEADS)?.unwrap_or(vec![sizes.query_heads; sizes.layers]);
    if heads.len() != sizes.layers {
        let message = format!("{} numbers are given for {} layers", heads.len(), sizes.layers);
        return Err(config.wrong(HEADS, message));
    }
    for &count in &heads {
        if !(1..=LARGEST_HEAD_COUNT).contains(&count) {
            return Err(config.wrong(HEADS, format!("{count} should be from 1 to {LARGEST_HEAD_COUNT}")));
        }
        expect_shared(config, HEADS, sizes.kv_heads, count)?;
    }
    Ok(heads)
}

/// Whether gates are numbers for each head, and not for each element.
fn has_gates_by_head(config: Fields<'_>) -> Result<bool> {
    const GATING: &str = "gating";
    const TYPES: &str = "gating_types";
    let unsupported = |key| {
        let message = "true, 'per-head' and 'per-element' are supported, the same in all layers".to_owned();
        config.unsupported(key, message)
    };
    let by_head = match config.get(GATING) {
        None | Some(Value::Bool(true)) => true,
        Some(Value::String(text)) if text == "per-head" => true,
        Some(Value::String(text)) if text == "per-element" => false,
        Some(_) => return Err(unsupported(GATING)),
    };
    let expected = if by_head { "per_head" } else { "per_element" };
    // llama.cpp's converter reads a list before that.
    let types = config.texts(TYPES)?.unwrap_or_default();
    if types.iter().any(|own| own.replace('-', "_") != expected) {
        return Err(unsupported(TYPES));
    }
    Ok(by_head)
}
