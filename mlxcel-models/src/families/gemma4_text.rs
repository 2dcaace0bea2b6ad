//! Gemma 4: Gemma 3 with wider heads and keys as values in the layers that see everything, the last layers
//! attending to the keys and values of earlier ones, embeddings for each layer, and experts beside the MLP.
//!
//! Config fields, defaults and arithmetic follow transformers' `Gemma4TextConfig`, `Gemma4UnifiedTextConfig`
//! and `Gemma4ForCausalLM`.

use super::experts::{ExpertSizes, MOST_EXPERTS, softmax_router};
use super::gemma::embedding_scale;
use super::gemma2;
use super::layer_inputs::{LayerInputs, shared_sources};
use super::prelude::*;
use crate::decoder::{Arrangement, Experts, Layer, SharedAttention};

pub(super) const FAMILY: Family = Family {
    conversion: Conversion { experts: "experts.switch_glu", ..Conversion::sensitive(&["router.proj"]) },
    ..Family::new(&["gemma4_text", "gemma4_unified_text"], &[1], describe)
};

/// What layers of one type have in common.
pub(super) struct Kind {
    pub(super) name: &'static str,
    pub(super) sizes: Sizes,
    pub(super) window: Option<usize>,
    pub(super) rope: Rope,
    pub(super) keys_as_values: bool,
}

/// The sizes of the experts beside the MLP, if there are any.
fn expert_sizes(config: Fields<'_>, hidden: usize) -> Result<Option<ExpertSizes>> {
    if !flag(config, "enable_moe_block", false)? {
        return Ok(None);
    }
    let size = |key, most| config.size(key, 1..=most)?.ok_or_else(|| config.absent(key));
    let (count, chosen) = (size("num_experts", MOST_EXPERTS)?, size("top_k_experts", MOST_EXPERTS)?);
    if chosen > count {
        return Err(config.wrong("top_k_experts", format!("{chosen} of {count} experts cannot be chosen")));
    }
    let width = size("moe_intermediate_size", LARGEST_WIDTH)?;
    Ok(Some(ExpertSizes { count, chosen, hidden, width }))
}

/// The width of heads and the number of key/value heads in layers of the type `name`, which all have the
/// same.
fn kind_sizes(config: Fields<'_>, types: &[&str], name: &str, sizes: &Sizes, same: bool) -> Result<Sizes> {
    let mut of_kind = *sizes;
    if let Some(layers) = config.object("per_layer_config")? {
        let mut found: Option<Sizes> = None;
        for index in types.iter().enumerate().filter(|(_, known)| **known == name).map(|(index, _)| index) {
            let mut own = *sizes;
            // transformers pads indices with zeros to equal lengths.
            let key = layers.keys().find(|key| key.parse() == Ok(index)).unwrap_or_default();
            if let Some(fields) = layers.object(key)? {
                if let Some(key) =
                    fields.keys().find(|key| !matches!(*key, "head_dim" | "num_key_value_heads"))
                {
                    return Err(
                        fields.unsupported(key, "this setting cannot differ between layers".to_owned())
                    );
                }
                own.head_dim = fields.size("head_dim", 1..=LARGEST_HEAD_DIM)?.unwrap_or(own.head_dim);
                let heads = fields.size("num_key_value_heads", 1..=LARGEST_HEAD_COUNT)?;
                own.kv_heads = heads.unwrap_or(own.kv_heads);
            }
            if found.is_some_and(|found| found != own) {
                let message = format!("layers of type {name} with different heads are not supported");
                return Err(config.unsupported("per_layer_config", message));
            }
            found = Some(own);
        }
        of_kind = found.unwrap_or(of_kind);
    } else if name == FULL && config.get("per_layer_config").is_none() {
        of_kind.head_dim = config.size("global_head_dim", 1..=LARGEST_HEAD_DIM)?.unwrap_or(512);
        let heads = config.size("num_global_key_value_heads", 1..=LARGEST_HEAD_COUNT)?;
        of_kind.kv_heads = heads.filter(|_| same).unwrap_or(of_kind.kv_heads);
    }
    expect_shared(config, "num_global_key_value_heads", of_kind.kv_heads, of_kind.query_heads)?;
    Ok(of_kind)
}

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let (model_type, _) = roles.title();
    let unified = model_type == "gemma4_unified_text";
    let context = if unified { 262_144 } else { 131_072 };
    let defaults = SizeDefaults { vocabulary: 262_144, layers: 30, context, ..gemma2::DEFAULTS };
    if config.text("use_bidirectional_attention")?.is_some_and(|which| which != "vision") {
        let message = "attention in both directions is not supported for this model_type".to_owned();
        return Err(config.unsupported("use_bidirectional_attention", message));
    }
    let sizes = Sizes::read(config, &defaults)?;
    let epsilon = positive(config, "rms_norm_eps", 1e-6)?;
    let biases = AttentionBiases::read(config)?;
    let activation = activation(config, "hidden_activation", Activation::GeluTanh)?;
    let tied = flag(config, "tie_word_embeddings", true)?;
    let logit_cap = optional_positive(config, "final_logit_softcapping", None)?;
    let keys_as_values = flag(config, "attention_k_eq_v", false)?;
    let double = flag(config, "use_double_wide_mlp", false)?;
    let experts = if unified { None } else { expert_sizes(config, sizes.hidden)? };
    let mut types = layer_types(config, sizes.layers, &[FULL, SLIDING], |index| {
        if (index + 1) % 6 == 0 { FULL } else { SLIDING }
    })?;
    // transformers makes the last layer one that sees everything, whatever the settings say.
    if let Some(last) = types.last_mut() {
        *last = FULL;
    }
    let sources = shared_sources(config, &types, 0)?;
    let window = config.size("sliding_window", 1..=LARGEST_CONTEXT)?;
    let window = window.unwrap_or(if unified { 1024 } else { 512 });
    let kind = |name| {
        let sizes = kind_sizes(config, &types, name, &sizes, keys_as_values)?;
        let rope = sizes.rope(config);
        let is_full = name == FULL;
        Ok(Kind {
            name,
            sizes,
            window: (!is_full).then_some(window),
            rope: match rope.read_type(name)? {
                Some(rope) => rope,
                None if is_full => rope.proportional(1e6, 0.25, 1.0)?,
                None => rope.read_with(None, 10_000.0)?,
            },
            keys_as_values: is_full && keys_as_values,
        })
    };
    let used = [FULL, SLIDING].into_iter().filter(|name| types.contains(name));
    let kinds: Vec<Kind> = used.map(kind).collect::<Result<_>>()?;

    let base = roles.base("model.", "embed_tokens");
    let norm = |name: &str| roles.rms_norm(name, sizes.hidden, epsilon);
    let inputs = if unified { None } else { LayerInputs::read(config, 256)? };
    let layer_embeddings =
        inputs.map(|inputs| inputs.embeddings(roles, &base, &sizes, epsilon)).transpose()?;
    let layer = |index: usize| {
        let name = |part: &str| format!("{base}layers.{index}.{part}");
        let Some(kind) = kinds.iter().find(|kind| kind.name == types[index]) else {
            return Err(config.absent("layer_types"));
        };
        let source = sources[index];
        let mixer = mixer(roles, &name("self_attn"), kind, (biases, epsilon), source)?;
        let attention =
            between_norms(norm(&name("input_layernorm"))?, mixer, norm(&name("post_attention_layernorm"))?);
        let width = sizes.intermediate * if double && source.is_some() { 2 } else { 1 };
        let mlp = roles.gated_mlp(&name("mlp"), [sizes.hidden, width], activation, false)?;
        let (before, after) =
            (norm(&name("pre_feedforward_layernorm"))?, norm(&name("post_feedforward_layernorm"))?);
        let feed = match experts {
            None => between_norms(before, mlp, after),
            Some(experts) => {
                let shared = SharedExpert {
                    norm_before: Some(before),
                    mlp,
                    norm_after: Some(norm(&name("post_feedforward_layernorm_1"))?),
                    gate: None,
                };
                let linears = roles.experts(&format!("{base}layers.{index}"), PROJECTIONS, experts)?;
                let router = router(roles, &name("router"), experts, epsilon)?;
                let routed = linears.routed(experts, router, Gating::Activated(activation), Some(shared));
                let norms = ["pre_feedforward_layernorm_2", "post_feedforward_layernorm_2"];
                let [norm_before, norm_after] = norms.map(|part| norm(&name(part)).map(Some));
                let routed = Experts { norm_before: norm_before?, norm_after: norm_after?, ..routed };
                post_norm(routed, after)
            }
        };
        let mut blocks = vec![attention, feed];
        if let Some(inputs) = inputs {
            let name = format!("{base}layers.{index}");
            let (input, norm) = inputs.reader(roles, &name, index, sizes.hidden, (activation, epsilon))?;
            blocks.push(post_norm(Operation::LayerInput(input), norm));
        }
        let scale = roles.tensor_if_there(&name("layer_scalar"), &[1])?;
        Ok(Layer { blocks, arrangement: Arrangement::Sequential, altup: None, scale })
    };
    let outline = Outline {
        embedding_scale: embedding_scale(&sizes),
        layer_embeddings,
        logit_soft_cap: logit_cap,
        wrapper_scales: true,
        ..Outline::new(&sizes, &base, tied)
    };
    roles.decoder(outline, norm, layer)
}

/// Attention over keys and values of its own, or of the mixer `source`.
pub(super) fn mixer(
    roles: &Roles<'_>,
    module: &str,
    kind: &Kind,
    (biases, epsilon): (AttentionBiases, f32),
    source: Option<usize>,
) -> Result<Mixer> {
    let Kind { sizes, window, rope, keys_as_values, .. } = kind;
    let head_norm = |part| roles.rms_norm(&format!("{module}.{part}"), sizes.head_dim, epsilon);
    let core = core(1.0, *window, Some(rope));
    let query_norm = head_norm("q_norm")?;
    let linear =
        |part, outputs, inputs, bias| roles.linear(&format!("{module}.{part}"), outputs, inputs, bias);
    let query = linear("q_proj", sizes.query_width(), sizes.hidden, biases.inputs)?;
    let output = linear("o_proj", sizes.hidden, sizes.query_width(), biases.output)?;
    if let Some(source) = source {
        return Ok(Mixer::Shared(SharedAttention {
            query_heads: sizes.query_heads,
            head_dim: sizes.head_dim,
            query,
            output,
            query_norm: Some(query_norm),
            source,
            core,
        }));
    }
    let key = linear("k_proj", sizes.kv_width(), sizes.hidden, biases.inputs)?;
    let value =
        if *keys_as_values { key } else { linear("v_proj", sizes.kv_width(), sizes.hidden, biases.inputs)? };
    Ok(Mixer::Attention(Attention {
        query_norm: by_head(query_norm),
        key_norm: by_head(head_norm("k_norm")?),
        value_norm: Some(plain_norm(sizes.head_dim, epsilon)),
        ..plain_attention(sizes, [query, key, value], output, core)
    }))
}

/// The router of `module`, which norms what it reads with factors of its own.
fn router(roles: &Roles<'_>, module: &str, sizes: ExpertSizes, epsilon: f32) -> Result<Router> {
    let ExpertSizes { count, hidden, .. } = sizes;
    let factors = roles.tensor(&format!("{module}.scale"), &[hidden])?;
    let projection = roles.linear(&format!("{module}.proj"), count, hidden, false)?;
    Ok(Router {
        norm: Some(Norm { weight: Some(factors), ..plain_norm(hidden, epsilon) }),
        input_scale: (hidden as f64).powf(-0.5) as f32,
        expert_scales: Some(roles.tensor(&format!("{module}.per_expert_scale"), &[count])?),
        ..softmax_router(projection, true)
    })
}
