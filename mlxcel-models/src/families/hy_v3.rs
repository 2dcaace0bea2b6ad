//! Hunyuan 3: norms of queries and keys, and experts that are routed by sigmoids beside a shared one in all
//! but the first layer.
//!
//! Config fields, defaults and arithmetic follow transformers' `HYV3Config` and `HYV3ForCausalLM`. The
//! multi-token prediction layer, which follows the others in the files, is ignored.

use super::experts::{ExpertSizes, shared_experts, sigmoid_router};
use super::prelude::*;
use super::sparse_layers::sparse_layer_types;

pub(super) const FAMILY: Family = Family::new(&["hy_v3"], &[], describe);

const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 120_832,
    hidden: 4096,
    intermediate: 13_312,
    layers: 80,
    query_heads: 64,
    kv_heads: Some(8),
    head_dim: Some(128),
    context: 131_072,
};

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    // Keys of published files, whose other values transformers does not implement.
    for key in ["route_norm", "moe_router_enable_expert_bias", "moe_router_use_sigmoid", "qk_norm"] {
        expect_flag(config, key, true)?;
    }
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let hidden = sizes.hidden;
    let rope = RopeSettings { theta: 11_158_840.0, ..sizes.rope(config) }.read()?;
    let activation = activation(config, "hidden_act", Activation::Silu)?;
    let experts = ExpertSizes::read(config, &sizes, &["num_experts", "num_local_experts"], 1, [192, 8])?;
    let experts = experts.of_own_width(config, 1536)?;
    // transformers makes an MLP of none that is as wide as those of layers without experts.
    let shared_width = config.size("num_shared_experts", 1..=64)?.unwrap_or(1) * experts.width;
    let scale = number(config, "router_scaling_factor", 2.826)?;
    let sparse = sparse_layer_types(config, sizes.layers, 1)?;
    let mlp_biases = flag(config, "mlp_bias", false)?;
    let variant = Variant {
        epsilon: 1e-5,
        attention_biases: AttentionBiases::read(config)?,
        head_norms: HEAD_NORMS,
        mlp_biases,
        ..Variant::PLAIN
    };
    let core = |_| core(sizes.scale(), None, Some(&rope));
    let mlp = variant.mlp(roles, &sizes)?;
    variant.decoder_with(roles, &sizes, core, |index, layer| {
        if !sparse[index] {
            return mlp(layer);
        }
        let module = format!("{layer}.mlp");
        // The second of each are the published names.
        let name = |parts: [&str; 2]| parts.map(|part| format!("{module}.{part}"));
        let gate = roles.first_matrix(&name(["gate", "router.gate"]));
        let projection = roles.linear(&gate, experts.count, hidden, false)?;
        // If there is none, transformers starts with zeros.
        let bias = roles.first_tensor(&name(["e_score_correction_bias", "expert_bias"]));
        let bias = roles.tensor_if_there(&bias, &[experts.count])?;
        let router = Router { scale, ..sigmoid_router(projection, bias, true) };
        let shared = roles.first_matrix(&name(["shared_experts.up_proj", "shared_mlp.up_proj"]));
        let shared = shared.trim_end_matches(".up_proj");
        let shared = shared_experts(roles, shared, [hidden, shared_width], activation, mlp_biases)?;
        roles.mixture(&module, PROJECTIONS, experts, router, activation, shared)
    })
}
