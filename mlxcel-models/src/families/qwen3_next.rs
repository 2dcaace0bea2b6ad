//! Qwen3-Next: the gated delta rule in most layers, gated attention in the others, and experts.
//!
//! Config fields, defaults and arithmetic follow transformers' `Qwen3NextConfig` and `Qwen3NextForCausalLM`.
//! The multi-token prediction layer, `mtp`, is the draft head.

use super::convolution::taps;
use super::experts::{ExpertSizes, gated_shared_expert};
use super::outline::DraftHeadModules;
use super::prelude::*;
use super::qwen2_moe;
use super::roles::Fused;
use super::sparse_layers::sparse_layers;
use crate::decoder::{Decay, DecayScope, DeltaRule, HeadSharing};

pub(super) const FAMILY: Family = Family {
    conversion: Conversion {
        shifted_norms: true,
        ..Conversion::sensitive(&["mlp.gate", "shared_expert_gate"])
    },
    ..Family::new(&["qwen3_next"], &[], describe)
};

pub(super) const DEFAULTS: SizeDefaults =
    SizeDefaults { layers: 48, kv_heads: Some(2), head_dim: Some(256), ..qwen2_moe::DEFAULTS };
/// What the names of the draft head's modules begin with.
const DRAFT_HEAD: &str = "mtp.";

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let shape = [sizes.hidden, sizes.intermediate];
    let shared_width = config.size("shared_expert_intermediate_size", 1..=LARGEST_WIDTH)?.unwrap_or(512);
    let experts = ExpertSizes::read(config, &sizes, &["num_experts"], 0, [512, 10])?;
    let experts = experts.of_own_width(config, 512)?;
    let normalised = flag(config, "norm_topk_prob", true)?;
    let is_sparse = sparse_layers(config, experts.count, &[])?;
    // mlx-lm stacks experts.
    let is_converted = |layer: &str| roles.has(&format!("{layer}.mlp.switch_mlp.down_proj.weight"));
    decoder(roles, &sizes, is_converted, |index, module, activation| {
        if !(index == sizes.layers && experts.count > 0 || is_sparse(index)) {
            return Ok(roles.gated_mlp(module, shape, activation, false)?.into());
        }
        let shared = gated_shared_expert(roles, module, [sizes.hidden, shared_width], activation)?;
        roles.softmax_experts(module, "gate", experts, normalised, activation, shared)
    })
}

/// The decoder of a checkpoint with Qwen3-Next's structure and tensor names. `is_converted` finds out whether
/// mlx-lm has converted a layer; `second` makes the operation behind the mixer from the index of its layer
/// and the name of its module.
pub(super) fn decoder(
    roles: &Roles<'_>,
    sizes: &Sizes,
    is_converted: impl Fn(&str) -> bool,
    second: impl Fn(usize, &str, Activation) -> Result<Operation>,
) -> Result<Decoder> {
    let config = roles.config;
    let partial = Partial::Part { key: "partial_rotary_factor", default: 0.25 };
    let rope = RopeSettings { partial, ..sizes.rope(config) }.read()?;
    let bias = flag(config, "attention_bias", false)?;
    let activation = activation(config, "hidden_act", Activation::Silu)?;
    let epsilon = positive(config, "rms_norm_eps", 1e-6)?;
    let tied = flag(config, "tie_word_embeddings", false)?;
    let delta = DeltaSettings::read(config, sizes.hidden, activation, epsilon)?;
    let types = mixer_types(config, sizes.layers)?;

    let base = roles.base("model.", "embed_tokens");
    // Factors of these norms are stored less one, but for GGUF files and checkpoints that mlx-lm converted.
    let is_converted = roles.gguf_architecture().is_some()
        || (0..sizes.layers).any(|index| is_converted(&format!("{base}layers.{index}")));
    let offset = if is_converted { 0.0 } else { 1.0 };
    let shifted_norm = |name: &str, width| Ok(Norm { offset, ..roles.rms_norm(name, width, epsilon)? });
    let norm = |name: &str| shifted_norm(name, sizes.hidden);
    let layer = |index: usize| {
        let module = layer_module(&base, sizes.layers, index);
        let name = |part: &str| format!("{module}.{part}");
        let input_norm = norm(&name("input_layernorm"))?;
        let mixer = if types.get(index).is_none_or(|&own| own == FULL) {
            let core = core(sizes.scale(), None, Some(&rope));
            Mixer::Attention(Attention {
                query_norm: by_head(shifted_norm(&name("self_attn.q_norm"), sizes.head_dim)?),
                key_norm: by_head(shifted_norm(&name("self_attn.k_norm"), sizes.head_dim)?),
                ..gated_attention(roles, &name("self_attn"), sizes, bias, core)?
            })
        } else {
            Mixer::DeltaRule(delta.describe(roles, &name("linear_attn"))?)
        };
        let output_norm = norm(&name("post_attention_layernorm"))?;
        let second = second(index, &name("mlp"), activation)?;
        Ok(sequential([pre_norm(input_norm, mixer), pre_norm(output_norm, second)]))
    };
    let draft_head = Some(draft_head());
    roles.decoder(Outline { draft_head, ..Outline::new(sizes, &base, tied) }, norm, layer)
}

/// The module of a layer, or behind the last of `layers` layers of the draft head's.
fn layer_module(base: &str, layers: usize, index: usize) -> String {
    if index < layers { format!("{base}layers.{index}") } else { format!("{DRAFT_HEAD}layers.0") }
}

/// The modules of the draft head.
fn draft_head() -> DraftHeadModules {
    let name = |module: &str| format!("{DRAFT_HEAD}{module}");
    DraftHeadModules {
        embedding_norm: name("pre_fc_norm_embedding"),
        state_norm: name("pre_fc_norm_hidden"),
        projection: name("fc"),
        norm: name("norm"),
    }
}

/// The type of each layer, [`FULL`] or [`LINEAR`]: by default every fourth has attention.
fn mixer_types(config: Fields<'_>, layers: usize) -> Result<Vec<&'static str>> {
    let interval = config.size("full_attention_interval", 1..=LARGEST_LAYER_COUNT)?.unwrap_or(4);
    layer_types(config, layers, &[FULL, LINEAR], |index| {
        if (index + 1).is_multiple_of(interval) { FULL } else { LINEAR }
    })
}

/// Attention whose query projection gives of each head the query, then the gate of its output.
fn gated_attention(
    roles: &Roles<'_>,
    module: &str,
    sizes: &Sizes,
    bias: bool,
    core: AttentionCore,
) -> Result<Attention> {
    let &Sizes { hidden, query_heads, head_dim, .. } = sizes;
    let both = roles.fused(&format!("{module}.q_proj"), 2 * sizes.query_width(), hidden, bias)?;
    let part = |start| {
        both.select(Selection { axis: 0, start, run: head_dim, stride: 2 * head_dim, runs: query_heads })
    };
    let linear = |name, outputs, inputs| roles.linear(&format!("{module}.{name}"), outputs, inputs, bias);
    let keys = sizes.kv_width();
    let inputs = [part(0), linear("k_proj", keys, hidden)?, linear("v_proj", keys, hidden)?];
    let output = linear("o_proj", hidden, sizes.query_width())?;
    let gate = Some(part(head_dim));
    Ok(Attention { gate, ..plain_attention(sizes, inputs, output, core) })
}

/// The settings of the gated delta rule.
struct DeltaSettings {
    hidden: usize,
    key_heads: usize,
    value_heads: usize,
    sharing: HeadSharing,
    key_dim: usize,
    value_dim: usize,
    taps: usize,
    activation: Activation,
    epsilon: f32,
}

impl DeltaSettings {
    fn read(config: Fields<'_>, hidden: usize, activation: Activation, epsilon: f32) -> Result<Self> {
        const VALUE_HEADS: &str = "linear_num_value_heads";
        let heads = |key: &str, default| Ok(config.size(key, 1..=LARGEST_HEAD_COUNT)?.unwrap_or(default));
        let dim = |key: &str| Ok(config.size(key, 1..=LARGEST_HEAD_DIM)?.unwrap_or(128));
        let (key_heads, value_heads) = (heads("linear_num_key_heads", 16)?, heads(VALUE_HEADS, 32)?);
        if value_heads % key_heads != 0 {
            let message =
                format!("{key_heads} key heads cannot be shared evenly by {value_heads} value heads");
            return Err(config.wrong(VALUE_HEADS, message));
        }
        Ok(Self {
            hidden,
            key_heads,
            value_heads,
            // A setting that GGUF files imply.
            sharing: match flag(config, "values_by_turns", false)? {
                true => HeadSharing::Turns,
                false => HeadSharing::Neighbours,
            },
            key_dim: dim("linear_key_head_dim")?,
            value_dim: dim("linear_value_head_dim")?,
            taps: taps(config, "linear_conv_kernel_dim", 4)?,
            activation,
            epsilon,
        })
    }

    /// The mixer of `module`. One input projection has for each key head the rows of query, key, values and
    /// gates, or those of queries, keys and values are one and gates have their own. `beta` and `alpha`
    /// likewise share one, by key head, or have their own.
    fn describe(&self, roles: &Roles<'_>, module: &str) -> Result<DeltaRule> {
        let &Self { hidden, key_heads, value_heads, key_dim, value_dim, .. } = self;
        let (keys, values) = (key_heads * key_dim, value_heads * value_dim);
        let shared = value_heads / key_heads;
        let name = |part: &str| format!("{module}.{part}");
        let by_head = |fused: &Fused<'_>, stride, start, run| {
            fused.select(Selection { axis: 0, start, run, stride, runs: key_heads })
        };
        let [query, key, value, gate] = if roles.has_matrix(&name("in_proj_qkvz")) {
            let own = shared * value_dim;
            let stride = 2 * (key_dim + own);
            let fused = roles.fused(&name("in_proj_qkvz"), key_heads * stride, hidden, false)?;
            let starts = [(0, key_dim), (key_dim, key_dim), (2 * key_dim, own), (2 * key_dim + own, own)];
            starts.map(|(start, run)| by_head(&fused, stride, start, run))
        } else {
            let fused = roles.fused(&name("in_proj_qkv"), 2 * keys + values, hidden, false)?;
            let gate = roles.linear(&name("in_proj_z"), values, hidden, false)?;
            [fused.rows(0, keys), fused.rows(keys, keys), fused.rows(2 * keys, values), gate]
        };
        let [beta, alpha] = if roles.has_matrix(&name("in_proj_ba")) {
            let fused = roles.fused(&name("in_proj_ba"), 2 * value_heads, hidden, false)?;
            [0, shared].map(|start| by_head(&fused, 2 * shared, start, shared))
        } else {
            let linear = |part| roles.linear(&name(part), value_heads, hidden, false);
            [linear("in_proj_b")?, linear("in_proj_a")?]
        };
        self.mixer(roles, module, DeltaInputs { query, key, value, gate, beta, alpha })
    }

    fn mixer(&self, roles: &Roles<'_>, module: &str, inputs: DeltaInputs) -> Result<DeltaRule> {
        let &Self { hidden, key_heads, value_heads, sharing, key_dim, value_dim, .. } = self;
        let DeltaInputs { query, key, value, gate, beta, alpha } = inputs;
        let name = |part: &str| format!("{module}.{part}");
        let channels = 2 * key_heads * key_dim + value_heads * value_dim;
        Ok(DeltaRule {
            key_heads,
            value_heads,
            sharing,
            key_dim,
            value_dim,
            query,
            key,
            value,
            gate: gate.into(),
            gate_activation: Activation::Silu,
            beta,
            beta_scale: 1.0,
            alpha: alpha.into(),
            convolution: roles.convolution(
                &name("conv1d"),
                [channels, self.taps],
                false,
                Some(self.activation),
            )?,
            alpha_bias: roles.tensor(&name("dt_bias"), &[value_heads])?,
            decay_form: Decay::Softplus,
            decay_scope: DecayScope::Head,
            decay: roles.tensor(&name("A_log"), &[value_heads])?,
            norm: roles.rms_norm(&name("norm"), value_dim, self.epsilon)?,
            output: roles.linear(&name("out_proj"), hidden, value_heads * value_dim, false)?,
        })
    }
}

/// The projections of a layer's input.
struct DeltaInputs {
    query: Linear,
    key: Linear,
    value: Linear,
    gate: Linear,
    beta: Linear,
    alpha: Linear,
}
