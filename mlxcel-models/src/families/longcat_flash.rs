//! LongCat-Flash: layers of two latent attentions and two MLPs, with experts on a shortcut around the second
//! half, of which some return what they read.
//!
//! Config fields, defaults and arithmetic follow transformers' `LongcatFlashConfig` and
//! `LongcatFlashForCausalLM`. The multi-token prediction module is ignored. A bias of the router's projection
//! is refused: transformers has the tensor but leaves it out, and mlx-lm adds it.

use super::deepseek_v3;
use super::experts::{ExpertSizes, MOST_EXPERTS, aliased_size, chosen_of, expert_count, softmax_router};
use super::latent::{LatentDefaults, LatentSettings};
use super::prelude::*;
use crate::decoder::Experts;

pub(super) const FAMILY: Family = Family {
    conversion: Conversion::sensitive(&["classifier"]),
    ..Family::new(&["longcat_flash"], &[2], describe)
};

const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 131_072,
    hidden: 6144,
    intermediate: 12_288,
    layers: 28,
    query_heads: 64,
    context: 131_072,
    ..deepseek_v3::DEFAULTS
};
const LATENTS: LatentDefaults = LatentDefaults { theta: 10_000_000.0, ..LatentDefaults::DEEPSEEK };

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let size =
        |keys: [&str; 2], default| Ok(aliased_size(config, &keys, 1..=LARGEST_WIDTH)?.unwrap_or(default));
    let intermediate = size(["intermediate_size", "ffn_hidden_size"], DEFAULTS.intermediate)?;
    let sizes = Sizes::read_others(config, &DEFAULTS, intermediate)?;
    let sizes = Sizes { layers: layers(config)?, ..sizes };
    let hidden = sizes.hidden;
    let attention = LatentSettings::read(config, config, &sizes, &LATENTS)?.scaled_latents(config)?;
    refuse_others(config, &attention)?;
    let epsilon = positive(config, "rms_norm_eps", 1e-5)?;
    let activation = activation(config, "hidden_act", Activation::Silu)?;
    let count = expert_count(config, &["num_local_experts", "n_routed_experts"], 1, 512)?;
    let identities = match config.size("zero_expert_num", 0..=MOST_EXPERTS)? {
        None if config.mentions("zero_expert_num") => 0,
        identities => identities.unwrap_or(256),
    };
    let chosen = chosen_of(config, &["num_experts_per_tok", "moe_topk"], count + identities, 12)?;
    let width = size(["moe_intermediate_size", "expert_ffn_hidden_size"], 2048)?;
    let experts = ExpertSizes { count, chosen, hidden, width };
    let scale = number(config, "routed_scaling_factor", 6.0)?;

    let base = roles.base("model.", "embed_tokens");
    let norm = |name: &str| roles.rms_norm(name, hidden, epsilon);
    let mixture = |module: &str| {
        let projection =
            roles.linear(&format!("{module}.router.classifier"), count + identities, hidden, false)?;
        let bias = format!("{module}.router.e_score_correction_bias");
        let bias = roles.tensor_if_there(&bias, &[count + identities])?;
        let router = Router { scale, selection_bias: bias, ..softmax_router(projection, false) };
        let linears = roles.experts(module, PROJECTIONS, experts)?;
        let experts = linears.routed(experts, router, Gating::Activated(activation), None);
        Ok(Experts { identities, ..experts })
    };
    let layer = |index: usize| {
        let name = |part: &str| format!("{base}layers.{index}.{part}");
        let attend = |half: &str| {
            let input_norm = norm(&name(&format!("input_layernorm.{half}")))?;
            let attention = attention.describe(roles, &name(&format!("self_attn.{half}")))?;
            Ok(pre_norm(input_norm, Mixer::Latent(attention)))
        };
        let output_norms =
            [norm(&name("post_attention_layernorm.0"))?, norm(&name("post_attention_layernorm.1"))?];
        let mlp = |half: usize| {
            let module = name(&format!("mlps.{half}"));
            let mlp = roles.gated_mlp(&module, [hidden, sizes.intermediate], activation, false)?;
            Ok(pre_norm(output_norms[half], mlp))
        };
        let first: Result<Block> = attend("0");
        let experts: Result<Experts> = mixture(&name("mlp"));
        let experts = Block { deferred: true, ..pre_norm(output_norms[0], experts?) };
        let narrow: Result<Block> = mlp(0);
        Ok(sequential([first?, experts, narrow?, attend("1")?, mlp(1)?]))
    };
    roles.decoder(Outline::new(&sizes, &base, flag(config, "tie_word_embeddings", false)?), norm, layer)
}

/// The number of layers, each of which transformers counts as two under the other name.
fn layers(config: Fields<'_>) -> Result<usize> {
    const HALVES: &str = "num_hidden_layers";
    let halves = config.size(HALVES, 2..=2 * LARGEST_LAYER_COUNT)?;
    let layers = config.size("num_layers", 1..=LARGEST_LAYER_COUNT)?;
    match (layers, halves) {
        (Some(layers), Some(halves)) if halves / 2 != layers => {
            Err(config.wrong(HALVES, format!("{halves} is not twice num_layers, {layers}")))
        }
        (Some(layers), _) => Ok(layers),
        (None, halves) => Ok(halves.map_or(DEFAULTS.layers, |halves| halves / 2)),
    }
}

/// Refuses what the reference implementation does not do.
fn refuse_others(config: Fields<'_>, attention: &LatentSettings) -> Result<()> {
    expect_text(config, "attention_method", "MLA")?;
    expect_text(config, "zero_expert_type", "identity")?;
    expect_flag(config, "mla_scale_q_lora", true)?;
    expect_flag(config, "mla_scale_kv_lora", true)?;
    expect_flag(config, "router_bias", false)?;
    expect_flag(config, "norm_topk_prob", false)?;
    expect_flag(config, "rope_interleave", true)?;
    expect_number(config, "qk_head_dim", attention.query_dim() as f64)
}
