//! MiMo-V2-Flash: windows with sinks and twice the key/value heads in most layers, narrow values, and
//! experts.
//!
//! Config fields, defaults and arithmetic follow transformers' `MiMoV2FlashConfig` and
//! `MiMoV2FlashForCausalLM`. Keys of published files that it does not read, which give what it assumes, are
//! honoured or refused.

use super::experts::{GroupedDefaults, GroupedExperts};
use super::prelude::*;
use super::sparse_layers::sparse_layer_types;

pub(super) const FAMILY: Family = Family::new(&["mimo_v2_flash"], &[], describe);

const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 152_576,
    hidden: 4096,
    intermediate: 16_384,
    layers: 48,
    query_heads: 64,
    kv_heads: Some(4),
    head_dim: Some(192),
    context: 131_072,
};

const EXPERTS: GroupedDefaults =
    GroupedDefaults { shared_keys: &[], count: 256, width: 2048, ..GroupedDefaults::PLAIN };

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let value_dim = config.size("v_head_dim", 1..=LARGEST_HEAD_DIM)?.unwrap_or(128);
    check(config, &sizes, value_dim)?;
    let (hidden, layers) = (sizes.hidden, sizes.layers);
    let types = types(config, layers)?;
    let sparse = sparse(config, layers)?;
    let window = match config.size("sliding_window_size", 0..=LARGEST_CONTEXT)? {
        Some(before) => before + 1,
        None => config.size("sliding_window", 1..=LARGEST_CONTEXT)?.unwrap_or(129),
    };
    let [full, sliding] = ropes(config, &sizes, &types)?;
    let biases = flag(config, "attention_bias", false)?;
    let value_scale = optional_positive(config, "attention_value_scale", Some(0.707))?.unwrap_or(1.0);
    let activation = activation(config, "hidden_act", Activation::Silu)?;
    let experts = GroupedExperts::read(config, &sizes, activation, &EXPERTS)?;
    let named = config.get("rms_norm_eps").is_some();
    let epsilon_key = if named { "rms_norm_eps" } else { "layernorm_epsilon" };
    let variant = Variant { epsilon_key, epsilon: 1e-5, ..Variant::PLAIN };
    let attention = |index: usize, layer: &str| {
        let is_sliding = types[index] == SLIDING;
        let part = |part: &str| format!("{layer}.self_attn.{part}");
        let core = core(sizes.scale(), None, if is_sliding { sliding.as_ref() } else { full.as_ref() });
        let core = if is_sliding {
            let sinks = roles.first_tensor(&["sinks", "attention_sink_bias"].map(part));
            let sinks = Some(roles.tensor(&sinks, &[sizes.query_heads])?);
            AttentionCore { window: Some(window), sinks, ..core }
        } else {
            core
        };
        let kv_heads = if is_sliding { 2 * sizes.kv_heads } else { sizes.kv_heads };
        let sizes = Sizes { kv_heads, ..sizes };
        let input = |name, outputs| roles.linear(&part(name), outputs, hidden, biases);
        let inputs = [
            input("q_proj", sizes.query_width())?,
            input("k_proj", sizes.kv_width())?,
            input("v_proj", kv_heads * value_dim)?,
        ];
        let output = roles.linear(&part("o_proj"), hidden, sizes.query_heads * value_dim, false)?;
        let attention = plain_attention(&sizes, inputs, output, core);
        Ok(Attention { value_dim, value_scale, ..attention }.into())
    };
    variant.decoder_of(roles, &sizes, attention, |index, layer| {
        experts.or_mlp(roles, &format!("{layer}.mlp"), sparse[index])
    })
}

/// The rotary embeddings of layers without windows and of those with: by `rope_parameters` of each type, or
/// by older names, which have no scaling.
fn ropes(config: Fields<'_>, sizes: &Sizes, types: &[&str]) -> Result<[Option<Rope>; 2]> {
    const PART: f64 = 0.334;
    const SCALING: &str = "rope_scaling";
    if config.object(SCALING)?.is_some() {
        let message = "it is not supported for this model_type, but rope_parameters are".to_owned();
        return Err(config.unsupported(SCALING, message));
    }
    let settings = |default| RopeSettings { partial: Partial::Inner { default }, ..sizes.rope(config) };
    if config.object("rope_parameters")?.is_some() {
        let of = |layer_type| match types.contains(&layer_type) {
            true => settings(PART).read_type(layer_type),
            false => Ok(None),
        };
        return Ok([of(FULL)?, of(SLIDING)?]);
    }
    let settings = settings(config.number("partial_rotary_factor")?.unwrap_or(PART));
    let of = |key, default| settings.read_with(None, config.positive(key)?.unwrap_or(default)).map(Some);
    Ok([of("rope_theta", 5_000_000.0)?, of("swa_rope_theta", 10_000.0)?])
}

/// Refuses what the reference implementation does not do.
fn check(config: Fields<'_>, sizes: &Sizes, value_dim: usize) -> Result<()> {
    let &Sizes { query_heads, kv_heads, head_dim, .. } = sizes;
    expect_text(config, "scoring_func", "sigmoid")?;
    expect_text(config, "topk_method", "noaux_tc")?;
    expect_number(config, "n_shared_experts", 0.0)?;
    expect_flag(config, "add_swa_attention_sink_bias", true)?;
    expect_flag(config, "add_full_attention_sink_bias", false)?;
    for (key, expected) in [
        ("swa_num_attention_heads", query_heads),
        ("swa_num_key_value_heads", 2 * kv_heads),
        ("swa_head_dim", head_dim),
        ("swa_v_head_dim", value_dim),
    ] {
        expect_number(config, key, expected as f64)?;
    }
    if !query_heads.is_multiple_of(2 * kv_heads) {
        let message = format!(
            "layers with windows have twice as many: {} cannot be shared evenly by {query_heads} query heads",
            2 * kv_heads
        );
        return Err(config.wrong("num_key_value_heads", message));
    }
    Ok(())
}

/// Reads which layers have windows: by `layer_types`, by the ones of `hybrid_layer_pattern`, or most.
fn types(config: Fields<'_>, layers: usize) -> Result<Vec<&'static str>> {
    let default = |index: usize| if index == 0 || (index + 1).is_multiple_of(6) { FULL } else { SLIDING };
    let pattern = marks(config, "hybrid_layer_pattern", layers)?;
    let of = |index: usize| match &pattern {
        Some(marks) if marks[index] => SLIDING,
        Some(_) => FULL,
        None => default(index),
    };
    layer_types(config, layers, &[FULL, SLIDING], of)
}

/// Reads which layers have experts: by `mlp_layer_types`, by the ones of `moe_layer_freq`, or all but the
/// first.
fn sparse(config: Fields<'_>, layers: usize) -> Result<Vec<bool>> {
    match marks(config, "moe_layer_freq", layers)? {
        Some(marks) if config.get("mlp_layer_types").is_none() => Ok(marks),
        _ => sparse_layer_types(config, layers, 1),
    }
}

/// A list with a number for each layer, which marks those that are not zero.
fn marks(config: Fields<'_>, key: &str, layers: usize) -> Result<Option<Vec<bool>>> {
    match config.sizes(key)? {
        Some(marks) if marks.len() != layers => {
            Err(config.wrong(key, format!("{} numbers are given for {layers} layers", marks.len())))
        }
        marks => Ok(marks.map(|marks| marks.into_iter().map(|mark| mark != 0).collect())),
    }
}
