//! AFMoE (Trinity): gated attention with windows in most layers, of which only those rotate, norms around all
//! blocks, and experts that are routed by sigmoids beside shared ones.
//!
//! Config fields, defaults and arithmetic follow transformers' `AfmoeConfig` and `AfmoeForCausalLM`.

use mlxcel_core::Result;

use super::blocks::{AttentionBiases, between_norms, by_head, core, sequential};
use super::experts::{ExpertSizes, PROJECTIONS, shared_experts, shared_width, sigmoid_router};
use super::outline::Outline;
use super::roles::Roles;
use super::settings::{
    LARGEST_LAYER_COUNT, LARGEST_WIDTH, SizeDefaults, Sizes, activation, expect_flag, expect_text, flag,
    number, positive, sliding_windows, window,
};
use super::{Conversion, Family};
use crate::config::Fields;
use crate::decoder::{Activation, Attention, Decoder, Gating, Operation, Router};

pub(super) const FAMILY: Family =
    Family { conversion: Conversion::sensitive(&["router.gate"]), ..Family::new(&["afmoe"], &[], describe) };

const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 200_192,
    hidden: 2048,
    intermediate: 6144,
    layers: 32,
    query_heads: 16,
    kv_heads: None,
    head_dim: Some(128),
    context: 16_384,
};

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let hidden = sizes.hidden;
    let rope = sizes.rope(config).read()?;
    let biases = AttentionBiases::all(flag(config, "attention_bias", false)?);
    let epsilon = positive(config, "rms_norm_eps", 1e-5)?;
    let activation = activation(config, "hidden_act", Activation::Silu)?;
    let interval = config.size("global_attn_every_n_layers", 1..=LARGEST_LAYER_COUNT)?.unwrap_or(4);
    let window = window(config, "sliding_window", Some(1024))?;
    let windows =
        sliding_windows(config, sizes.layers, window, |index| !(index + 1).is_multiple_of(interval))?;
    let dense_layers = config.size("num_dense_layers", 0..=LARGEST_LAYER_COUNT)?.unwrap_or(1);
    let mixture = Mixture::read(config, &sizes, activation)?;

    let base = roles.base("model.", "embed_tokens");
    let norm = |name: &str| roles.rms_norm(name, hidden, epsilon);
    let head_norm = |name: &str| Ok(by_head(roles.rms_norm(name, sizes.head_dim, epsilon)?));
    let layer = |index: usize| {
        let name = |part: &str| format!("{base}layers.{index}.{part}");
        let core = core(sizes.scale(), windows[index], windows[index].and(Some(&rope)));
        let attention = Attention {
            query_norm: head_norm(&name("self_attn.q_norm"))?,
            key_norm: head_norm(&name("self_attn.k_norm"))?,
            gate: Some(roles.linear(&name("self_attn.gate_proj"), sizes.query_width(), hidden, false)?),
            ..roles.attention(&name("self_attn"), &sizes, biases, core)?
        };
        let second: Operation = if index < dense_layers {
            roles.gated_mlp(&name("mlp"), [hidden, sizes.intermediate], activation, false)?.into()
        } else {
            mixture.describe(roles, &name("mlp"))?
        };
        let norms =
            ["input_layernorm", "post_attention_layernorm", "pre_mlp_layernorm", "post_mlp_layernorm"];
        let [input, attended, before, after] = norms.map(|part| norm(&name(part)));
        Ok(sequential([between_norms(input?, attention, attended?), between_norms(before?, second, after?)]))
    };
    let embedding_scale =
        if flag(config, "mup_enabled", false)? { (hidden as f64).sqrt() as f32 } else { 1.0 };
    let tied = flag(config, "tie_word_embeddings", false)?;
    roles.decoder(Outline { embedding_scale, ..Outline::new(&sizes, &base, tied) }, norm, layer)
}

struct Mixture {
    experts: ExpertSizes,
    shared_width: usize,
    scale: f32,
    activation: Activation,
}

impl Mixture {
    fn read(config: Fields<'_>, sizes: &Sizes, activation: Activation) -> Result<Self> {
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
        Ok(Self { experts, shared_width: shared, scale: number(config, "route_scale", 1.0)?, activation })
    }

    fn describe(&self, roles: &Roles<'_>, module: &str) -> Result<Operation> {
        let &Self { experts, shared_width, scale, activation } = self;
        let bias = roles.tensor_if_there(&format!("{module}.expert_bias"), &[experts.count])?;
        let gate = format!("{module}.router.gate");
        let projection = roles.linear(&gate, experts.count, experts.hidden, false)?;
        let router = Router { scale, ..sigmoid_router(projection, bias, true) };
        let linears = roles.experts(module, PROJECTIONS, experts)?;
        let shared = format!("{module}.shared_experts");
        let shared = shared_experts(roles, &shared, [experts.hidden, shared_width], activation, false)?;
        Ok(linears.routed(experts, router, Gating::Activated(activation), shared).into())
    }
}
