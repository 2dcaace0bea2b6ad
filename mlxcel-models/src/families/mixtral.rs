//! Mixtral: Mistral with experts instead of MLPs.
//!
//! Config fields, defaults and arithmetic follow transformers' `MixtralConfig` and `MixtralForCausalLM`.

use mlxcel_core::Result;

use super::Family;
use super::blocks::{AttentionBiases, core, pre_norm, sequential};
use super::experts::{ExpertSizes, chosen_count, expert_count, softmax_router};
use super::outline::Outline;
use super::roles::Roles;
use super::settings::{SizeDefaults, Sizes, activation, flag, positive, window};
use crate::decoder::{Activation, Decoder, Gating};
use crate::rope::RopeSettings;

pub(super) const FAMILY: Family = Family { model_types: &["mixtral"], stop_tokens: &[2], describe };

const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 32_000,
    hidden: 4096,
    intermediate: 14_336,
    layers: 32,
    query_heads: 32,
    kv_heads: Some(8),
    head_dim: None,
    context: 4096 * 32,
};

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let rope =
        RopeSettings { theta: 1_000_000.0, ..RopeSettings::new(config, sizes.head_dim, sizes.context) }
            .read()?;
    let window = window(config, "sliding_window", None)?;
    let epsilon = positive(config, "rms_norm_eps", 1e-5)?;
    let gating = Gating::Activated(activation(config, "hidden_act", Activation::Silu)?);
    let tied = flag(config, "tie_word_embeddings", false)?;
    let count = expert_count(config, &["num_local_experts", "num_experts"], 1, 8)?;
    let experts = ExpertSizes {
        count,
        chosen: chosen_count(config, count, 2)?,
        hidden: sizes.hidden,
        width: sizes.intermediate,
    };

    let base = roles.base("model.", "embed_tokens");
    let norm = |name: &str| roles.rms_norm(name, sizes.hidden, epsilon);
    let layer = |index: usize| {
        let name = |part: &str| format!("{base}layers.{index}.{part}");
        let core = core(sizes.scale(), window, Some(&rope));
        let attention = pre_norm(
            norm(&name("input_layernorm"))?,
            roles.attention(&name("self_attn"), &sizes, AttentionBiases::all(false), core)?,
        );
        let output_norm = norm(&name("post_attention_layernorm"))?;
        // transformers has renamed the module, and reads both.
        let gate = roles.first_matrix(&[name("block_sparse_moe.gate"), name("mlp.gate")]);
        let router = softmax_router(roles.linear(&gate, count, sizes.hidden, false)?, true);
        let module = gate.trim_end_matches(".gate");
        let experts =
            roles.experts(module, ["w1", "w3", "w2"], experts)?.routed(experts, router, gating, None);
        Ok(sequential([attention, pre_norm(output_norm, experts)]))
    };
    roles.decoder(Outline::new(&sizes, &base, tied), norm, layer)
}
