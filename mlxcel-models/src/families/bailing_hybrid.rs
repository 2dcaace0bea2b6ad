//! Ling 3 (`bailing_hybrid`): Kimi delta attention with a bounded decay in most layers and gated latent
//! attention in the others, and experts in groups.
//!
//! Config fields, defaults and arithmetic follow transformers' `BailingHybridConfig` and
//! `BailingHybridForCausalLM`; tensors have its names or those of published files. Multi-token prediction
//! layers, which follow the others, are ignored.

use super::convolution::taps;
use super::experts::{GroupedDefaults, GroupedExperts};
use super::kimi_delta::KimiDelta;
use super::kimi_linear::{RENAMED, renamed_sizes};
use super::latent::{LatentDefaults, LatentSettings};
use super::prelude::*;
use super::sparse_layers::sparse_layer_types;
use crate::decoder::{Decay, LatentAttention};

pub(super) const FAMILY: Family = Family {
    conversion: Conversion::sensitive(&["mlp.gate"]),
    ..Family::new(&["bailing_hybrid"], &[156_895], describe)
};

const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 157_184,
    hidden: 2560,
    intermediate: 6144,
    layers: 42,
    query_heads: 32,
    kv_heads: Some(32),
    head_dim: Some(128),
    context: 262_144,
};
const LATENTS: LatentDefaults = LatentDefaults { query_rank: None, theta: 6e6, ..LatentDefaults::DEEPSEEK };
const EXPERTS: GroupedDefaults = GroupedDefaults {
    count: 512,
    width: 768,
    groups: ExpertGroups { count: 8, kept: 4 },
    scale: 2.5,
    ..RENAMED
};

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let sizes = renamed_sizes(config, &DEFAULTS)?;
    let epsilon = positive(config, "rms_norm_eps", 1e-6)?;
    let activation = activation(config, "hidden_act", Activation::Silu)?;
    let tied = flag(config, "tie_word_embeddings", false)?;
    let attention = LatentSettings::read(config, config, &sizes, &LATENTS)?;
    let mixture = GroupedExperts::read(config, &sizes, activation, &EXPERTS)?;
    let dense_layers = config.size("first_k_dense_replace", 0..=LARGEST_LAYER_COUNT)?.unwrap_or(2);
    let sparse = sparse_layer_types(config, sizes.layers, dense_layers)?;
    let group = config.size("layer_group_size", 1..=LARGEST_LAYER_COUNT)?.unwrap_or(6);
    let types = layer_types(config, sizes.layers, &[FULL, LINEAR], |index| {
        if (index + 1) % group == 0 { FULL } else { LINEAR }
    })?;
    let bound = number(config, "kda_lower_bound", -5.0)?;
    let decay_form =
        if flag(config, "kda_safe_gate", true)? { Decay::Bounded { bound } } else { Decay::Softplus };
    let delta = KimiDelta {
        hidden: sizes.hidden,
        heads: sizes.query_heads,
        dim: config.size("head_dim", 1..=LARGEST_HEAD_DIM)?.unwrap_or(128),
        taps: taps(config, "short_conv_kernel_size", 4)?,
        decay_form,
        activation,
        epsilon,
    };
    let delta = delta.read(config)?;

    // Published files have the first of the names.
    let words = roles.base("model.", "word_embeddings");
    let embedding = format!("{words}word_embeddings");
    let published = roles.has_matrix(&embedding);
    let base = if published { words } else { roles.base("model.", "embed_tokens") };
    let norm = |name: &str| roles.rms_norm(name, sizes.hidden, epsilon);
    let layer = |index: usize| {
        let name = |part: &str| format!("{base}layers.{index}.{part}");
        let attended = name("attention");
        let is_published = ["q_proj", "kv_a_proj_with_mqa"]
            .iter()
            .any(|part| roles.has_matrix(&format!("{attended}.{part}")));
        let module = if is_published { attended } else { name("self_attn") };
        let input_norm = norm(&name("input_layernorm"))?;
        let mixer = match types[index] {
            LINEAR => Mixer::DeltaRule(delta.describe(roles, &module)?),
            _ => {
                let gate =
                    roles.linear(&format!("{module}.g_proj"), sizes.query_heads, sizes.hidden, false)?;
                Mixer::Latent(LatentAttention { gate: Some(gate), ..attention.describe(roles, &module)? })
            }
        };
        let second = mixture.or_mlp(roles, &name("mlp"), sparse[index])?;
        Ok(sequential([
            pre_norm(input_norm, mixer),
            pre_norm(norm(&name("post_attention_layernorm"))?, second),
        ]))
    };
    let mut outline = Outline::new(&sizes, &base, tied);
    if published {
        outline.embedding = embedding;
    }
    roles.decoder(outline, norm, layer)
}
