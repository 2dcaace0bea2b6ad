//! Flint: Qwen3's attention with sinks, and windows in most layers, of which only those rotate; experts that
//! are routed by sigmoids beside a shared one.
//!
//! Config fields, defaults and arithmetic follow transformers' `FlintConfig` and `FlintForCausalLM`.

use super::experts::{ExpertSizes, shared_experts, sigmoid_router};
use super::prelude::*;
use super::sparse_layers::sparse_layers;

pub(super) const FAMILY: Family = Family::new(&["flint"], &[], describe);

const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 150_144,
    hidden: 2048,
    intermediate: 6144,
    layers: 49,
    query_heads: 32,
    kv_heads: Some(4),
    head_dim: Some(128),
    context: 262_144,
};
/// The layers without experts where the settings do not say.
const DENSE: &[usize] = &[0, 1];

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let hidden = sizes.hidden;
    let rope = sizes.rope(config).read()?;
    let window = window(config, "sliding_window", Some(513))?;
    let windows = sliding_windows(config, sizes.layers, window, |index| {
        index >= 2 && index % 4 != 1 && index + 1 != sizes.layers
    })?;
    let activation = activation(config, "hidden_act", Activation::Silu)?;
    let experts = ExpertSizes::read(config, &sizes, &["num_experts"], 0, [256, 6])?;
    let experts = experts.of_own_width(config, 512)?;
    let shared_width = config.size("shared_expert_intermediate_size", 1..=LARGEST_WIDTH)?.unwrap_or(1024);
    let normalised = flag(config, "norm_topk_prob", true)?;
    let is_sparse = sparse_layers(config, experts.count, DENSE)?;
    let attention_biases = AttentionBiases::read(config)?;
    let variant = Variant { attention_biases, head_norms: HEAD_NORMS, ..Variant::PLAIN };

    let attention = |index: usize, layer: &str| {
        let part = |part: &str| format!("{layer}.self_attn.{part}");
        // The second is the published name.
        let sinks = roles.first_tensor(&["sinks", "softmax_offset"].map(part));
        let sinks = Some(roles.tensor(&sinks, &[sizes.query_heads])?);
        let core = core(sizes.scale(), windows[index], windows[index].and(Some(&rope)));
        Ok(variant.attention(roles, &sizes, layer, AttentionCore { sinks, ..core })?.into())
    };
    let mlp = variant.mlp(roles, &sizes)?;
    variant.decoder_of(roles, &sizes, attention, |index, layer| {
        if !is_sparse(index) {
            return mlp(layer);
        }
        let module = format!("{layer}.mlp");
        let projection = roles.linear(&format!("{module}.gate"), experts.count, hidden, false)?;
        let router = Router { normaliser: 0.0, ..sigmoid_router(projection, None, normalised) };
        let shared = format!("{module}.shared_expert");
        let shared = shared_experts(roles, &shared, [hidden, shared_width], activation, false)?;
        roles.mixture(&module, PROJECTIONS, experts, router, activation, shared)
    })
}
