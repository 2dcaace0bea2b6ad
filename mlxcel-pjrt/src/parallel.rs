//! Which weights and states of a network are split over devices, and how.

use std::collections::HashMap;

use mlxcel_graph::{StateLayout, WeightArgument};
use mlxcel_models::{Decoder, SplitAlong, StateShape, WeightId};

use crate::sharding::Sharding;

/// How each of `arguments`, the weights of `decoder`, lies on `devices` devices.
pub(crate) fn weight_shardings(
    decoder: &Decoder,
    arguments: &[WeightArgument],
    devices: usize,
) -> Vec<Sharding> {
    let splits = decoder.tensor_parallel(devices);
    let own = |argument: &WeightArgument| {
        let rank = argument.ty.rank();
        let dimension = match splits.get(&argument.weight) {
            None => return Sharding::Replicated,
            Some(SplitAlong::First) => 0,
            // The order of a packed weight's inputs, and factors of all of it, have fewer dimensions.
            Some(SplitAlong::Outputs | SplitAlong::Inputs) if rank < 2 => return Sharding::Replicated,
            Some(SplitAlong::Outputs) => rank - 2,
            Some(SplitAlong::Inputs | SplitAlong::Last) => rank.saturating_sub(1),
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
        StateShape::Cache { .. } => Sharding::by(HEADS, &layout.tensor_type(length), devices),
        StateShape::Latent { .. } | StateShape::Fixed { .. } => Sharding::Replicated,
    }
}
