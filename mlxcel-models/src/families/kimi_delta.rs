//! Kimi delta attention: the gated delta rule with a decay for each channel, by config fields and tensor
//! names of Kimi Linear and Ling.

use mlxcel_core::Result;

use super::convolution::taps;
use super::roles::Roles;
use super::settings::{LARGEST_HEAD_COUNT, LARGEST_HEAD_DIM};
use crate::config::Fields;
use crate::decoder::{Activation, Decay, DecayScope, DeltaRule, HeadSharing, Projection};

/// The sizes of Kimi delta attention, which has as many heads of keys as of values.
#[derive(Clone, Copy, Debug)]
pub(super) struct KimiDelta {
    pub(super) hidden: usize,
    pub(super) heads: usize,
    pub(super) dim: usize,
    pub(super) taps: usize,
    pub(super) decay_form: Decay,
    pub(super) activation: Activation,
    pub(super) epsilon: f32,
}

impl KimiDelta {
    /// Reads the sizes, with these where there are none: from the settings by transformers' names, or those
    /// in the object `linear_attn_config`, which go first.
    pub(super) fn read(self, config: Fields<'_>) -> Result<Self> {
        let heads = config.size("linear_num_heads", 1..=LARGEST_HEAD_COUNT)?.unwrap_or(self.heads);
        let dim = config.size("linear_head_dim", 1..=LARGEST_HEAD_DIM)?.unwrap_or(self.dim);
        let tap_count = taps(config, "linear_conv_kernel_dim", self.taps)?;
        let (heads, dim, taps) = match config.object("linear_attn_config")? {
            None => (heads, dim, tap_count),
            Some(inner) => (
                inner.size("num_heads", 1..=LARGEST_HEAD_COUNT)?.unwrap_or(heads),
                inner.size("head_dim", 1..=LARGEST_HEAD_DIM)?.unwrap_or(dim),
                taps(inner, "short_conv_kernel_size", tap_count)?,
            ),
        };
        Ok(Self { heads, dim, taps, ..self })
    }

    /// The mixer of `module`.
    pub(super) fn describe(&self, roles: &Roles<'_>, module: &str) -> Result<DeltaRule> {
        let &Self { hidden, heads, dim, taps, decay_form, activation, epsilon } = self;
        let width = heads * dim;
        let name = |part: &str| format!("{module}.{part}");
        let linear = |part: &str, outputs, inputs| roles.linear(&name(part), outputs, inputs, false);
        // Kimi has two projections where Ling has one.
        let narrow = |part: &str| -> Result<Projection> {
            if roles.has_matrix(&name(&format!("{part}_proj"))) {
                return linear(&format!("{part}_proj"), width, hidden).map(Projection::Direct);
            }
            Ok(Projection::Narrow {
                down: linear(&format!("{part}_a_proj"), dim, hidden)?,
                activation: None,
                up: linear(&format!("{part}_b_proj"), width, dim)?,
            })
        };
        let whole = name("conv1d");
        let convolution = if roles.has(&format!("{whole}.weight")) {
            roles.convolution(&whole, [3 * width, taps], false, Some(activation))?
        } else {
            // The second are mlx-lm's names.
            let is_converted = roles.has(&name("q_conv.conv.weight"));
            let suffix = if is_converted { "conv.conv" } else { "conv1d" };
            let parts = ["q", "k", "v"].map(|part| name(&format!("{part}_{suffix}")));
            roles.joined_convolution(parts, [width; 3], taps, Some(activation))?
        };
        let decay = name("A_log");
        let flat = roles.shape(&decay).is_some_and(|shape| shape.len() == 1);
        let decay = if flat {
            roles.dense(&decay, &[heads])?
        } else {
            roles.dense(&decay, &[1, 1, heads, 1])?.reshaped([heads])
        };
        // The second is Ling's name.
        let output = roles.first_matrix(&["o_proj", "dense"].map(name));
        Ok(DeltaRule {
            key_heads: heads,
            value_heads: heads,
            sharing: HeadSharing::Neighbours,
            key_dim: dim,
            value_dim: dim,
            query: linear("q_proj", width, hidden)?,
            key: linear("k_proj", width, hidden)?,
            value: linear("v_proj", width, hidden)?,
            gate: narrow("g")?,
            gate_activation: Activation::Sigmoid,
            beta: linear("b_proj", heads, hidden)?,
            beta_scale: 1.0,
            alpha: narrow("f")?,
            convolution,
            alpha_bias: roles.tensor(&name("dt_bias"), &[width])?,
            decay: roles.add(decay),
            decay_form,
            decay_scope: DecayScope::Channel,
            norm: roles.rms_norm(&name("o_norm"), dim, epsilon)?,
            output: roles.linear(&output, hidden, width, false)?,
        })
    }
}
