//! Glm4-MoE (GLM-4.5 and later): GLM's attention with partial rotary embedding, and DeepSeek-V3's experts.
//!
//! Config fields, defaults and arithmetic follow transformers' `Glm4MoeConfig` and `Glm4MoeForCausalLM`. The
//! multi-token prediction layers, which follow the others in the files, are ignored.

use mlxcel_core::Result;

use super::Family;
use super::blocks::{AttentionBiases, by_head, core, pre_norm, sequential};
use super::experts::{
    ExpertSizes, PROJECTIONS, SigmoidSettings, chosen_count, expert_count, shared_experts, shared_width,
    sigmoid_router,
};
use super::outline::Outline;
use super::roles::Roles;
use super::settings::{LARGEST_LAYER_COUNT, LARGEST_WIDTH, SizeDefaults, Sizes, activation, flag, positive};
use crate::decoder::{Activation, Decoder, ExpertGroups, Gating};
use crate::rope::{Partial, RopeSettings};

pub(super) const FAMILY: Family = Family { model_types: &["glm4_moe"], stop_tokens: &[], describe };

const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 151_552,
    hidden: 4096,
    intermediate: 10_944,
    layers: 46,
    query_heads: 96,
    kv_heads: Some(8),
    head_dim: None,
    context: 131_072,
};

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let (hidden, dense_width) = (sizes.hidden, sizes.intermediate);
    let partial = Partial::Part { key: "partial_rotary_factor", default: 0.5 };
    let rope = RopeSettings { partial, ..RopeSettings::new(config, sizes.head_dim, sizes.context) }.read()?;
    let biases = AttentionBiases::inputs(flag(config, "attention_bias", false)?);
    let normed = flag(config, "use_qk_norm", false)?;
    let epsilon = positive(config, "rms_norm_eps", 1e-5)?;
    let activation = activation(config, "hidden_act", Activation::Silu)?;
    let tied = flag(config, "tie_word_embeddings", false)?;
    let dense_layers = config.size("first_k_dense_replace", 0..=LARGEST_LAYER_COUNT)?.unwrap_or(1);
    let count = expert_count(config, &["n_routed_experts", "num_local_experts"], 1, 128)?;
    let width = config.size("moe_intermediate_size", 1..=LARGEST_WIDTH)?.unwrap_or(1408);
    let experts = ExpertSizes { count, chosen: chosen_count(config, count, 8)?, hidden, width };
    let router = SigmoidSettings::read(config, experts, ExpertGroups { count: 1, kept: 1 }, 1.0)?;
    let shared_width = shared_width(config, experts)?;

    let base = roles.base("model.", "embed_tokens");
    let norm = |name: &str| roles.rms_norm(name, hidden, epsilon);
    let layer = |index: usize| {
        let name = |part: &str| format!("{base}layers.{index}.{part}");
        let input_norm = norm(&name("input_layernorm"))?;
        let core = core(sizes.scale(), None, Some(&rope));
        let mut attention = roles.attention(&name("self_attn"), &sizes, biases, core)?;
        if normed {
            attention.query_norm =
                by_head(roles.rms_norm(&name("self_attn.q_norm"), sizes.head_dim, epsilon)?);
            attention.key_norm =
                by_head(roles.rms_norm(&name("self_attn.k_norm"), sizes.head_dim, epsilon)?);
        }
        let output_norm = norm(&name("post_attention_layernorm"))?;
        let block = if index < dense_layers {
            let mlp = roles.gated_mlp(&name("mlp"), [hidden, dense_width], activation, false)?;
            pre_norm(output_norm, mlp)
        } else {
            let router = sigmoid_router(roles, &name("mlp.gate"), experts, router)?;
            let linears = roles.experts(&name("mlp"), PROJECTIONS, experts)?;
            let shared =
                shared_experts(roles, &name("mlp.shared_experts"), [hidden, shared_width], activation)?;
            pre_norm(output_norm, linears.routed(experts, router, Gating::Activated(activation), shared))
        };
        Ok(sequential([pre_norm(input_norm, attention), block]))
    };
    roles.decoder(Outline::new(&sizes, &base, tied), norm, layer)
}
