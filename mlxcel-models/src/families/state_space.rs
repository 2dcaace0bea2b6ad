//! Selective state spaces of Mamba 2: config fields and tensor names.

use mlxcel_core::Result;

use super::blocks::plain_norm;
use super::convolution::taps;
use super::roles::Roles;
use super::settings::{LARGEST_HEAD_COUNT, LARGEST_HEAD_DIM, flag};
use crate::config::Fields;
use crate::decoder::{Activation, Mixer, Norm, Operation, StateSpace, StateSpaceScales};

/// The settings of a state space.
pub(super) struct StateSpaceSettings {
    /// The width of the stream.
    pub(super) hidden: usize,
    pub(super) heads: usize,
    pub(super) head_dim: usize,
    pub(super) groups: usize,
    pub(super) state_size: usize,
    pub(super) taps: usize,
    pub(super) bias: bool,
    pub(super) convolution_bias: bool,
    pub(super) activation: Activation,
    pub(super) dt_limits: (f32, f32),
    pub(super) epsilon: f32,
    pub(super) variant: StateSpaceVariant,
}

/// What only Falcon H1 sets.
#[derive(Clone, Copy)]
pub(super) struct StateSpaceVariant {
    /// Whether there is a norm.
    pub(super) normed: bool,
    /// Whether the norm comes before the gate.
    pub(super) norm_first: bool,
    /// Whether the output projection has biases; as the other projection if `None`.
    pub(super) output_bias: Option<bool>,
    pub(super) scales: StateSpaceScales,
}

impl StateSpaceVariant {
    /// What all others have.
    pub(super) const PLAIN: Self =
        Self { normed: true, norm_first: false, output_bias: None, scales: StateSpaceScales::ONE };
}

impl StateSpaceSettings {
    /// Refuses heads that are not `inner` wide together, and groups that cannot share them, by the names of
    /// the keys.
    pub(super) fn check(
        &self,
        config: Fields<'_>,
        inner: usize,
        [heads_key, groups_key]: [&str; 2],
    ) -> Result<()> {
        let &Self { heads, head_dim, groups, .. } = self;
        if heads * head_dim != inner {
            let message = format!("{heads} heads of {head_dim} are not {inner} wide together");
            return Err(config.wrong(heads_key, message));
        }
        if heads % groups != 0 {
            return Err(
                config.wrong(groups_key, format!("{groups} groups cannot share {heads} heads evenly"))
            );
        }
        Ok(())
    }

    /// Reads the keys `mamba_…` that hybrids of state spaces and attention have. `inner` is the width of all
    /// heads; it defaults to `mamba_expand` times `hidden`.
    pub(super) fn of_hybrid(
        config: Fields<'_>,
        hidden: usize,
        activation: Activation,
        epsilon: f32,
        inner: Option<usize>,
    ) -> Result<Self> {
        const HEAD_DIM: &str = "mamba_d_head";
        let heads = config.size("mamba_n_heads", 1..=LARGEST_HEAD_COUNT)?.unwrap_or(128);
        let inner = match inner {
            Some(inner) => inner,
            None => hidden * config.size("mamba_expand", 1..=64)?.unwrap_or(2),
        };
        let is_auto = config.get(HEAD_DIM).is_none_or(|width| width.as_str() == Some("auto"));
        let head_dim = if is_auto { None } else { config.size(HEAD_DIM, 1..=LARGEST_HEAD_DIM)? };
        let settings = Self {
            hidden,
            heads,
            head_dim: head_dim.unwrap_or((inner / heads).max(1)),
            groups: config.size("mamba_n_groups", 1..=LARGEST_HEAD_COUNT)?.unwrap_or(1),
            state_size: config.size("mamba_d_state", 1..=LARGEST_HEAD_DIM)?.unwrap_or(256),
            taps: taps(config, "mamba_d_conv", 4)?,
            bias: flag(config, "mamba_proj_bias", false)?,
            convolution_bias: flag(config, "mamba_conv_bias", true)?,
            activation,
            dt_limits: dt_limits(config)?,
            epsilon,
            variant: StateSpaceVariant::PLAIN,
        };
        settings.check(config, inner, ["mamba_n_heads", "mamba_n_groups"])?;
        Ok(settings)
    }

    /// The width of what the heads give together.
    fn inner(&self) -> usize {
        self.heads * self.head_dim
    }

    /// The channels of `x`, `B` and `C`.
    fn channels(&self) -> usize {
        self.inner() + 2 * self.groups * self.state_size
    }

    /// The mixer of module `name`, whose projection has the rows of the gate, the convolution's channels and
    /// dt.
    pub(super) fn describe(&self, roles: &Roles<'_>, name: &str) -> Result<StateSpace> {
        let &Self { hidden, heads, head_dim, groups, state_size, taps, bias, dt_limits, epsilon, .. } = self;
        let (inner, channels) = (self.inner(), self.channels());
        // The rows of the one projection: z, then what goes through the convolution, then dt.
        let rows = inner + channels + heads;
        let joint = roles.fused(&format!("{name}.in_proj"), rows, hidden, bias)?;
        let gate = joint.rows(0, inner);
        let input = joint.rows(inner, channels);
        let dt = joint.rows(inner + channels, heads);
        let convolution = roles.convolution(
            &format!("{name}.conv1d"),
            [channels, taps],
            self.convolution_bias,
            Some(self.activation),
        )?;
        let variant = self.variant;
        let norm = || -> Result<Norm> {
            let width = inner / groups;
            let factors = roles.dense(&format!("{name}.norm.weight"), &[inner])?;
            let factors = if groups == 1 { factors } else { factors.reshaped([groups, width]) };
            Ok(Norm { weight: Some(roles.add(factors)), ..plain_norm(width, epsilon) })
        };
        let norm = variant.normed.then(norm).transpose()?;
        Ok(StateSpace {
            heads,
            head_dim,
            groups,
            state_size,
            gate,
            input,
            dt,
            scales: variant.scales,
            convolution,
            dt_bias: roles.tensor(&format!("{name}.dt_bias"), &[heads])?,
            dt_limits,
            decay: roles.tensor(&format!("{name}.A_log"), &[heads])?,
            skip: roles.tensor(&format!("{name}.D"), &[heads])?,
            norm,
            norm_first: variant.norm_first,
            output: roles.linear(
                &format!("{name}.out_proj"),
                hidden,
                inner,
                variant.output_bias.unwrap_or(bias),
            )?,
        })
    }
}

/// Reads the bounds of dt.
pub(super) fn dt_limits(config: Fields<'_>) -> Result<(f32, f32)> {
    let (least, most) = config.bounds("time_step_limit")?.unwrap_or((0.0, f64::INFINITY));
    Ok((least as f32, most as f32))
}

impl From<StateSpace> for Operation {
    fn from(mixer: StateSpace) -> Self {
        Self::Mixer(Mixer::StateSpace(mixer))
    }
}
