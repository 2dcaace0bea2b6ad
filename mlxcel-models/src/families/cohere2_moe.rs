//! Cohere 2 with experts (Command A+): Cohere 2 with experts beside attention in all layers but perhaps the
//! first, and perhaps root-mean-square norms.
//!
//! Config fields, defaults and arithmetic follow transformers' `Cohere2MoeConfig` and
//! `Cohere2MoeForCausalLM`. The multi-token prediction layer is ignored.

use super::cohere;
use super::cohere2::refuse_other_structures;
use super::experts::{ExpertSizes, shared_experts, sigmoid_router, softmax_router};
use super::prelude::*;
use super::sparse_layers::sparse_layer_types;

pub(super) const FAMILY: Family = Family::new(&["cohere2_moe"], &[255_001], describe);

const DEFAULTS: SizeDefaults = SizeDefaults { head_dim: Some(128), ..cohere::DEFAULTS };

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    refuse_other_structures(config)?;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let layer_epsilon = positive(config, "layer_norm_eps", 1e-5)?;
    let rms_epsilon = optional_positive(config, "rms_norm_eps", None)?;
    let biases = AttentionBiases::read(config)?;
    let tied = flag(config, "tie_word_embeddings", true)?;
    let period = |key, default| Ok(config.size(key, 1..=LARGEST_LAYER_COUNT)?.unwrap_or(default));
    let pattern = period("sliding_window_pattern", 4)?;
    let dense_pattern = period("prefix_dense_sliding_window_pattern", 1)?;
    let dense_layers = config.size("first_k_dense_replace", 0..=LARGEST_LAYER_COUNT)?.unwrap_or(0);
    let window = window(config, "sliding_window", Some(4096))?;
    let windows =
        sliding_windows(config, sizes.layers, window, |index| match index.checked_sub(dense_layers) {
            None => !(index + 1).is_multiple_of(dense_pattern),
            Some(index) => !(index + 1).is_multiple_of(pattern),
        })?;
    let sparse = sparse_layer_types(config, sizes.layers, dense_layers)?;
    let rope = RopeSettings { interleaved: true, ..sizes.rope(config) }.read()?;
    let mixture = Mixture::read(config, &sizes)?;

    let base = roles.base("model.", "embed_tokens");
    let norm = |name: &str| match rms_epsilon {
        Some(epsilon) => roles.rms_norm(name, sizes.hidden, epsilon),
        None => roles.layer_norm(name, sizes.hidden, layer_epsilon, false),
    };
    let layer = |index: usize| {
        let name = |part: &str| format!("{base}layers.{index}.{part}");
        let is_rotated = windows[index].is_some() || (!sparse[index] && dense_pattern == 1);
        let core = core(sizes.scale(), windows[index], Some(&rope).filter(|_| is_rotated));
        let norm = norm(&name("input_layernorm"))?;
        let attention = roles.attention(&name("self_attn"), &sizes, biases, core)?;
        let second = mixture.describe(roles, &name("mlp"), sparse[index])?;
        Ok(parallel([pre_norm(norm, attention), Block { norm_before: Some(norm), ..second }]))
    };
    let outline =
        Outline { logit_scale: number(config, "logit_scale", 0.0625)?, ..Outline::new(&sizes, &base, tied) };
    roles.decoder(outline, norm, layer)
}

/// The experts, and the MLP of layers without them.
struct Mixture {
    experts: ExpertSizes,
    dense_width: usize,
    /// Zero if there is no shared expert.
    shared_width: usize,
    /// Whether results are the mean of those of the chosen experts and of the shared one instead of their
    /// sum.
    is_mean: bool,
    by_sigmoid: bool,
    normalised: bool,
    activation: Activation,
}

impl Mixture {
    fn read(config: Fields<'_>, sizes: &Sizes) -> Result<Self> {
        const COMBINATION: &str = "shared_expert_combination_strategy";
        const SELECTION: &str = "expert_selection_fn";
        let one_of = |key: &str, known: [&str; 2]| match config.text(key)? {
            None => Ok(true),
            Some(text) if known.contains(&text) => Ok(text == known[0]),
            Some(other) => {
                let message =
                    format!("'{}' is not supported; {} are", other.escape_debug(), known.join(", "));
                Err(config.unsupported(key, message))
            }
        };
        let experts = ExpertSizes::read(config, sizes, &["num_experts"], 1, [8, 2])?;
        let shared = config.size("num_shared_experts", 0..=64)?.unwrap_or(0);
        let dense_width = config.size("prefix_dense_intermediate_size", 1..=LARGEST_WIDTH)?;
        Ok(Self {
            experts,
            dense_width: dense_width.unwrap_or(sizes.intermediate),
            shared_width: shared * experts.width,
            is_mean: one_of(COMBINATION, ["average", "sum"])? && shared > 0,
            by_sigmoid: !one_of(SELECTION, ["softmax", "sigmoid"])?,
            normalised: flag(config, "norm_topk_prob", true)?,
            activation: activation(config, "hidden_act", Activation::Silu)?,
        })
    }

    /// The block of `module` without its norm.
    fn describe(&self, roles: &Roles<'_>, module: &str, sparse: bool) -> Result<Block> {
        let &Self { experts, dense_width, shared_width, activation, .. } = self;
        let hidden = experts.hidden;
        if !sparse {
            return Ok(plain(roles.gated_mlp(module, [hidden, dense_width], activation, false)?));
        }
        let projection = roles.linear(&format!("{module}.gate"), experts.count, hidden, false)?;
        let router = if self.by_sigmoid {
            Router { normaliser: 0.0, ..sigmoid_router(projection, None, self.normalised) }
        } else {
            softmax_router(projection, true)
        };
        let shared = format!("{module}.shared_experts");
        let shared = shared_experts(roles, &shared, [hidden, shared_width], activation, false)?;
        let experts = roles.mixture(module, PROJECTIONS, experts, router, activation, shared)?;
        let residual_scale = if self.is_mean { 0.5 } else { 1.0 };
        Ok(Block { residual_scale, ..plain(experts) })
    }
}
