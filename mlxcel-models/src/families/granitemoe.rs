//! Granite-MoE: Granite's multipliers, and experts in every layer.
//!
//! Config fields, defaults and arithmetic follow transformers' `GraniteMoeConfig` and
//! `GraniteMoeForCausalLM`.

use mlxcel_core::Result;

use super::blocks::{AttentionBiases, core, pre_norm, sequential};
use super::experts::{ExpertLinears, ExpertSizes, PROJECTIONS, halves, softmax_router};
use super::llama::DEFAULTS;
use super::outline::Outline;
use super::roles::Roles;
use super::settings::{Sizes, activation, flag, positive};
use super::{Conversion, Family};
use crate::decoder::{Activation, Block, Decoder, Experts, Gating, SharedExpert};

pub(super) const FAMILY: Family = Family {
    model_types: &["granitemoe"],
    stop_tokens: &[2],
    describe,
    conversion: Conversion::sensitive(&[
        "block_sparse_moe.router.layer",
        "self_attn.o_proj",
        "mlp.down_proj",
        "lm_head",
    ]),
};

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let rope = sizes.rope(config).read()?;
    let biases = AttentionBiases::all(flag(config, "attention_bias", false)?);
    let epsilon = positive(config, "rms_norm_eps", 1e-6)?;
    let gating = Gating::Activated(activation(config, "hidden_act", Activation::Silu)?);
    let multiplier = |key: &str| Ok(config.number(key)?.unwrap_or(1.0) as f32);
    let attention_scale = multiplier("attention_multiplier")?;
    let residual_scale = multiplier("residual_multiplier")?;
    let experts = ExpertSizes::read(config, &sizes, &["num_local_experts"], 1, [8, 2])?;

    let base = roles.base("model.", "embed_tokens");
    let norm = |name: &str| roles.rms_norm(name, sizes.hidden, epsilon);
    let layer = |index: usize| {
        let name = |part: &str| format!("{base}layers.{index}.{part}");
        let core = core(attention_scale, None, Some(&rope));
        let attention = pre_norm(
            norm(&name("input_layernorm"))?,
            roles.attention(&name("self_attn"), &sizes, biases, core)?,
        );
        let output_norm = norm(&name("post_attention_layernorm"))?;
        let experts = routed(roles, &name("block_sparse_moe"), experts, gating, None)?;
        let experts = pre_norm(output_norm, experts);
        Ok(sequential([attention, experts].map(|block| Block { residual_scale, ..block })))
    };
    let outline = Outline {
        embedding_scale: multiplier("embedding_multiplier")?,
        logit_scale: 1.0 / positive(config, "logits_scaling", 1.0)?,
        ..Outline::new(&sizes, &base, flag(config, "tie_word_embeddings", false)?)
    };
    roles.decoder(outline, norm, layer)
}

/// The mixture of `module`, beside a shared expert.
pub(super) fn routed(
    roles: &Roles<'_>,
    module: &str,
    sizes: ExpertSizes,
    gating: Gating,
    shared: Option<SharedExpert>,
) -> Result<Experts> {
    // transformers has renamed the module, and reads both.
    let modules = [format!("{module}.router.layer"), format!("{module}.router")];
    let router = roles.linear(&roles.first_matrix(&modules), sizes.count, sizes.hidden, false)?;
    let linears = expert_linears(roles, module, sizes)?;
    Ok(linears.routed(sizes, softmax_router(router, true), gating, shared))
}

/// The experts, whose published names are not those of other families.
fn expert_linears(roles: &Roles<'_>, module: &str, sizes: ExpertSizes) -> Result<ExpertLinears> {
    let ExpertSizes { count, hidden, width, .. } = sizes;
    let input = format!("{module}.input_linear");
    if !roles.has(&format!("{input}.weight")) {
        return roles.experts(module, PROJECTIONS, sizes);
    }
    let [gate, up] = halves(&roles.matrices(&input, count, 2 * width, hidden)?, width);
    let down = roles.matrices(&format!("{module}.output_linear"), count, hidden, width)?;
    Ok(ExpertLinears::new(roles, [gate, up, down]))
}
