//! Tensor parallelism by roles: which weights of a network are split over devices, and how (Megatron-LM, Shoeybi et al., 2019).
//!
//! Projections that widen (query, key, value, gate, up) are split by their outputs, those that narrow again (output, down) by their
//! inputs: so a block adds up once over the devices, behind the latter. Heads stay whole. The table of embeddings and the head are split
//! by the vocabulary.

use std::collections::HashMap;

use mlxcel_graph::{StateLayout, WeightArgument};
use mlxcel_models::{
    Attention, Decoder, Experts, LatentAttention, LatentQuery, Linear, Mixer, Mlp, Operation, SharedExpert,
    WeightId,
};

use crate::sharding::Sharding;

/// Along which dimension a weight is split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Along {
    /// The outputs of `[.., outputs, inputs]`.
    Outputs,
    /// The inputs.
    Inputs,
    /// The first dimension, such as heads or the vocabulary.
    First,
    /// The last, such as of a bias over outputs.
    Last,
}

/// How each of `arguments`, the weights of `decoder`, lies on `devices` devices.
pub(crate) fn weight_shardings(
    decoder: &Decoder,
    arguments: &[WeightArgument],
    devices: usize,
) -> Vec<Sharding> {
    let mut roles = Roles { along: HashMap::new(), devices };
    if devices > 1 {
        roles.decoder(decoder);
    }
    let own = |argument: &WeightArgument| {
        let rank = argument.ty.rank();
        let dimension = match roles.along.get(&argument.weight) {
            None => return Sharding::Replicated,
            Some(Along::First) => 0,
            // The order of a packed weight's inputs, and factors of all of it, have fewer dimensions.
            Some(Along::Outputs | Along::Inputs) if rank < 2 => return Sharding::Replicated,
            Some(Along::Outputs) => rank - 2,
            Some(Along::Inputs | Along::Last) => rank.saturating_sub(1),
        };
        Sharding::by(dimension, &argument.ty, devices)
    };
    let shardings: Vec<Sharding> = arguments.iter().map(own).collect();
    // A packed weight is split whole or not at all.
    let mut whole: HashMap<WeightId, bool> = HashMap::new();
    for (argument, sharding) in arguments.iter().zip(&shardings) {
        if argument.ty.rank() >= 2 {
            *whole.entry(argument.weight).or_insert(true) &= *sharding != Sharding::Replicated;
        }
    }
    let kept = |(argument, sharding): (&WeightArgument, Sharding)| {
        if whole.get(&argument.weight).copied().unwrap_or(true) { sharding } else { Sharding::Replicated }
    };
    arguments.iter().zip(shardings).map(kept).collect()
}

/// How a state lies on `devices` devices: caches by key/value heads, what has no heads on each of them.
pub(crate) fn state_sharding(layout: &StateLayout, length: usize, devices: usize) -> Sharding {
    /// The dimension of the heads in `[layers, 2, kv_heads, length, width]`.
    const HEADS: usize = 2;
    match layout.kept {
        mlxcel_models::StateShape::Cache { .. } => Sharding::by(HEADS, &layout.tensor_type(length), devices),
        mlxcel_models::StateShape::Latent { .. } | mlxcel_models::StateShape::Fixed { .. } => {
            Sharding::Replicated
        }
    }
}

struct Roles {
    along: HashMap<WeightId, Along>,
    devices: usize,
}

impl Roles {
    fn decoder(&mut self, decoder: &Decoder) {
        self.along.insert(decoder.embedding.weight, Along::First);
        self.along.insert(decoder.head.projection.weight, Along::First);
        for block in decoder.layers.iter().flat_map(|layer| &layer.blocks) {
            match &block.operation {
                Operation::Mixer(Mixer::Attention(attention)) => self.attention(attention),
                Operation::Mixer(Mixer::Latent(latent)) => self.latent(latent),
                // Their channels belong together in ways of their own.
                Operation::Mixer(Mixer::ShortConvolution(_) | Mixer::DeltaRule(_) | Mixer::StateSpace(_)) => {
                }
                Operation::Mlp(mlp) => self.mlp(mlp),
                Operation::Experts(experts) => self.experts(experts),
            }
        }
    }

    fn attention(&mut self, attention: &Attention) {
        if attention.query_heads.is_multiple_of(self.devices) {
            self.outputs([attention.query].iter().chain(&attention.gate));
            self.along.insert(attention.output.weight, Along::Inputs);
            self.along.extend(attention.core.sinks.map(|sinks| (sinks, Along::First)));
        }
        if attention.kv_heads.is_multiple_of(self.devices) {
            self.outputs(&[attention.key, attention.value]);
        }
    }

    fn latent(&mut self, latent: &LatentAttention) {
        if latent.heads.is_multiple_of(self.devices) {
            match &latent.query {
                LatentQuery::Direct(query) | LatentQuery::Compressed { up: query, .. } => {
                    self.outputs([query])
                }
            }
            self.along.extend([&latent.key_up, &latent.value_up].map(|up| (up.weight, Along::First)));
            self.along.insert(latent.output.weight, Along::Inputs);
        }
    }

    fn mlp(&mut self, mlp: &Mlp) {
        match mlp {
            Mlp::Gated { gate, up, down, gating: _ } => {
                self.outputs([gate, up]);
                self.along.insert(down.weight, Along::Inputs);
            }
            Mlp::Plain { up, down, activation: _ } => {
                self.outputs([up]);
                self.along.insert(down.weight, Along::Inputs);
            }
        }
    }

    fn experts(&mut self, experts: &Experts) {
        self.outputs([&experts.gate, &experts.up]);
        self.along.insert(experts.down.weight, Along::Inputs);
        if let Some(SharedExpert { mlp, gate: _ }) = &experts.shared {
            self.mlp(mlp);
        }
    }

    fn outputs<'a>(&mut self, linears: impl IntoIterator<Item = &'a Linear>) {
        for linear in linears {
            self.along.insert(linear.weight, Along::Outputs);
            self.along.extend(linear.bias.map(|bias| (bias, Along::Last)));
        }
    }
}
