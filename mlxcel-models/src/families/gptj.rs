//! GPT-J: parallel attention and MLP after one layer norm, rotary embedding of adjacent elements in a part of
//! each head, and a head with a bias.
//!
//! Config fields, defaults and arithmetic follow transformers' `GPTJConfig` and `GPTJForCausalLM`.

use super::gpt2::sizes;
use super::prelude::*;

pub(super) const FAMILY: Family = Family {
    conversion: Conversion { renamed: &[("transformer.", "model.")], ..Conversion::USUAL },
    ..Family::new(&["gptj"], &[50_256], describe)
};

const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 50_400,
    intermediate: 16_384,
    layers: 28,
    query_heads: 16,
    ..SizeDefaults::LLAMA
};

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    decoder(roles, |name, sizes| roles.attention_inputs(name, sizes.hidden, sizes, false))
}

/// The decoder of a checkpoint with the structure of GPT-J; `inputs` makes the projections of queries, keys
/// and values of a module.
pub(super) fn decoder(
    roles: &Roles<'_>,
    inputs: impl Fn(&str, &Sizes) -> Result<[Linear; 3]>,
) -> Result<Decoder> {
    let config = roles.config;
    let sizes = sizes(config, &DEFAULTS)?;
    let rope = rope(config, &sizes)?;
    let variant = Variant {
        // mlx-lm has renamed the module.
        base: if roles.has_matrix("model.wte") { "model." } else { "transformer." },
        embedding: "wte",
        layers: "h",
        epsilon: 1e-5,
        epsilon_key: "layer_norm_epsilon",
        norm_kind: NormKind::Layer,
        norms: Some(["ln_1"; 2]),
        parallel: true,
        last_norm: "ln_f",
        mlp_form: MlpForm::Plain(["fc_in", "fc_out"]),
        mlp_biases: true,
        activation_key: "activation_function",
        activation: Activation::GeluTanh,
        head_bias: true,
        ..Variant::PLAIN
    };
    let attention = |_, layer: &str| {
        let module = format!("{layer}.attn");
        let inputs = inputs(&module, &sizes)?;
        let output = roles.linear(&format!("{module}.out_proj"), sizes.hidden, sizes.hidden, false)?;
        Ok(plain_attention(&sizes, inputs, output, core(sizes.scale(), None, Some(&rope))).into())
    };
    let mlp = variant.mlp(roles, &sizes)?;
    variant.decoder_of(roles, &sizes, attention, |_, layer| mlp(layer))
}

/// The rotary embedding, of which the settings give the number of elements alone.
fn rope(config: Fields<'_>, sizes: &Sizes) -> Result<Rope> {
    const KEY: &str = "rotary_dim";
    if config.is_null(KEY) {
        return Err(config.unsupported(KEY, "null is not supported for this model_type".to_owned()));
    }
    let rotated = config.size(KEY, 1..=LARGEST_HEAD_DIM)?.unwrap_or(64);
    if rotated > sizes.head_dim || rotated % 2 == 1 {
        let message =
            format!("{rotated} should be an even number of the {} elements of a head", sizes.head_dim);
        return Err(config.wrong(KEY, message));
    }
    let settings = RopeSettings::new(config, rotated, sizes.context);
    RopeSettings { interleaved: true, ..settings }.read_with(None, 10_000.0)
}
