//! Llama 4's text model: attention within chunks, some layers without positions, and experts in some layers
//! that read weighted inputs.
//!
//! Config fields, defaults and arithmetic follow transformers' `Llama4TextConfig` and `Llama4ForCausalLM`.

use super::experts::{ExpertLinears, ExpertSizes, halves, shared_experts, sigmoid_router};
use super::prelude::*;
use crate::decoder::PositionScale;

pub(super) const FAMILY: Family = Family {
    conversion: Conversion { experts: "experts", ..Conversion::USUAL },
    ..Family::new(&["llama4_text"], &[2], describe)
};

const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 202_048,
    hidden: 5120,
    intermediate: 8192,
    layers: 48,
    query_heads: 40,
    kv_heads: Some(8),
    head_dim: Some(128),
    context: 131_072,
};

/// What a layer that sees its own chunk is called in `layer_types`.
const CHUNKED: &str = "chunked_attention";

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let hidden = sizes.hidden;
    let rope = RopeSettings { theta: 500_000.0, interleaved: true, ..sizes.rope(config) }.read()?;
    let epsilon = positive(config, "rms_norm_eps", 1e-5)?;
    let activation = activation(config, "hidden_act", Activation::Silu)?;
    let dense_width = config.size("intermediate_size_mlp", 1..=LARGEST_WIDTH)?.unwrap_or(16_384);
    let experts = ExpertSizes::read(config, &sizes, &["num_local_experts"], 1, [16, 1])?;
    let rotated = rotated_layers(config, sizes.layers)?;
    let chunks = chunks(config, &rotated)?;
    let sparse = sparse_layers(config)?;
    // Factors would not commute with the order of a rotated head's elements; there are none.
    let unit = plain_norm(sizes.head_dim, epsilon);
    let normed = flag(config, "use_qk_norm", true)?;
    let query_scale = query_scale(config)?;
    let attention_biases = AttentionBiases::read(config)?;
    let variant = Variant { epsilon: 1e-5, attention_biases, ..Variant::PLAIN };
    let attention = |index: usize, layer: &str| {
        let rotated = rotated[index];
        let core = core(sizes.scale(), None, rotated.then_some(&rope));
        let core = AttentionCore { query_scale: query_scale.filter(|_| !rotated), ..core };
        let core = match chunks[index] {
            Some(length) => AttentionCore { mask: AttentionMask::Chunked, window: Some(length), ..core },
            None => core,
        };
        let mut attention = variant.attention(roles, &sizes, layer, core)?;
        if normed && rotated {
            let norm = Some(HeadNorm { norm: unit, scope: NormScope::RotatedHead });
            (attention.query_norm, attention.key_norm) = (norm, norm);
        }
        Ok(attention.into())
    };
    variant.decoder_of(roles, &sizes, attention, |index, layer| {
        let module = format!("{layer}.feed_forward");
        if sparse(index) {
            return routed(roles, &module, experts, activation);
        }
        Ok(roles.gated_mlp(&module, [hidden, dense_width], activation, false)?.into())
    })
}

/// Reads which layers rotate queries and keys: by `no_rope_layers`, which has a zero for those that do not,
/// or all but each `no_rope_layer_interval`th.
fn rotated_layers(config: Fields<'_>, layers: usize) -> Result<Vec<bool>> {
    const KEY: &str = "no_rope_layers";
    let interval = config.size("no_rope_layer_interval", 1..=LARGEST_LAYER_COUNT)?.unwrap_or(4);
    match config.sizes(KEY)?.filter(|given| !given.is_empty()) {
        Some(given) if given.len() < layers => {
            Err(config.wrong(KEY, format!("{} numbers are given for {layers} layers", given.len())))
        }
        Some(given) => Ok(given.into_iter().take(layers).map(|rotated| rotated != 0).collect()),
        None => Ok((0..layers).map(|index| !(index + 1).is_multiple_of(interval)).collect()),
    }
}

/// Reads of each layer how long its chunks are: by `layer_types`, or in those that rotate.
fn chunks(config: Fields<'_>, rotated: &[bool]) -> Result<Vec<Option<usize>>> {
    const KEY: &str = "attention_chunk_size";
    let length = window(config, KEY, Some(8192))?;
    let default = |index: usize| if rotated[index] { CHUNKED } else { FULL };
    let types = layer_types(config, rotated.len(), &[FULL, CHUNKED], default)?;
    let of = |layer_type: &str| match length {
        _ if layer_type == FULL => Ok(None),
        Some(length) => Ok(Some(length)),
        None => Err(config.wrong(KEY, "layers attend within chunks, but no length is set".to_owned())),
    };
    types.into_iter().map(of).collect()
}

/// Reads which layers have experts: `moe_layers`, or each `interleave_moe_layer_step`th.
fn sparse_layers(config: Fields<'_>) -> Result<impl Fn(usize) -> bool> {
    let listed = config.sizes("moe_layers")?;
    let step = config.size("interleave_moe_layer_step", 1..=LARGEST_LAYER_COUNT)?.unwrap_or(1);
    Ok(move |index: usize| match &listed {
        Some(listed) => listed.contains(&index),
        None => (index + 1).is_multiple_of(step),
    })
}

/// Reads how queries of layers without positions grow. Published files have a number for the flag.
fn query_scale(config: Fields<'_>) -> Result<Option<PositionScale>> {
    const KEY: &str = "attn_temperature_tuning";
    let tuned = match config.get(KEY) {
        Some(value) if value.is_number() => config.number(KEY)? != Some(0.0),
        _ => flag(config, KEY, true)?,
    };
    let original_context = config.size("floor_scale", 1..=LARGEST_CONTEXT)?.unwrap_or(8192);
    let beta = number(config, "attn_scale", 0.1)?;
    Ok(tuned.then_some(PositionScale { beta, original_context, offset: 1 }))
}

/// The experts of `module`, and the one that all tokens pass.
fn routed(roles: &Roles<'_>, module: &str, sizes: ExpertSizes, activation: Activation) -> Result<Operation> {
    let ExpertSizes { count, hidden, width, .. } = sizes;
    let projection = roles.linear(&format!("{module}.router"), count, hidden, false)?;
    let router = Router { normaliser: 0.0, weighs_inputs: true, ..sigmoid_router(projection, None, false) };
    let shared = format!("{module}.shared_expert");
    let shared = shared_experts(roles, &shared, [hidden, width], activation, false)?;
    let linears = linears(roles, module, sizes)?;
    Ok(linears.routed(sizes, router, Gating::Activated(activation), shared).into())
}

/// The experts' projections: stored the other way round with gates in front, three stacks as mlx-lm converts
/// them, or one by one.
fn linears(roles: &Roles<'_>, module: &str, sizes: ExpertSizes) -> Result<ExpertLinears> {
    let ExpertSizes { count, hidden, width, .. } = sizes;
    let [fused, down] = ["gate_up_proj", "down_proj"].map(|name| format!("{module}.experts.{name}"));
    if roles.has(&fused) {
        let turned = |name: &str, shape: [usize; 3]| roles.dense(name, &shape).map(WeightRef::transposed);
        let [gate, up] = halves(&turned(&fused, [count, hidden, 2 * width])?, width);
        return Ok(ExpertLinears::new(roles, [gate, up, turned(&down, [count, width, hidden])?]));
    }
    let stacks = format!("{module}.experts");
    if !roles.has_matrix(&format!("{stacks}.gate_proj")) {
        return roles.experts(module, PROJECTIONS, sizes);
    }
    Ok(ExpertLinears::new(roles, roles.stacks(&stacks, sizes)?))
}
