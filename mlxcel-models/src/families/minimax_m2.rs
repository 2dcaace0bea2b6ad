//! MiniMax-M2: norms of queries and keys over all heads, rotary embedding of a part of each head, and experts
//! in every layer that are routed by sigmoids.
//!
//! Config fields, defaults and arithmetic follow transformers' `MiniMaxM2Config` and `MiniMaxM2ForCausalLM`.
//! The multi-token prediction modules are ignored.

use super::experts::{ExpertSizes, sigmoid_router};
use super::olmo2::FULL_NORMS;
use super::prelude::*;

pub(super) const FAMILY: Family = Family {
    conversion: Conversion::sensitive(&["block_sparse_moe.gate", "mlp.gate"]),
    ..Family::new(&["minimax_m2"], &[200_020], describe)
};

const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 200_064,
    hidden: 3072,
    intermediate: 1536,
    layers: 62,
    query_heads: 48,
    kv_heads: Some(8),
    head_dim: Some(128),
    context: 196_608,
};

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    refuse_other_structures(config)?;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    // Published files give the width of the rotated part instead of a fraction.
    let rotated = config.size("rotary_dim", 1..=LARGEST_HEAD_DIM)?.unwrap_or(sizes.head_dim);
    let default = rotated as f64 / sizes.head_dim as f64;
    let rope = RopeSettings {
        theta: 5_000_000.0,
        partial: Partial::Part { key: "partial_rotary_factor", default },
        ..sizes.rope(config)
    }
    .read()?;
    let activation = activation(config, "hidden_act", Activation::Silu)?;
    let experts = ExpertSizes::read(config, &sizes, &["num_local_experts", "num_experts"], 1, [256, 8])?;
    let variant = Variant { head_norms: FULL_NORMS, ..Variant::PLAIN };
    let core = |_| core(sizes.scale(), None, Some(&rope));
    variant.decoder_with(roles, &sizes, core, |_, layer| {
        // transformers has renamed the module, and reads both.
        let gates = [format!("{layer}.block_sparse_moe.gate"), format!("{layer}.mlp.gate")];
        let gate = roles.first_matrix(&gates);
        let module = gate.trim_end_matches(".gate");
        let bias = roles.tensor_if_there(&format!("{module}.e_score_correction_bias"), &[experts.count])?;
        let projection = roles.linear(&gate, experts.count, sizes.hidden, false)?;
        let router = Router { normaliser: 0.0, ..sigmoid_router(projection, bias, true) };
        roles.mixture(module, ["w1", "w3", "w2"], experts, router, activation, None)
    })
}

/// The errors for what the keys of published files allow beyond what transformers implements.
fn refuse_other_structures(config: Fields<'_>) -> Result<()> {
    expect_text(config, "scoring_func", "sigmoid")?;
    expect_text(config, "qk_norm_type", "per_layer")?;
    expect_flag(config, "use_qk_norm", true)?;
    const SHARED: &str = "shared_intermediate_size";
    match config.size(SHARED, 0..=usize::MAX)? {
        None | Some(0) => {}
        Some(width) => {
            let message = format!("a shared expert of width {width} is not supported for this model_type");
            return Err(config.unsupported(SHARED, message));
        }
    }
    // Attention of the first MiniMax models, a 0 for a linear one.
    const TYPES: &str = "attn_type_list";
    match config.sizes(TYPES)? {
        Some(types) if types.contains(&0) => {
            Err(config.unsupported(TYPES, "linear attention is not supported for this model_type".to_owned()))
        }
        _ => Ok(()),
    }
}
