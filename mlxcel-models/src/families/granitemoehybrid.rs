//! Granite 4: state spaces in most layers and attention in the others, Granite's multipliers, and a shared
//! MLP, with experts or without.
//!
//! Config fields, defaults and arithmetic follow transformers' `GraniteMoeHybridConfig` and
//! `GraniteMoeHybridForCausalLM`, but for `time_step_limit`, which applies to single tokens too, as in Mamba
//! 2.

use super::experts::ExpertSizes;
use super::granite::{ATTENTION_SCALE, scaled};
use super::granitemoe::routed;
use super::prelude::*;
use super::state_space::StateSpaceSettings;

pub(super) const FAMILY: Family = Family {
    conversion: Conversion::sensitive(&["block_sparse_moe.router.layer", "block_sparse_moe.router"]),
    ..Family::new(&["granitemoehybrid"], &[2], describe)
};

/// What published files call the two types of layers.
const PUBLISHED: [&str; 2] = ["mamba", "attention"];

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let sizes = Sizes::read(config, &SizeDefaults::LLAMA)?;
    let hidden = sizes.hidden;
    let variant = scaled(config)?;
    let epsilon = positive(config, "rms_norm_eps", 1e-6)?;
    let activation = activation(config, "hidden_act", Activation::Silu)?;
    let rope = rope(config, &sizes)?;
    let attention_scale = number(config, ATTENTION_SCALE, 1.0)?;
    let state_space = StateSpaceSettings::of_hybrid(config, hidden, activation, epsilon, None)?;
    let key = if config.get("layers_block_type").is_some() { "layers_block_type" } else { "layer_types" };
    let [mamba, attention] = PUBLISHED;
    let types = layer_kinds(config, key, sizes.layers, &[LINEAR, FULL, mamba, attention], |_| LINEAR)?;
    let experts = ExpertSizes::read(config, &sizes, &["num_local_experts"], 0, [8, 2])?;
    let shared_width = config.size("shared_intermediate_size", 1..=LARGEST_WIDTH)?.unwrap_or(1024);
    let mixer = |index: usize, layer: &str| {
        if [LINEAR, mamba].contains(&types[index]) {
            return Ok(state_space.describe(roles, &format!("{layer}.mamba"))?.into());
        }
        let core = core(attention_scale, None, rope.as_ref());
        Ok(variant.attention(roles, &sizes, layer, core)?.into())
    };
    variant.decoder_of(roles, &sizes, mixer, |_, layer| {
        let mlp = shared_mlp(roles, layer, [hidden, shared_width], activation)?;
        if experts.count == 0 {
            return Ok(mlp.into());
        }
        let (module, gating) = (format!("{layer}.block_sparse_moe"), Gating::Activated(activation));
        Ok(routed(roles, &module, experts, gating, Some(mlp.into()))?.into())
    })
}

/// The rotary embedding, if `position_embedding_type` asks for one.
fn rope(config: Fields<'_>, sizes: &Sizes) -> Result<Option<Rope>> {
    const KEY: &str = "position_embedding_type";
    match config.text(KEY)? {
        Some("rope") => Ok(Some(sizes.rope(config).read()?)),
        None | Some("nope") => Ok(None),
        Some(other) => {
            let message = format!("'{}' is not supported; rope and nope are", other.escape_debug());
            Err(config.unsupported(KEY, message))
        }
    }
}

/// The MLP that all tokens go through, whose projection of the input has the gate's rows in front, or which
/// mlx-lm has split.
pub(super) fn shared_mlp(
    roles: &Roles<'_>,
    layer: &str,
    [hidden, width]: [usize; 2],
    activation: Activation,
) -> Result<Mlp> {
    let module = format!("{layer}.mlp");
    let modules = [format!("{module}.gate_proj"), format!("{layer}.shared_mlp.input_linear")];
    if roles.first_matrix(&modules) == modules[0] {
        return roles.gated_mlp(&module, [hidden, width], activation, false);
    }
    let names = ["input_linear", "output_linear"];
    roles.fused_gated_mlp(&format!("{layer}.shared_mlp"), names, [hidden, width], activation, false)
}
