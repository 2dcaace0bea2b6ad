//! Kolibri: EXAONE 4's attention between norms, and experts that are chosen by logits with a bias, weighted
//! by sigmoids, beside a shared one.
//!
//! Config fields, defaults and arithmetic follow transformers' `Kolibri1Config` and `Kolibri1ForCausalLM`.

use super::experts::{ExpertSizes, shared_experts, sigmoid_router};
use super::glm4::NORMS_AFTER;
use super::prelude::*;

pub(super) const FAMILY: Family = Family::new(&["kolibri1"], &[], describe);

// The class has no intermediate size: no layer is without experts.
const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 128_000,
    hidden: 2560,
    intermediate: 512,
    layers: 50,
    query_heads: 48,
    kv_heads: Some(4),
    head_dim: Some(128),
    context: 262_144,
};
/// The norms after each operation in published files.
const PUBLISHED_NORMS: Option<[&str; 2]> = Some(["post_attn_norm", "post_ffn_norm"]);

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let hidden = sizes.hidden;
    let rope = sizes.rope(config).read()?;
    let window = window(config, "sliding_window", Some(513))?;
    let windows = sliding_windows(config, sizes.layers, window, |index| !(index + 1).is_multiple_of(5))?;
    let activation = activation(config, "hidden_act", Activation::Silu)?;
    let experts = ExpertSizes::read(config, &sizes, &["num_experts", "num_local_experts"], 1, [384, 6])?;
    let experts = experts.of_own_width(config, 512)?;
    let shared_width = config.size("shared_expert_intermediate_size", 1..=LARGEST_WIDTH)?.unwrap_or(512);
    let normalised = flag(config, "norm_topk_prob", false)?;
    let base = roles.base("model.", "embed_tokens");
    let is_published = roles.has(&format!("{base}layers.0.post_attn_norm.weight"));
    let norms_after = if is_published { PUBLISHED_NORMS } else { NORMS_AFTER };
    let variant = Variant { norms_after, head_norms: HEAD_NORMS, ..Variant::PLAIN };
    let core = |index: usize| {
        let is_rotated = window.is_none() || windows[index].is_some();
        core(sizes.scale(), windows[index], Some(&rope).filter(|_| is_rotated))
    };
    variant.decoder_with(roles, &sizes, core, |_, layer| {
        let module = format!("{layer}.mlp");
        // The second is the published name.
        let biases = ["mlp.gate.e_score_correction_bias", "moe.router.expert_bias"];
        let bias = roles.first_tensor(&biases.map(|bias| format!("{layer}.{bias}")));
        let bias = roles.tensor_if_there(&bias, &[experts.count])?;
        let projection = roles.linear(&format!("{module}.gate"), experts.count, hidden, false)?;
        let router = sigmoid_router(projection, bias, normalised);
        let router = Router { ranks_logits: true, normaliser: 0.0, ..router };
        let shared = format!("{module}.shared_experts");
        let shared = shared_experts(roles, &shared, [hidden, shared_width], activation, false)?;
        roles.mixture(&module, PROJECTIONS, experts, router, activation, shared)
    })
}
