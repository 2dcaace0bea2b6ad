//! Flint: Qwen3's attention with sinks, and windows in most layers, of which only those rotate; experts that
//! are routed by sigmoids beside a shared one.
//!
//! Config fields, defaults and arithmetic follow transformers' `FlintConfig` and `FlintForCausalLM`.

use mlxcel_core::Result;

use super::Family;
use super::blocks::{AttentionBiases, by_head, core};
use super::experts::{ExpertSizes, PROJECTIONS, shared_experts, sigmoid_router};
use super::llama::{Variant, decoder_of};
use super::roles::Roles;
use super::settings::{
    LARGEST_WIDTH, SizeDefaults, Sizes, activation, flag, positive, sliding_windows, window,
};
use super::sparse_layers::sparse_layers;
use crate::decoder::{Activation, Attention, AttentionCore, Decoder, Gating, Router};

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
    let dense = [hidden, sizes.intermediate];
    let rope = sizes.rope(config).read()?;
    let window = window(config, "sliding_window", Some(513))?;
    let windows = sliding_windows(config, sizes.layers, window, |index| {
        index >= 2 && index % 4 != 1 && index + 1 != sizes.layers
    })?;
    let biases = AttentionBiases::all(flag(config, "attention_bias", false)?);
    let epsilon = positive(config, "rms_norm_eps", 1e-6)?;
    let activation = activation(config, "hidden_act", Activation::Silu)?;
    let experts = ExpertSizes::read(config, &sizes, &["num_experts"], 0, [256, 6])?;
    let experts = experts.of_own_width(config, 512)?;
    let shared_width = config.size("shared_expert_intermediate_size", 1..=LARGEST_WIDTH)?.unwrap_or(1024);
    let normalised = flag(config, "norm_topk_prob", true)?;
    let is_sparse = sparse_layers(config, experts.count, DENSE)?;

    let head_norm = |name: &str| Ok(by_head(roles.rms_norm(name, sizes.head_dim, epsilon)?));
    let attention = |index: usize, layer: &str| {
        let part = |part: &str| format!("{layer}.self_attn.{part}");
        // The second is the published name.
        let sinks = roles.first_tensor(&["sinks", "softmax_offset"].map(part));
        let sinks = Some(roles.tensor(&sinks, &[sizes.query_heads])?);
        let core = core(sizes.scale(), windows[index], windows[index].and(Some(&rope)));
        let core = AttentionCore { sinks, ..core };
        let attention = Attention {
            query_norm: head_norm(&part("q_norm"))?,
            key_norm: head_norm(&part("k_norm"))?,
            ..roles.attention(&format!("{layer}.self_attn"), &sizes, biases, core)?
        };
        Ok(attention.into())
    };
    decoder_of(roles, &sizes, &Variant::PLAIN, attention, |index, layer| {
        let module = format!("{layer}.mlp");
        if !is_sparse(index) {
            return Ok(roles.gated_mlp(&module, dense, activation, false)?.into());
        }
        let projection = roles.linear(&format!("{module}.gate"), experts.count, hidden, false)?;
        let router = Router { normaliser: 0.0, ..sigmoid_router(projection, None, normalised) };
        let linears = roles.experts(&module, PROJECTIONS, experts)?;
        let shared = format!("{module}.shared_expert");
        let shared = shared_experts(roles, &shared, [hidden, shared_width], activation, false)?;
        Ok(linears.routed(experts, router, Gating::Activated(activation), shared).into())
    })
}
