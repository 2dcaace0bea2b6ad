//! DeepSeek-V3 (and R1): latent attention, and experts in groups beside shared ones.
//!
//! Config fields, defaults and arithmetic follow transformers' `DeepseekV3Config` and `DeepseekV3ForCausalLM`;
//! attention is the same in the absorbed form. The multi-token prediction layers, which follow the others in the files,
//! are ignored.

use mlxcel_core::Result;

use super::Family;
use super::blocks::{pre_norm, sequential};
use super::experts::{
    ExpertSizes, PROJECTIONS, SigmoidSettings, chosen_count, expert_count, shared_experts, shared_width,
    sigmoid_router,
};
use super::outline::Outline;
use super::roles::{Roles, refuse_order};
use super::settings::{
    LARGEST_HEAD_COUNT, LARGEST_HEAD_DIM, LARGEST_LAYER_COUNT, LARGEST_WIDTH, SizeDefaults, Sizes,
    activation, expect_text, flag, positive,
};
use crate::config::Fields;
use crate::decoder::{
    Activation, Decoder, ExpertGroups, Gating, HeadLinear, LatentAttention, LatentQuery, Mixer, Operation,
    Selection,
};
use crate::rope::{Rope, RopeSettings};

pub(super) const FAMILY: Family = Family { model_types: &["deepseek_v3"], stop_tokens: &[1], describe };

// Heads have no one width: the class sets `head_dim` to that of their rotated part, and nothing reads it.
const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 129_280,
    hidden: 7168,
    intermediate: 18_432,
    layers: 61,
    query_heads: 128,
    kv_heads: None,
    head_dim: Some(64),
    context: 4096,
};
/// That of the norms of latents, which no setting changes.
const LATENT_EPSILON: f32 = 1e-6;

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    refuse_other_experts(config)?;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let (hidden, dense_width) = (sizes.hidden, sizes.intermediate);
    let attention = AttentionSettings::read(config, &sizes)?;
    let epsilon = positive(config, "rms_norm_eps", 1e-6)?;
    let activation = activation(config, "hidden_act", Activation::Silu)?;
    let tied = flag(config, "tie_word_embeddings", false)?;
    let dense_layers = config.size("first_k_dense_replace", 0..=LARGEST_LAYER_COUNT)?.unwrap_or(3);
    let count = expert_count(config, &["n_routed_experts", "num_local_experts"], 1, 256)?;
    let width = config.size("moe_intermediate_size", 1..=LARGEST_WIDTH)?.unwrap_or(2048);
    let experts = ExpertSizes { count, chosen: chosen_count(config, count, 8)?, hidden, width };
    let router = SigmoidSettings::read(config, experts, ExpertGroups { count: 8, kept: 4 }, 2.5)?;
    let shared_width = shared_width(config, experts)?;

    let base = roles.base("model.", "embed_tokens");
    let norm = |name: &str| roles.rms_norm(name, hidden, epsilon);
    let layer = |index: usize| {
        let name = |part: &str| format!("{base}layers.{index}.{part}");
        let input_norm = norm(&name("input_layernorm"))?;
        let attention = attention.describe(roles, &name("self_attn"))?;
        let attention = pre_norm(input_norm, Operation::Mixer(Mixer::Latent(attention)));
        let output_norm = norm(&name("post_attention_layernorm"))?;
        let block = if index < dense_layers {
            let mlp = roles.gated_mlp(&name("mlp"), [hidden, dense_width], activation, false)?;
            pre_norm(output_norm, mlp)
        } else {
            let router = sigmoid_router(roles, &name("mlp.gate"), experts, router)?;
            let linears = roles.experts(&name("mlp"), PROJECTIONS, experts)?;
            let shared =
                shared_experts(roles, &name("mlp.shared_experts"), [hidden, shared_width], activation)?;
            pre_norm(output_norm, linears.routed(experts, router, Gating::Activated(activation), shared))
        };
        Ok(sequential([attention, block]))
    };
    roles.decoder(Outline::new(&sizes, &base, tied), norm, layer)
}

/// The errors for what the authors' own implementation can do and this one, like transformers, cannot.
fn refuse_other_experts(config: Fields<'_>) -> Result<()> {
    expect_text(config, "scoring_func", "sigmoid")?;
    expect_text(config, "topk_method", "noaux_tc")?;
    const FREQUENCY: &str = "moe_layer_freq";
    match config.size(FREQUENCY, 1..=LARGEST_LAYER_COUNT)? {
        None | Some(1) => Ok(()),
        Some(_) => {
            let message = "experts in only some of the layers behind first_k_dense_replace are not supported"
                .to_owned();
            Err(config.unsupported(FREQUENCY, message))
        }
    }
}

struct AttentionSettings {
    hidden: usize,
    heads: usize,
    plain_dim: usize,
    rope_dim: usize,
    value_dim: usize,
    rank: usize,
    /// `None`: one projection makes queries.
    query_rank: Option<usize>,
    bias: bool,
    scale: f32,
    rope: Rope,
}

impl AttentionSettings {
    fn read(config: Fields<'_>, sizes: &Sizes) -> Result<Self> {
        let heads = sizes.query_heads;
        let dim = |key: &str, default: usize| Ok(config.size(key, 1..=LARGEST_HEAD_DIM)?.unwrap_or(default));
        let (plain_dim, rope_dim) = (dim("qk_nope_head_dim", 128)?, dim("qk_rope_head_dim", 64)?);
        let rope = RopeSettings { interleaved: true, ..RopeSettings::new(config, rope_dim, sizes.context) }
            .read()?;
        let query_rank = match config.size("q_lora_rank", 1..=LARGEST_WIDTH)? {
            None if !config.mentions("q_lora_rank") => Some(1536),
            rank => rank,
        };
        const KV_HEADS: &str = "num_key_value_heads";
        if config.size(KV_HEADS, 1..=LARGEST_HEAD_COUNT)?.is_some_and(|kv_heads| kv_heads != heads) {
            let message = format!("all {heads} heads share the latents; another number is not supported");
            return Err(config.wrong(KV_HEADS, message));
        }
        Ok(Self {
            hidden: sizes.hidden,
            heads,
            plain_dim,
            rope_dim,
            value_dim: dim("v_head_dim", 128)?,
            rank: config.size("kv_lora_rank", 1..=LARGEST_WIDTH)?.unwrap_or(512),
            query_rank,
            bias: flag(config, "attention_bias", false)?,
            scale: scale(config, plain_dim + rope_dim)?,
            rope,
        })
    }

    fn describe(&self, roles: &Roles<'_>, module: &str) -> Result<LatentAttention> {
        let &Self { hidden, heads, plain_dim, rope_dim, value_dim, rank, bias, scale, .. } = self;
        let linear = |part: &str, outputs, inputs, bias| {
            roles.linear(&format!("{module}.{part}"), outputs, inputs, bias)
        };
        let norm = |part: &str, width| roles.rms_norm(&format!("{module}.{part}"), width, LATENT_EPSILON);
        let queries = heads * (plain_dim + rope_dim);
        let query = match self.query_rank {
            None => LatentQuery::Direct(linear("q_proj", queries, hidden, false)?),
            Some(query_rank) => LatentQuery::Compressed {
                down: linear("q_a_proj", query_rank, hidden, bias)?,
                norm: norm("q_a_layernorm", query_rank)?,
                up: linear("q_b_proj", queries, query_rank, false)?,
            },
        };
        let down = linear("kv_a_proj_with_mqa", rank + rope_dim, hidden, bias)?;
        let norm = norm("kv_a_layernorm", rank)?;
        let [key_up, value_up] = self.ups(roles, module)?;
        let output = linear("o_proj", hidden, heads * value_dim, bias)?;
        Ok(LatentAttention {
            heads,
            plain_dim,
            rope_dim,
            value_dim,
            rank,
            query,
            down,
            norm,
            key_up,
            value_up,
            output,
            scale,
            rope: self.rope.clone(),
            query_scale: None,
        })
    }

    /// What latents are projected with to keys and to values: of each head consecutively in `kv_b_proj`, or two stacks of
    /// matrices as mlx-lm converts them, of which that for keys is the other way round.
    fn ups(&self, roles: &Roles<'_>, module: &str) -> Result<[HeadLinear; 2]> {
        let &Self { heads, plain_dim, value_dim, rank, .. } = self;
        let converted = format!("{module}.embed_q");
        let (key, value, transposed) = if roles.has(&format!("{converted}.weight")) {
            let value = roles.matrices(&format!("{module}.unembed_out"), heads, value_dim, rank)?;
            (roles.matrices(&converted, heads, rank, plain_dim)?, value, false)
        } else {
            let stride = plain_dim + value_dim;
            let both = roles.matrix(&format!("{module}.kv_b_proj"), heads * stride, rank)?;
            refuse_order(&both, "projections of latents")?;
            let part = |start, run| {
                let rows = Selection { axis: 0, start, run, stride, runs: heads };
                both.clone().select(rows).reshaped([heads, run, rank])
            };
            (part(0, plain_dim), part(plain_dim, value_dim), true)
        };
        let key_up =
            HeadLinear { weight: roles.add(key), transposed, heads, inputs: plain_dim, outputs: rank };
        let value_up = HeadLinear {
            weight: roles.add(value),
            transposed: false,
            heads,
            inputs: rank,
            outputs: value_dim,
        };
        Ok([key_up, value_up])
    }
}

/// `1 / √dim`, times the square of YaRN's magnitude for all dimensions where the rotary embedding is scaled.
fn scale(config: Fields<'_>, dim: usize) -> Result<f32> {
    let mut scale = (dim as f64).powf(-0.5);
    let scaling = match config.object("rope_scaling")? {
        Some(scaling) => Some(scaling),
        None => config.object("rope_parameters")?,
    };
    let Some(scaling) = scaling else { return Ok(scale as f32) };
    let kind = match scaling.text("rope_type")? {
        Some(kind) => Some(kind),
        None => scaling.text("type")?,
    };
    let magnitude = scaling.number("mscale_all_dim")?.unwrap_or(0.0);
    if kind.is_some_and(|kind| kind != "default") && magnitude != 0.0 {
        let factor = scaling.required_positive("factor")?;
        if factor > 1.0 {
            scale *= (0.1 * magnitude * factor.ln() + 1.0).powi(2);
        }
    }
    Ok(scale as f32)
}
