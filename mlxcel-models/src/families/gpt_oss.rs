//! gpt-oss: attention with sinks, a window in every other layer, and experts with biases and a clamped
//! SwiGLU.
//!
//! Config fields, defaults and arithmetic follow transformers' `GptOssConfig` and `GptOssForCausalLM`.

use super::experts::{ExpertLinears, ExpertSizes, softmax_router};
use super::prelude::*;
use crate::config::Config;
use crate::rope::is_described;

pub(super) const FAMILY: Family = Family {
    conversion: Conversion { experts: "experts", ..Conversion::sensitive(&["router"]) },
    ..Family::new(&["gpt_oss"], &[], describe)
};

const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 201_088,
    hidden: 2880,
    intermediate: 2880,
    layers: 36,
    query_heads: 64,
    kv_heads: Some(8),
    head_dim: Some(64),
    context: 131_072,
};
const THETA: f64 = 150_000.0;
/// What the settings class assumes where no rotary embedding is described.
const ASSUMED_ROPE: &[u8] =
    br#"{"rope_scaling": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
    "truncate": false, "original_max_position_embeddings": 4096}}"#;

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let rope = rope(config, &sizes)?;
    let window = window(config, "sliding_window", Some(128))?;
    let windows = sliding_windows(config, sizes.layers, window, |index| index.is_multiple_of(2))?;
    let gating = Gating::ClampedSwiglu {
        alpha: config.number("swiglu_alpha")?.unwrap_or(1.702) as f32,
        limit: positive(config, "swiglu_limit", 7.0)?,
        offset: 1.0,
    };
    let experts = ExpertSizes::read(config, &sizes, &["num_local_experts", "num_experts"], 1, [128, 4])?;
    let attention_biases = AttentionBiases::all(flag(config, "attention_bias", true)?);
    let variant = Variant { epsilon: 1e-5, attention_biases, ..Variant::PLAIN };
    let attention = |index: usize, layer: &str| {
        let sinks = Some(roles.tensor(&format!("{layer}.self_attn.sinks"), &[sizes.query_heads])?);
        let core = AttentionCore { sinks, ..core(sizes.scale(), windows[index], Some(&rope)) };
        Ok(variant.attention(roles, &sizes, layer, core)?.into())
    };
    variant.decoder_of(roles, &sizes, attention, |_, layer| {
        let projection = roles.linear(&format!("{layer}.mlp.router"), experts.count, sizes.hidden, true)?;
        let linears = expert_linears(roles, &format!("{layer}.mlp.experts"), experts)?;
        Ok(linears.routed(experts, softmax_router(projection, true), gating, None).into())
    })
}

/// The rotary embedding that the settings describe, or the assumed one.
fn rope(config: Fields<'_>, sizes: &Sizes) -> Result<Rope> {
    let settings = |config, theta| RopeSettings { theta, ..sizes.rope(config) };
    if is_described(config, 4096.0)? {
        return settings(config, THETA).read();
    }
    let assumed = Config::parse("config.json".to_owned(), ASSUMED_ROPE)?;
    settings(assumed.fields(), config.positive("rope_theta")?.unwrap_or(THETA)).read()
}

/// The experts: the rows of gates and up projections take turns in a stack of matrices, which is packed, or
/// else dense and stored the other way round; or there are three stacks as mlx-lm converts them.
fn expert_linears(roles: &Roles<'_>, module: &str, sizes: ExpertSizes) -> Result<ExpertLinears> {
    let ExpertSizes { count, hidden, width, .. } = sizes;
    let fused = format!("{module}.gate_up_proj");
    let is_packed = roles.has(&format!("{fused}_blocks"));
    let (weights, biases) = if is_packed || roles.has(&fused) {
        let turns = |fused: WeightRef| {
            [0, 1].map(|start| {
                fused.clone().select(Selection { axis: 1, start, run: 1, stride: 2, runs: width })
            })
        };
        let stack = |name: &str, rows, columns| {
            if is_packed {
                roles.blocks(name, [count, rows, columns])
            } else {
                roles.dense(name, &[count, columns, rows]).map(WeightRef::transposed)
            }
        };
        let [gate, up] = turns(stack(&fused, 2 * width, hidden)?);
        let down = stack(&format!("{module}.down_proj"), hidden, width)?;
        let [gate_bias, up_bias] = turns(roles.dense(&format!("{fused}_bias"), &[count, 2 * width])?);
        let down_bias = roles.dense(&format!("{module}.down_proj_bias"), &[count, hidden])?;
        ([gate, up, down], [gate_bias, up_bias, down_bias])
    } else {
        let [gate, up, down] = PROJECTIONS;
        let bias = |name: &str, outputs| roles.dense(&format!("{module}.{name}.bias"), &[count, outputs]);
        let weights = roles.stacks(module, sizes)?;
        (weights, [bias(gate, width)?, bias(up, width)?, bias(down, hidden)?])
    };
    let linear = |weight, bias| roles.projection(weight, Some(bias));
    let ([gate, up, down], [gate_bias, up_bias, down_bias]) = (weights, biases);
    Ok(ExpertLinears {
        gate: linear(gate, gate_bias),
        up: linear(up, up_bias),
        down: linear(down, down_bias),
    })
}
