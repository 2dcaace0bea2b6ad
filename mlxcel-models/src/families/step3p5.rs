//! Step 3.5: attention with a gate for each head, more query heads and another rotary embedding in layers
//! with windows, and experts and MLPs whose gates and up projections are limited.
//!
//! Config fields and tensor names are those of published files. Arithmetic and defaults follow transformers'
//! `Step3p7TextConfig` and `Step3p7TextModel`, and mlx-lm's `step3p5` where transformers leaves out a key; keys
//! for whose absence the two assume different things are required. The multi-token prediction layers, which
//! follow the others in the files, are ignored.

use super::experts::{ExpertLinears, ExpertSizes, aliased_size, chosen_of, expert_count, sigmoid_router};
use super::prelude::*;
use super::sparse_layers::sparse_layer_types;
use crate::rope::refuse_parts;

pub(super) const FAMILY: Family = Family {
    conversion: Conversion {
        shifted_norms: true,
        renamed: &[
            (".moe.gate_proj.", ".mlp.switch_mlp.gate_proj."),
            (".moe.up_proj.", ".mlp.switch_mlp.up_proj."),
            (".moe.down_proj.", ".mlp.switch_mlp.down_proj."),
            (".moe.gate", ".mlp.gate.gate"),
            (".moe.router_bias", ".mlp.gate.router_bias"),
            (".share_expert.", ".mlp.share_expert."),
        ],
        ..Conversion::sensitive(&["mlp.gate.gate"])
    },
    ..Family::new(&["step3p5"], &[], describe)
};

const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 128_815,
    intermediate: 11_264,
    layers: 45,
    query_heads: 64,
    head_dim: Some(128),
    context: 262_144,
    ..SizeDefaults::LLAMA
};

/// What differs between layers.
struct LayerKind {
    window: Option<usize>,
    query_heads: usize,
    kv_heads: usize,
    rope: Rope,
    sparse: bool,
    /// The limit of the experts' gates and up projections.
    limit: Option<f32>,
    /// The same of the shared expert, and of an MLP.
    shared_limit: Option<f32>,
}

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    refuse_others(config)?;
    let sizes = sizes(config)?;
    let hidden = sizes.hidden;
    let kinds = layer_kinds(config, &sizes)?;
    let [biases, mlp_biases] = ["attention_bias", "mlp_bias"].map(|key| flag(config, key, false));
    let is_gated = flag(config, GATED, true)?;
    let scale = positive(config, "query_pre_attn_scalar", sizes.head_dim as f64)?.powf(-0.5);
    let mixture = Mixture::read(config, &sizes, mlp_biases?)?;

    let base = roles.base("model.", "embed_tokens");
    // mlx-lm stacks experts under another name, and adds the one that factors of norms are stored less.
    let is_converted = (0..sizes.layers)
        .any(|index| roles.has(&format!("{base}layers.{index}.mlp.switch_mlp.up_proj.weight")));
    let variant = Variant {
        epsilon: 1e-5,
        norm_offset: if is_converted { 0.0 } else { 1.0 },
        attention_biases: AttentionBiases::all(biases?),
        head_norms: HEAD_NORMS,
        ..Variant::PLAIN
    };
    let attention = |index: usize, layer: &str| {
        let kind = &kinds[index];
        let part = |part: &str| format!("{layer}.self_attn.{part}");
        let core = AttentionCore { window: kind.window, ..core(scale, None, Some(&kind.rope)) };
        let own = Sizes { query_heads: kind.query_heads, kv_heads: kind.kv_heads, ..sizes };
        let gate = || roles.linear(&part("g_proj"), kind.query_heads, hidden, false);
        // transformers does not read the flag.
        if !is_gated && roles.has(&part("g_proj.weight")) {
            let message = "false is not supported for a checkpoint that has gates".to_owned();
            return Err(config.unsupported(GATED, message));
        }
        let gate = if is_gated { Some(gate()?) } else { None };
        Ok(Attention { gate, ..variant.attention(roles, &own, layer, core)? }.into())
    };
    variant.decoder_of(roles, &sizes, attention, |index, layer| {
        let kind = &kinds[index];
        if kind.sparse {
            return mixture.describe(roles, layer, kind);
        }
        Ok(mixture.mlp(roles, &format!("{layer}.mlp"), sizes.intermediate, kind.shared_limit)?.into())
    })
}

/// The sizes, by the names of published files or those of transformers.
fn sizes(config: Fields<'_>) -> Result<Sizes> {
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let kv_heads = match groups(config, "num_attention_groups")? {
        None if config.get("num_key_value_heads").is_some() => sizes.kv_heads,
        kv_heads => kv_heads.unwrap_or(8),
    };
    expect_shared(config, "num_attention_groups", kv_heads, sizes.query_heads)?;
    Ok(Sizes { kv_heads, ..sizes })
}

fn groups(config: Fields<'_>, key: &str) -> Result<Option<usize>> {
    config.size(key, 1..=LARGEST_HEAD_COUNT)
}

/// The experts, and what MLPs have in common with them.
struct Mixture {
    experts: ExpertSizes,
    shared_width: usize,
    normalised: bool,
    scale: f32,
    biases: bool,
}

impl Mixture {
    fn read(config: Fields<'_>, sizes: &Sizes, biases: bool) -> Result<Self> {
        let count =
            expert_count(config, &["moe_num_experts", "n_routed_experts", "num_local_experts"], 1, 288)?;
        let chosen = chosen_of(config, &["moe_top_k", "num_experts_per_tok"], count, 8)?;
        let width = |keys: &[&str]| Ok(aliased_size(config, keys, 1..=LARGEST_WIDTH)?.unwrap_or(1280));
        let experts =
            ExpertSizes { count, chosen, hidden: sizes.hidden, width: width(&["moe_intermediate_size"])? };
        // The two references scale differently without the key.
        let scale = config.number(SCALE)?.ok_or_else(|| config.absent(SCALE))?;
        Ok(Self {
            experts,
            shared_width: width(&["share_expert_dim", "share_expert_dims"])?,
            normalised: flag(config, "norm_expert_weight", true)?,
            scale: scale as f32,
            biases,
        })
    }

    /// A gated MLP whose gates and up projections are limited.
    fn mlp(&self, roles: &Roles<'_>, module: &str, width: usize, limit: Option<f32>) -> Result<Mlp> {
        roles.gated_mlp_of(module, PROJECTIONS, [self.experts.hidden, width], gating(limit), self.biases)
    }

    /// The experts of `layer`, under published names or those of mlx-lm.
    fn describe(&self, roles: &Roles<'_>, layer: &str, kind: &LayerKind) -> Result<Operation> {
        let &Self { experts, shared_width, normalised, scale, .. } = self;
        let ExpertSizes { count, hidden, .. } = experts;
        let is_converted = roles.has(&format!("{layer}.mlp.switch_mlp.gate_proj.weight"));
        let names = if is_converted {
            ["mlp.switch_mlp", "mlp.gate.gate", "mlp.gate.router_bias", "mlp.share_expert"]
        } else {
            ["moe", "moe.gate", "moe.router_bias", "share_expert"]
        };
        let [stack, gate, bias, shared] = names.map(|name| format!("{layer}.{name}"));
        let bias = roles.tensor_if_there(&bias, &[count])?;
        let projection = roles.linear(&gate, count, hidden, false)?;
        let router = Router { scale, ..sigmoid_router(projection, bias, normalised) };
        let linears = ExpertLinears::new(roles, roles.stacks(&stack, experts)?);
        let mlp = self.mlp(roles, &shared, shared_width, kind.shared_limit)?;
        Ok(linears.routed(experts, router, gating(kind.limit), Some(mlp.into())).into())
    }
}

const SCALE: &str = "moe_router_scaling_factor";
const GATED: &str = "use_head_wise_attn_gate";

fn gating(limit: Option<f32>) -> Gating {
    match limit {
        Some(limit) => Gating::Limited { activation: Activation::Silu, limit },
        None => Gating::Activated(Activation::Silu),
    }
}

/// What each layer is like.
fn layer_kinds(config: Fields<'_>, sizes: &Sizes) -> Result<Vec<LayerKind>> {
    let layers = sizes.layers;
    let further = config.size("num_nextn_predict_layers", 0..=LARGEST_LAYER_COUNT)?.unwrap_or(0);
    let types = types(config, layers, further)?;
    let window = config.size("sliding_window", 1..=LARGEST_CONTEXT)?.unwrap_or(512);
    let [query_heads, kv_heads] = sliding_heads(config, sizes)?;
    let sparse = sparse(config, layers)?;
    let limits = limits(config, "swiglu_limits", layers)?;
    let shared_limits = self::limits(config, "swiglu_limits_shared", layers)?;
    let ropes = ropes(config, sizes, &types)?;
    let kinds = ropes.into_iter().enumerate().map(|(index, rope)| {
        let is_sliding = types[index] == SLIDING;
        LayerKind {
            window: is_sliding.then_some(window),
            query_heads: if is_sliding { query_heads } else { sizes.query_heads },
            kv_heads: if is_sliding { kv_heads } else { sizes.kv_heads },
            rope,
            sparse: sparse[index],
            limit: limits[index],
            shared_limit: shared_limits[index],
        }
    });
    Ok(kinds.collect())
}

/// The type of each layer; a list may go on with those of layers that predict further tokens.
fn types(config: Fields<'_>, layers: usize, further: usize) -> Result<Vec<&'static str>> {
    const TYPES: &str = "layer_types";
    let given = config.texts(TYPES)?.ok_or_else(|| config.absent(TYPES))?;
    let count = if given.len() == layers + further { given.len() } else { layers };
    let mut types = layer_types(config, count, &[FULL, SLIDING], |_| FULL)?;
    types.truncate(layers);
    Ok(types)
}

/// The numbers of query heads and key/value heads of layers with windows.
fn sliding_heads(config: Fields<'_>, sizes: &Sizes) -> Result<[usize; 2]> {
    const QUERY_HEADS: &str = "num_sliding_attention_heads";
    let mut heads = [sizes.query_heads, sizes.kv_heads];
    if let Some(other) = config.object("attention_other_setting")? {
        expect_text(other, "attention_type", SLIDING)?;
        for key in ["head_dim", "true_head_dim"] {
            expect_number(other, key, sizes.head_dim as f64)?;
        }
        heads[0] = groups(other, "num_attention_heads")?.unwrap_or(heads[0]);
        heads[1] = groups(other, "num_attention_groups")?.unwrap_or(heads[1]);
        expect_shared(other, "num_attention_heads", heads[1], heads[0])?;
    }
    if let Some(query_heads) = groups(config, QUERY_HEADS)? {
        heads[0] = query_heads;
        expect_shared(config, QUERY_HEADS, heads[1], heads[0])?;
    }
    Ok(heads)
}

/// Which layers have experts: by `mlp_layer_types`, or those that `moe_layers_enum` has the numbers of.
fn sparse(config: Fields<'_>, layers: usize) -> Result<Vec<bool>> {
    const LISTED: &str = "moe_layers_enum";
    if config.get("mlp_layer_types").is_some() {
        return sparse_layer_types(config, layers, 0);
    }
    let text = config.text(LISTED)?.ok_or_else(|| config.absent(LISTED))?;
    let numbers = text.split(',').map(str::trim).filter(|number| !number.is_empty());
    let numbers = numbers.map(str::parse::<usize>).collect::<std::result::Result<Vec<_>, _>>();
    let numbers = numbers.map_err(|_| config.wrong(LISTED, "not numbers with commas between".to_owned()))?;
    Ok((0..layers).map(|index| numbers.contains(&index)).collect())
}

/// The limits of each layer in a list, in which nothing and zero are no limit.
fn limits(config: Fields<'_>, key: &str, layers: usize) -> Result<Vec<Option<f32>>> {
    let mut limits = config.optional_numbers(key)?.unwrap_or_default();
    limits.resize(layers, None);
    Ok(limits.into_iter().map(|limit| limit.filter(|&limit| limit > 0.0).map(|limit| limit as f32)).collect())
}

/// The rotary embedding of each layer: by `rope_parameters` of its type, or by `rope_theta` and
/// `partial_rotary_factors`, each a list, and [`scaling`].
fn ropes(config: Fields<'_>, sizes: &Sizes, types: &[&str]) -> Result<Vec<Rope>> {
    const THETA: &str = "rope_theta";
    const FACTORS: &str = "partial_rotary_factors";
    let settings = |partial| RopeSettings { partial, ..sizes.rope(config) };
    if config.object("rope_parameters")?.is_some() {
        let partial = Partial::Part { key: "partial_rotary_factor", default: 1.0 };
        let rope = |layer_type: &&str| match settings(partial).read_type(layer_type)? {
            Some(rope) => Ok(rope),
            None => Err(config.absent("rope_parameters")),
        };
        return types.iter().map(rope).collect();
    }
    let listed = |key: &str| match config.get(key) {
        Some(value) if value.is_array() => config.positives(key),
        _ => Ok(None),
    };
    let (thetas, theta) = match listed(THETA)? {
        Some(thetas) => (Some(thetas), 10_000.0),
        None => (None, config.positive(THETA)?.unwrap_or(10_000.0)),
    };
    let factors = config.positives(FACTORS)?;
    for (key, list) in [(THETA, &thetas), (FACTORS, &factors)] {
        // transformers has one for each type, that of the first layer.
        let first = |layer_type: &str| types.iter().position(|other| *other == layer_type);
        let differs = |list: &Vec<f64>| {
            (0..types.len()).any(|index| {
                let first = first(types[index]).and_then(|first| list.get(first));
                list.get(index).is_some_and(|number| first != Some(number))
            })
        };
        if list.as_ref().is_some_and(differs) {
            let message = "layers of one type should have the same number".to_owned();
            return Err(config.unsupported(key, message));
        }
        if let Some(list) = list.as_ref().filter(|list| list.len() < types.len()) {
            return Err(
                config.wrong(key, format!("{} numbers are given for {} layers", list.len(), types.len()))
            );
        }
    }
    let scaling = scaling(config, types)?;
    let rope = |(index, layer_type): (usize, &&str)| {
        let of = |list: &Option<Vec<f64>>, default| list.as_ref().map_or(default, |list| list[index]);
        let partial = Partial::Inner { default: of(&factors, 1.0) };
        settings(partial).read_with(scaling.filter(|_| *layer_type == FULL), of(&thetas, theta))
    };
    types.iter().enumerate().map(rope).collect()
}

/// `rope_scaling`, of layers without windows.
fn scaling<'a>(config: Fields<'a>, types: &[&str]) -> Result<Option<Fields<'a>>> {
    const SCALED: &str = "yarn_only_types";
    let Some(scaling) = config.object("rope_scaling")? else { return Ok(None) };
    refuse_parts(scaling, None)?;
    // mlx-lm scales layers of the types that are listed, or of all if none is; transformers does not read the
    // list, and scales those without windows.
    let listed = config.texts(SCALED)?.unwrap_or_default();
    let is_scaled = |layer_type: &&str| listed.is_empty() || listed.contains(layer_type);
    if let Some(layer_type) = types.iter().find(|layer_type| is_scaled(layer_type) != (**layer_type == FULL))
    {
        let verb = if *layer_type == FULL { "should scale" } else { "should not scale" };
        let message = format!("it {verb} layers of type '{layer_type}': a list of {FULL} alone is supported");
        return Err(config.unsupported(SCALED, message));
    }
    Ok(Some(scaling))
}

/// Refuses what the reference implementations do not do.
fn refuse_others(config: Fields<'_>) -> Result<()> {
    for key in ["use_qk_norm", "use_moe", "use_moe_router_bias", "zero_centered"] {
        expect_flag(config, key, true)?;
    }
    expect_flag(config, "use_bidirectional_attention", false)?;
    expect_number(config, "moe_layer_offset", 0.0)?;
    expect_number(config, "moe_every_n_layer", 1.0)?;
    expect_text(config, "moe_router_activation", "sigmoid")?;
    expect_text(config, "att_impl_type", "GQA")?;
    expect_text(config, "hidden_act", "silu")?;
    // Which layers have positions, gates of elements instead of heads, a sparse attention that transformers'
    // class of settings reads for another model, and settings of single layers as that class writes them.
    for key in ["use_rope_layers", "gating", "sparse_attention_config", "per_layer_config"] {
        let is_usual = |value: &serde_json::Value| match value {
            serde_json::Value::Array(list) => list.is_empty(),
            serde_json::Value::Object(fields) => fields.is_empty(),
            serde_json::Value::Bool(is_gated) => *is_gated,
            _ => false,
        };
        if config.get(key).is_some_and(|value| !is_usual(value)) {
            return Err(config.unsupported(key, "it is not supported for this model_type".to_owned()));
        }
    }
    Ok(())
}
