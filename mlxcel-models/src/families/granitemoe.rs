//! Granite-MoE: Granite's multipliers, and experts in every layer.
//!
//! Config fields, defaults and arithmetic follow transformers' `GraniteMoeConfig` and
//! `GraniteMoeForCausalLM`.

use super::experts::{ExpertLinears, ExpertSizes, halves, softmax_router};
use super::granite::{ATTENTION_SCALE, scaled};
use super::prelude::*;
use crate::decoder::Experts;

pub(super) const FAMILY: Family = Family {
    conversion: Conversion::sensitive(&[
        "block_sparse_moe.router.layer",
        "self_attn.o_proj",
        "mlp.down_proj",
        "lm_head",
    ]),
    ..Family::new(&["granitemoe"], &[2], describe)
};

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    decoder(roles, |_, _| Ok(None))
}

/// The decoder of a checkpoint with the structure of Granite-MoE; `shared` makes the shared expert of a
/// layer, if there is any, from its name and the width of the stream.
pub(super) fn decoder(
    roles: &Roles<'_>,
    shared: impl Fn(&str, usize) -> Result<Option<SharedExpert>>,
) -> Result<Decoder> {
    let config = roles.config;
    let sizes = Sizes::read(config, &SizeDefaults::LLAMA)?;
    let rope = sizes.rope(config).read()?;
    let gating = Gating::Activated(activation(config, "hidden_act", Activation::Silu)?);
    let scale = number(config, ATTENTION_SCALE, 1.0)?;
    let experts = ExpertSizes::read(config, &sizes, &["num_local_experts"], 1, [8, 2])?;
    let core = |_| core(scale, None, Some(&rope));
    scaled(config)?.decoder_with(roles, &sizes, core, |_, layer| {
        let shared = shared(layer, sizes.hidden)?;
        Ok(routed(roles, &format!("{layer}.block_sparse_moe"), experts, gating, shared)?.into())
    })
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
