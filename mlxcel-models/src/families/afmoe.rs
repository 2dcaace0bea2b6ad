//! AFMoE (Trinity): gated attention with windows in most layers, of which only those rotate, norms around all
//! blocks, and experts that are routed by sigmoids beside shared ones.
//!
//! Config fields, defaults and arithmetic follow transformers' `AfmoeConfig` and `AfmoeForCausalLM`.

use super::experts::{ExpertSizes, shared_experts, shared_width, sigmoid_router};
use super::gemma::embedding_scale;
use super::prelude::*;

pub(super) const FAMILY: Family = Family {
    conversion: Conversion { experts: "experts", ..Conversion::sensitive(&["router.gate"]) },
    ..Family::new(&["afmoe"], &[], describe)
};

const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 200_192,
    hidden: 2048,
    intermediate: 6144,
    query_heads: 16,
    head_dim: Some(128),
    context: 16_384,
    ..SizeDefaults::LLAMA
};

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let hidden = sizes.hidden;
    let rope = sizes.rope(config).read()?;
    let interval = config.size("global_attn_every_n_layers", 1..=LARGEST_LAYER_COUNT)?.unwrap_or(4);
    let window = window(config, "sliding_window", Some(1024))?;
    let windows =
        sliding_windows(config, sizes.layers, window, |index| !(index + 1).is_multiple_of(interval))?;
    let dense_layers = config.size("num_dense_layers", 0..=LARGEST_LAYER_COUNT)?.unwrap_or(1);
    let mixture = Mixture::read(config, &sizes)?;
    let is_scaled = flag(config, "mup_enabled", false)?;
    let variant = Variant {
        epsilon: 1e-5,
        norms: Some(["input_layernorm", "pre_mlp_layernorm"]),
        norms_after: Some(["post_attention_layernorm", "post_mlp_layernorm"]),
        attention_biases: AttentionBiases::read(config)?,
        head_norms: HEAD_NORMS,
        embedding_scale: if is_scaled { embedding_scale(&sizes) } else { 1.0 },
        ..Variant::PLAIN
    };
    let attention = |index: usize, layer: &str| {
        let core = core(sizes.scale(), windows[index], windows[index].and(Some(&rope)));
        let gate = format!("{layer}.self_attn.gate_proj");
        let gate = Some(roles.linear(&gate, sizes.query_width(), hidden, false)?);
        Ok(Attention { gate, ..variant.attention(roles, &sizes, layer, core)? }.into())
    };
    let mlp = variant.mlp(roles, &sizes)?;
    variant.decoder_of(roles, &sizes, attention, |index, layer| {
        if index < dense_layers { mlp(layer) } else { mixture.describe(roles, &format!("{layer}.mlp")) }
    })
}

struct Mixture {
    experts: ExpertSizes,
    shared_width: usize,
    scale: f32,
    activation: Activation,
}

impl Mixture {
    fn read(config: Fields<'_>, sizes: &Sizes) -> Result<Self> {
        // Keys of published files beyond what transformers implements.
        expect_text(config, "score_func", "sigmoid")?;
        expect_flag(config, "route_norm", true)?;
        for key in ["n_group", "num_expert_groups"] {
            if config.size(key, 0..=LARGEST_WIDTH)?.is_some_and(|groups| groups > 1) {
                let message = "groups of experts are not supported for this model_type".to_owned();
                return Err(config.unsupported(key, message));
            }
        }
        const SHARED: &str = "num_shared_experts";
        let experts = ExpertSizes::read(config, sizes, &["num_experts"], 1, [64, 6])?;
        let experts = experts.of_own_width(config, 1408)?;
        let width = experts.width;
        let shared = if config.mentions(SHARED) { shared_width(config, SHARED, width)? } else { 2 * width };
        let activation = activation(config, "hidden_act", Activation::Silu)?;
        Ok(Self { experts, shared_width: shared, scale: number(config, "route_scale", 1.0)?, activation })
    }

    fn describe(&self, roles: &Roles<'_>, module: &str) -> Result<Operation> {
        let &Self { experts, shared_width, scale, activation } = self;
        let bias = roles.tensor_if_there(&format!("{module}.expert_bias"), &[experts.count])?;
        let gate = format!("{module}.router.gate");
        let projection = roles.linear(&gate, experts.count, experts.hidden, false)?;
        let router = Router { scale, ..sigmoid_router(projection, bias, true) };
        let shared = format!("{module}.shared_experts");
        let shared = shared_experts(roles, &shared, [experts.hidden, shared_width], activation, false)?;
        roles.mixture(module, PROJECTIONS, experts, router, activation, shared)
    }
}
