//! GPT-2: learned positions, layer norms, MLPs without gates, and transposed weights.
//!
//! Config fields, defaults and arithmetic follow transformers' `GPT2Config` and `GPT2LMHeadModel`. In single
//! precision `reorder_and_upcast_attn` changes nothing.

use super::prelude::*;
use super::roles::Fused;

pub(super) const FAMILY: Family = Family::new(&["gpt2"], &[50_256], describe);

pub(super) const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 50_257,
    hidden: 768,
    intermediate: 3072,
    layers: 12,
    query_heads: 12,
    context: 1024,
    ..SizeDefaults::LLAMA
};

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    expect_flag(config, "add_cross_attention", false)?;
    let sizes = sizes(config, &DEFAULTS)?;
    let scale = if flag(config, "scale_attn_weights", true)? { sizes.scale() } else { 1.0 };
    let by_layer = flag(config, "scale_attn_by_inverse_layer_idx", false)?;
    let scale = |index: usize| if by_layer { scale / (index + 1) as f32 } else { scale };
    // Weights are stored as inputs by outputs; in GGUF files the other way round, as those of all families.
    let by_inputs = flag(config, "conv1d", true)?;
    let module = |name: &str, outputs: usize, inputs: usize| -> Result<Fused<'_>> {
        let weight = if by_inputs {
            roles.dense(&format!("{name}.weight"), &[inputs, outputs])?.transposed()
        } else {
            roles.matrix(name, outputs, inputs)?
        };
        Ok(Fused { roles, weight, bias: roles.bias(name, outputs, true)? })
    };
    decoder(roles, &sizes, scale, module, Fused::in_order)
}

/// The decoder of a checkpoint with the structure and tensor names of GPT-2. `scale` is that of the scores of
/// a layer, `module` a projection from its name, outputs and inputs, and `split` takes queries, keys and
/// values apart.
pub(super) fn decoder<'r>(
    roles: &'r Roles<'r>,
    sizes: &Sizes,
    scale: impl Fn(usize) -> f32,
    module: impl Fn(&str, usize, usize) -> Result<Fused<'r>>,
    split: impl Fn(&Fused<'r>, &Sizes) -> [Linear; 3],
) -> Result<Decoder> {
    let (hidden, intermediate) = (sizes.hidden, sizes.intermediate);
    let activation = activation(roles.config, "activation_function", Activation::GeluTanh)?;
    let variant = Variant {
        base: "transformer.",
        embedding: "wte",
        positions: Some(("wpe", 0)),
        layers: "h",
        epsilon: 1e-5,
        epsilon_key: "layer_norm_epsilon",
        norm_kind: NormKind::Layer,
        norms: Some(["ln_1", "ln_2"]),
        last_norm: "ln_f",
        tied: true,
        ..Variant::PLAIN
    };
    let linear = |name: String, outputs: usize, inputs: usize| {
        let Fused { weight, bias, .. } = module(&name, outputs, inputs)?;
        Ok(roles.projection(weight, bias))
    };
    let attention = |index: usize, layer: &str| {
        let rows = sizes.query_width() + 2 * sizes.kv_width();
        let inputs = split(&module(&format!("{layer}.attn.c_attn"), rows, hidden)?, sizes);
        let output = linear(format!("{layer}.attn.c_proj"), hidden, hidden)?;
        Ok(plain_attention(sizes, inputs, output, core(scale(index), None, None)).into())
    };
    variant.decoder_of(roles, sizes, attention, |_, layer| {
        let mlp = Mlp::Plain {
            activation,
            up: linear(format!("{layer}.mlp.c_fc"), intermediate, hidden)?,
            down: linear(format!("{layer}.mlp.c_proj"), hidden, intermediate)?,
        };
        Ok(mlp.into())
    })
}

/// The sizes, each by its old name or the one that all families have.
pub(super) fn sizes(config: Fields<'_>, defaults: &SizeDefaults) -> Result<Sizes> {
    let size = |names: [&str; 2], largest, default| -> Result<usize> {
        let first = config.size(names[0], 1..=largest)?;
        Ok(first.or(config.size(names[1], 1..=largest)?).unwrap_or(default))
    };
    let hidden = size(["hidden_size", "n_embd"], LARGEST_WIDTH, defaults.hidden)?;
    let heads = size(["num_attention_heads", "n_head"], LARGEST_HEAD_COUNT, defaults.query_heads)?;
    let context = ["max_position_embeddings", "n_positions"];
    Ok(Sizes {
        vocabulary: config.size("vocab_size", 1..=LARGEST_VOCABULARY)?.unwrap_or(defaults.vocabulary),
        hidden,
        intermediate: config.size("n_inner", 1..=LARGEST_WIDTH)?.unwrap_or(4 * hidden),
        layers: size(["num_hidden_layers", "n_layer"], LARGEST_LAYER_COUNT, defaults.layers)?,
        query_heads: heads,
        kv_heads: heads,
        head_dim: head_dim(config, "n_head", hidden, heads)?,
        context: size(context, LARGEST_CONTEXT, defaults.context)?,
    })
}
