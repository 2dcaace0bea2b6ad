//! Blocks of layers, from the tensor names that most families use.

use mlxcel_core::Result;

use super::roles::Roles;
use super::settings::{Sizes, flag};
use crate::config::Fields;
use crate::decoder::{
    Activation, Arrangement, Attention, AttentionCore, AttentionMask, Block, Gating, HeadNorm, Layer, Linear,
    Mixer, Mlp, Norm, NormKind, NormScope, Operation,
};
use crate::rope::Rope;

impl From<Attention> for Operation {
    fn from(attention: Attention) -> Self {
        Self::Mixer(Mixer::Attention(attention))
    }
}

impl From<Mixer> for Operation {
    fn from(mixer: Mixer) -> Self {
        Self::Mixer(mixer)
    }
}

impl From<Mlp> for Operation {
    fn from(mlp: Mlp) -> Self {
        Self::Mlp(mlp)
    }
}

/// An operation without norms.
pub(super) fn plain(operation: impl Into<Operation>) -> Block {
    let operation = operation.into();
    Block {
        norm_before: None,
        input_scale: 1.0,
        operation,
        norm_after: None,
        laurel: None,
        residual_scale: 1.0,
        norm_output: None,
        deferred: false,
        connection: None,
    }
}

/// An operation whose sum with the residual stream is normalized.
pub(super) fn normed_output(operation: impl Into<Operation>, norm: Norm) -> Block {
    Block { norm_output: Some(norm), ..plain(operation) }
}

/// An operation behind a norm.
pub(super) fn pre_norm(norm: Norm, operation: impl Into<Operation>) -> Block {
    Block { norm_before: Some(norm), ..plain(operation) }
}

/// An operation before a norm.
pub(super) fn post_norm(operation: impl Into<Operation>, norm: Norm) -> Block {
    Block { norm_after: Some(norm), ..plain(operation) }
}

/// An operation between two norms.
pub(super) fn between_norms(before: Norm, operation: impl Into<Operation>, after: Norm) -> Block {
    Block { norm_after: Some(after), ..pre_norm(before, operation) }
}

/// Sequential blocks, each reading the output of the previous one.
pub(super) fn sequential(blocks: impl Into<Vec<Block>>) -> Layer {
    Layer { blocks: blocks.into(), arrangement: Arrangement::Sequential, altup: None, scale: None }
}

/// Blocks that all read the layer's input.
pub(super) fn parallel(blocks: impl Into<Vec<Block>>) -> Layer {
    Layer { blocks: blocks.into(), arrangement: Arrangement::Parallel, altup: None, scale: None }
}

/// Attention with a scale, over a window or everything, rotated or not, and nothing else.
pub(super) fn core(scale: f32, window: Option<usize>, rope: Option<&Rope>) -> AttentionCore {
    AttentionCore {
        scale,
        mask: AttentionMask::Causal,
        window,
        rope: rope.cloned(),
        soft_cap: None,
        sinks: None,
        query_scale: None,
        distance: None,
    }
}

/// Attention with these projections of queries, keys and values, and of the output, and nothing else.
pub(super) fn plain_attention(
    sizes: &Sizes,
    [query, key, value]: [Linear; 3],
    output: Linear,
    core: AttentionCore,
) -> Attention {
    Attention {
        query_heads: sizes.query_heads,
        kv_heads: sizes.kv_heads,
        head_dim: sizes.head_dim,
        value_dim: sizes.head_dim,
        query,
        key,
        value,
        output,
        query_norm: None,
        key_norm: None,
        value_norm: None,
        clip: None,
        gate: None,
        gate_activation: Activation::Sigmoid,
        output_norm: None,
        value_scale: 1.0,
        core,
    }
}

/// A root-mean-square norm without factors.
pub(super) fn plain_norm(width: usize, epsilon: f32) -> Norm {
    Norm { kind: NormKind::Rms, weight: None, bias: None, epsilon, offset: 0.0, width }
}

/// A norm of queries or keys, each head by itself.
pub(super) fn by_head(norm: Norm) -> Option<HeadNorm> {
    Some(HeadNorm { norm, scope: NormScope::Head })
}

/// A norm of queries or keys over all heads.
pub(super) fn over_heads(norm: Norm) -> Option<HeadNorm> {
    Some(HeadNorm { norm, scope: NormScope::Full })
}

/// Which projections of attention have biases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AttentionBiases {
    /// Those of queries, keys and values.
    pub(super) inputs: bool,
    /// The one behind the heads.
    pub(super) output: bool,
}

impl AttentionBiases {
    pub(super) const NONE: Self = Self { inputs: false, output: false };

    /// All or none.
    pub(super) fn all(biases: bool) -> Self {
        Self { inputs: biases, output: biases }
    }

    /// Those of queries, keys and values, or none.
    pub(super) fn inputs(biases: bool) -> Self {
        Self { inputs: biases, output: false }
    }

    /// All or none, as `attention_bias` says; none by default.
    pub(super) fn read(config: Fields<'_>) -> Result<Self> {
        Ok(Self::all(flag(config, "attention_bias", false)?))
    }
}

/// The names that most families give the projections of an MLP or an expert: gate, up and down.
pub(super) const PROJECTIONS: [&str; 3] = ["gate_proj", "up_proj", "down_proj"];
/// Those of an MLP without a gate.
pub(super) const UNGATED: [&str; 2] = ["up_proj", "down_proj"];

impl Roles<'_> {
    /// Attention with the projections `q_proj`, `k_proj`, `v_proj` and `o_proj` of the module `name`, without
    /// norms.
    pub(super) fn attention(
        &self,
        name: &str,
        sizes: &Sizes,
        biases: AttentionBiases,
        core: AttentionCore,
    ) -> Result<Attention> {
        self.wide_attention(name, sizes.hidden, sizes, biases, core)
    }

    /// [`attention`](Self::attention) over inputs of this `width`.
    pub(super) fn wide_attention(
        &self,
        name: &str,
        width: usize,
        sizes: &Sizes,
        biases: AttentionBiases,
        core: AttentionCore,
    ) -> Result<Attention> {
        let inputs = self.attention_inputs(name, width, sizes, biases.inputs)?;
        let output =
            self.linear(&format!("{name}.o_proj"), sizes.hidden, sizes.query_width(), biases.output)?;
        Ok(plain_attention(sizes, inputs, output, core))
    }

    /// The projections `q_proj`, `k_proj` and `v_proj` of the module `name` from inputs of this `width`, or
    /// `qkv_proj` with the rows of all, as some GGUF files have it.
    pub(super) fn attention_inputs(
        &self,
        name: &str,
        width: usize,
        sizes: &Sizes,
        biases: bool,
    ) -> Result<[Linear; 3]> {
        let (queries, keys) = (sizes.query_width(), sizes.kv_width());
        let fused = format!("{name}.qkv_proj");
        if self.has_matrix(&fused) {
            return Ok(self.fused(&fused, queries + 2 * keys, width, biases)?.in_order(sizes));
        }
        let input = |part, outputs| self.linear(&format!("{name}.{part}"), outputs, width, biases);
        Ok([input("q_proj", queries)?, input("k_proj", keys)?, input("v_proj", keys)?])
    }

    /// The gated MLP with the projections `gate_proj`, `up_proj` and `down_proj` of the module `name`.
    pub(super) fn gated_mlp(
        &self,
        name: &str,
        shape: [usize; 2],
        activation: Activation,
        biases: bool,
    ) -> Result<Mlp> {
        self.gated_mlp_of(name, PROJECTIONS, shape, Gating::Activated(activation), biases)
    }

    /// The gated MLP with these projections of the module `name` (gate, up and down) and any function of the
    /// gate.
    pub(super) fn gated_mlp_of(
        &self,
        name: &str,
        [gate, up, down]: [&str; 3],
        [hidden, intermediate]: [usize; 2],
        gating: Gating,
        biases: bool,
    ) -> Result<Mlp> {
        let linear = |part, outputs, inputs| self.linear(&format!("{name}.{part}"), outputs, inputs, biases);
        Ok(Mlp::Gated {
            gating,
            gate: linear(gate, intermediate, hidden)?,
            up: linear(up, intermediate, hidden)?,
            norm: None,
            down: linear(down, hidden, intermediate)?,
        })
    }

    /// The gated MLP whose projection `both` has the rows of the gate and behind them those of the up
    /// projection.
    pub(super) fn fused_gated_mlp(
        &self,
        name: &str,
        [both, down]: [&str; 2],
        [hidden, intermediate]: [usize; 2],
        activation: Activation,
        biases: bool,
    ) -> Result<Mlp> {
        let fused = self.fused(&format!("{name}.{both}"), 2 * intermediate, hidden, biases)?;
        Ok(Mlp::Gated {
            gating: Gating::Activated(activation),
            gate: fused.rows(0, intermediate),
            up: fused.rows(intermediate, intermediate),
            norm: None,
            down: self.linear(&format!("{name}.{down}"), hidden, intermediate, biases)?,
        })
    }

    /// The MLP without a gate with these projections of the module `name`, the one up and the one down.
    pub(super) fn plain_mlp(
        &self,
        name: &str,
        [up, down]: [&str; 2],
        [hidden, intermediate]: [usize; 2],
        activation: Activation,
        biases: bool,
    ) -> Result<Mlp> {
        Ok(Mlp::Plain {
            activation,
            up: self.linear(&format!("{name}.{up}"), intermediate, hidden, biases)?,
            down: self.linear(&format!("{name}.{down}"), hidden, intermediate, biases)?,
        })
    }
}
