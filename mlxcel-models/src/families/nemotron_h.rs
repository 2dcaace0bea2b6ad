//! Nemotron-H (and Nemotron 3): layers of one block each, which is a state space, attention without
//! positions, an MLP without a gate, or experts without gates.
//!
//! Config fields, defaults and arithmetic follow transformers' `NemotronHConfig` and `NemotronHForCausalLM`.
//! There, prefill bounds dt by `time_step_min` and decoding does not; here both do, so that text does not
//! depend on prefill chunking. The multi-token prediction layers, `mtp`, are ignored.

use super::convolution::taps;
use super::experts::{ExpertLinears, ExpertSizes, GroupedDefaults, GroupedExperts};
use super::prelude::*;
use super::state_space::{StateSpaceSettings, StateSpaceVariant};

pub(super) const FAMILY: Family = Family {
    conversion: Conversion { projections: ["gate_proj", "fc1", "fc2"], ..Conversion::USUAL },
    ..Family::new(&["nemotron_h"], &[2], describe)
};

const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 131_072,
    intermediate: 21_504,
    layers: 4,
    kv_heads: Some(8),
    head_dim: Some(128),
    context: 4096,
    ..SizeDefaults::LLAMA
};
const EXPERTS: GroupedDefaults =
    GroupedDefaults { count: 8, chosen: 2, width: 7688, ..GroupedDefaults::PLAIN };
const MLP: &str = "mlp";
const EXPERT: &str = "moe";

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let kinds = kinds(config)?;
    let sizes = Sizes { layers: kinds.len(), ..Sizes::read(config, &DEFAULTS)? };
    let hidden = sizes.hidden;
    let epsilon = positive(config, "layer_norm_epsilon", 1e-5)?;
    let state_space = state_space(config, hidden, epsilon)?;
    let activation = activation(config, "mlp_hidden_act", Activation::ReluSquared)?;
    let biases = flag(config, "mlp_bias", false)?;
    let mixture = GroupedExperts::read(config, &sizes, activation, &EXPERTS)?;
    if kinds.contains(&EXPERT) {
        refuse_other_experts(config, activation)?;
    }
    let shared_width = config.size("moe_shared_expert_intermediate_size", 1..=LARGEST_WIDTH)?.unwrap_or(7688);

    // transformers has renamed the model, and reads both.
    let bases = ["backbone.", "model."].map(|base| roles.base(base, "embeddings"));
    let found = bases.iter().find(|base| roles.has(&format!("{base}embeddings.weight")));
    let base = found.unwrap_or(&bases[0]);
    let norm = |name: &str| roles.rms_norm(name, hidden, epsilon);
    let layer = |index: usize| {
        let norm = norm(&format!("{base}layers.{index}.norm"))?;
        let mixer = format!("{base}layers.{index}.mixer");
        let operation: Operation = match kinds[index] {
            FULL => {
                let core = core(sizes.scale(), None, None);
                roles.attention(&mixer, &sizes, AttentionBiases::NONE, core)?.into()
            }
            MLP => roles.plain_mlp(&mixer, UNGATED, [hidden, sizes.intermediate], activation, biases)?.into(),
            EXPERT => {
                let shared = format!("{mixer}.shared_experts");
                let shape = [hidden, shared_width];
                let shared = Some(roles.plain_mlp(&shared, UNGATED, shape, activation, biases)?.into());
                let linears = expert_linears(roles, &mixer, mixture.sizes())?;
                let router = mixture.router(roles, &mixer)?;
                let gating = Gating::Ungated(Activation::ReluSquared);
                linears.routed(mixture.sizes(), router, gating, shared).into()
            }
            _ => state_space.describe(roles, &mixer)?.into(),
        };
        Ok(sequential([pre_norm(norm, operation)]))
    };
    let outline = Outline {
        embedding: format!("{base}embeddings"),
        norm: Some(format!("{base}norm_f")),
        ..Outline::new(&sizes, base, flag(config, "tie_word_embeddings", false)?)
    };
    roles.decoder(outline, norm, layer)
}

/// What each layer is, by a list of names or a pattern of letters.
fn kinds(config: Fields<'_>) -> Result<Vec<&'static str>> {
    const PATTERN: &str = "hybrid_override_pattern";
    const LISTS: [&str; 2] = ["layer_types", "layers_block_type"];
    const KNOWN: [&str; 6] = [LINEAR, FULL, MLP, EXPERT, "mamba", "attention"];
    for key in LISTS {
        let Some(listed) = config.texts(key)? else { continue };
        let kinds = layer_kinds(config, key, listed.len(), &KNOWN, |_| LINEAR)?;
        return Ok(kinds.into_iter().map(|kind| if kind == "attention" { FULL } else { kind }).collect());
    }
    let kind = |letter: char| match letter {
        'M' => Ok(LINEAR),
        '*' => Ok(FULL),
        '-' => Ok(MLP),
        'E' => Ok(EXPERT),
        other => Err(config
            .unsupported(PATTERN, format!("layers of type '{}' are not supported", other.escape_debug()))),
    };
    config.text(PATTERN)?.unwrap_or("ME*-").chars().map(kind).collect()
}

/// Reads the settings of state spaces, of which some have a name of other hybrids too.
fn state_space(config: Fields<'_>, hidden: usize, epsilon: f32) -> Result<StateSpaceSettings> {
    let either =
        |other: &'static str, key: &'static str| if config.get(other).is_some() { other } else { key };
    let groups_key = either("mamba_n_groups", "n_groups");
    let heads = config.size("mamba_num_heads", 1..=LARGEST_HEAD_COUNT)?.unwrap_or(128);
    let groups = config.size(groups_key, 1..=LARGEST_HEAD_COUNT)?.unwrap_or(8);
    if heads % groups != 0 {
        let message = format!("{groups} groups cannot share {heads} heads evenly");
        return Err(config.wrong(groups_key, message));
    }
    Ok(StateSpaceSettings {
        hidden,
        heads,
        head_dim: config.size("mamba_head_dim", 1..=LARGEST_HEAD_DIM)?.unwrap_or(64),
        groups,
        state_size: config.size("ssm_state_size", 1..=LARGEST_HEAD_DIM)?.unwrap_or(128),
        taps: taps(config, either("mamba_d_conv", "conv_kernel"), 4)?,
        bias: flag(config, "use_bias", false)?,
        convolution_bias: flag(config, either("mamba_conv_bias", "use_conv_bias"), true)?,
        activation: activation(config, "mamba_hidden_act", Activation::Silu)?,
        dt_limits: (number(config, either("mamba_dt_min", "time_step_min"), 1e-3)?, f32::INFINITY),
        epsilon,
        variant: StateSpaceVariant::PLAIN,
    })
}

fn refuse_other_experts(config: Fields<'_>, activation: Activation) -> Result<()> {
    const LATENT: &str = "moe_latent_size";
    if config.get(LATENT).is_some() {
        let message = "experts behind a projection are not supported for this model_type".to_owned();
        return Err(config.unsupported(LATENT, message));
    }
    if activation != Activation::ReluSquared {
        let message = "experts with another activation than relu2 are not supported".to_owned();
        return Err(config.unsupported("mlp_hidden_act", message));
    }
    Ok(())
}

/// The projections of experts without gates: one by one, as transformers keeps them, or as mlx-lm converts
/// them.
fn expert_linears(roles: &Roles<'_>, module: &str, sizes: ExpertSizes) -> Result<ExpertLinears> {
    let ExpertSizes { count, hidden, width, .. } = sizes;
    let [up, down] = [("up_proj", "fc1", width, hidden), ("down_proj", "fc2", hidden, width)].map(
        |(name, converted, rows, columns)| {
            let stacks = [format!("{module}.switch_mlp.{converted}"), format!("{module}.switch_mlp.{name}")];
            if let Some(stack) = stacks.iter().find(|stack| roles.has(&format!("{stack}.weight"))) {
                return roles.matrices(stack, count, rows, columns);
            }
            let stack = format!("{module}.experts.{name}");
            if roles.has(&stack) {
                return roles.dense(&stack, &[count, rows, columns]);
            }
            roles.one_by_one(module, name, count, [rows, columns])
        },
    );
    let up = up?;
    Ok(ExpertLinears::new(roles, [up.clone(), up, down?]))
}
