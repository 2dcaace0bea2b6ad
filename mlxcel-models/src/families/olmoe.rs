//! OLMoE: experts in every layer, and norms over all heads of queries and keys.
//!
//! Config fields, defaults and arithmetic follow transformers' `OlmoeConfig` and `OlmoeForCausalLM`.

use mlxcel_core::Result;

use super::blocks::{AttentionBiases, core, over_heads, pre_norm, sequential};
use super::experts::{ExpertSizes, PROJECTIONS, chosen_count, expert_count, softmax_router};
use super::outline::Outline;
use super::roles::Roles;
use super::settings::{SizeDefaults, Sizes, activation, flag, optional_positive, positive};
use super::{Conversion, Family};
use crate::decoder::{Activation, Attention, Decoder, Gating};
use crate::rope::RopeSettings;

pub(super) const FAMILY: Family =
    Family { model_types: &["olmoe"], stop_tokens: &[50_279], describe, conversion: Conversion::USUAL };

const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 50_304,
    hidden: 2048,
    intermediate: 2048,
    layers: 16,
    query_heads: 16,
    kv_heads: None,
    head_dim: None,
    context: 4096,
};

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let rope = RopeSettings::new(config, sizes.head_dim, sizes.context).read()?;
    let biases = AttentionBiases::all(flag(config, "attention_bias", false)?);
    let clip = optional_positive(config, "clip_qkv", None)?;
    let epsilon = positive(config, "rms_norm_eps", 1e-5)?;
    let gating = Gating::Activated(activation(config, "hidden_act", Activation::Silu)?);
    let tied = flag(config, "tie_word_embeddings", false)?;
    let count = expert_count(config, &["num_experts", "num_local_experts"], 1, 64)?;
    let experts = ExpertSizes {
        count,
        chosen: chosen_count(config, count, 8)?,
        hidden: sizes.hidden,
        width: sizes.intermediate,
    };
    let normalised = flag(config, "norm_topk_prob", false)?;

    let base = roles.base("model.", "embed_tokens");
    let norm = |name: &str| roles.rms_norm(name, sizes.hidden, epsilon);
    let layer = |index: usize| {
        let name = |part: &str| format!("{base}layers.{index}.{part}");
        let input_norm = norm(&name("input_layernorm"))?;
        let core = core(sizes.scale(), None, Some(&rope));
        let attention = Attention {
            clip,
            query_norm: over_heads(roles.rms_norm(
                &name("self_attn.q_norm"),
                sizes.query_width(),
                epsilon,
            )?),
            key_norm: over_heads(roles.rms_norm(&name("self_attn.k_norm"), sizes.kv_width(), epsilon)?),
            ..roles.attention(&name("self_attn"), &sizes, biases, core)?
        };
        let output_norm = norm(&name("post_attention_layernorm"))?;
        let router = softmax_router(roles.linear(&name("mlp.gate"), count, sizes.hidden, false)?, normalised);
        let experts =
            roles.experts(&name("mlp"), PROJECTIONS, experts)?.routed(experts, router, gating, None);
        Ok(sequential([pre_norm(input_norm, attention), pre_norm(output_norm, experts)]))
    };
    roles.decoder(Outline::new(&sizes, &base, tied), norm, layer)
}
