//! Qwen3-MoE: Qwen3 with experts instead of most MLPs.
//!
//! Config fields, defaults and arithmetic follow transformers' `Qwen3MoeConfig` and `Qwen3MoeForCausalLM`.

use mlxcel_core::Result;

use super::Family;
use super::blocks::{AttentionBiases, by_head, core, pre_norm, sequential};
use super::experts::{ExpertSizes, PROJECTIONS, chosen_count, expert_count, softmax_router, sparse_layers};
use super::outline::Outline;
use super::roles::Roles;
use super::settings::{LARGEST_WIDTH, SizeDefaults, Sizes, activation, flag, positive, window};
use crate::decoder::{Activation, Attention, Decoder, Gating};
use crate::rope::RopeSettings;

pub(super) const FAMILY: Family = Family { model_types: &["qwen3_moe"], stop_tokens: &[], describe };

const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 151_936,
    hidden: 2048,
    intermediate: 6144,
    layers: 24,
    query_heads: 32,
    kv_heads: Some(4),
    head_dim: None,
    context: 32_768,
};

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let rope = RopeSettings::new(config, sizes.head_dim, sizes.context).read()?;
    let windowed = flag(config, "use_sliding_window", false)?;
    let window = if windowed { window(config, "sliding_window", Some(4096))? } else { None };
    let biases = AttentionBiases::all(flag(config, "attention_bias", false)?);
    let epsilon = positive(config, "rms_norm_eps", 1e-6)?;
    let activation = activation(config, "hidden_act", Activation::Silu)?;
    let tied = flag(config, "tie_word_embeddings", false)?;
    let count = expert_count(config, &["num_experts", "num_local_experts"], 0, 128)?;
    let width = config.size("moe_intermediate_size", 1..=LARGEST_WIDTH)?.unwrap_or(768);
    let experts = ExpertSizes { count, chosen: chosen_count(config, count, 8)?, hidden: sizes.hidden, width };
    let normalised = flag(config, "norm_topk_prob", false)?;
    let is_sparse = sparse_layers(config, count)?;

    let base = roles.base("model.", "embed_tokens");
    let norm = |name: &str| roles.rms_norm(name, sizes.hidden, epsilon);
    let layer = |index: usize| {
        let name = |part: &str| format!("{base}layers.{index}.{part}");
        let input_norm = norm(&name("input_layernorm"))?;
        let core = core(sizes.scale(), window, Some(&rope));
        let attention = Attention {
            query_norm: by_head(roles.rms_norm(&name("self_attn.q_norm"), sizes.head_dim, epsilon)?),
            key_norm: by_head(roles.rms_norm(&name("self_attn.k_norm"), sizes.head_dim, epsilon)?),
            ..roles.attention(&name("self_attn"), &sizes, biases, core)?
        };
        let output_norm = norm(&name("post_attention_layernorm"))?;
        let block = if is_sparse(index) {
            let router =
                softmax_router(roles.linear(&name("mlp.gate"), count, sizes.hidden, false)?, normalised);
            let linears = roles.experts(&name("mlp"), PROJECTIONS, experts)?;
            pre_norm(output_norm, linears.routed(experts, router, Gating::Activated(activation), None))
        } else {
            let mlp = roles.gated_mlp(&name("mlp"), [sizes.hidden, sizes.intermediate], activation, false)?;
            pre_norm(output_norm, mlp)
        };
        Ok(sequential([pre_norm(input_norm, attention), block]))
    };
    roles.decoder(Outline::new(&sizes, &base, tied), norm, layer)
}
