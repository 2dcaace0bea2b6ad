//! Tensor parallelism by roles: along which dimension each weight of a network is split over devices
//! (Megatron-LM, Shoeybi et al., 2019).
//!
//! Projections that widen (query, key, value, gate, up) are split by their outputs, those that narrow again
//! (output, down) by their inputs: so a block adds up once over the devices, behind the latter. Heads stay
//! whole. The table of embeddings and the head are split by the vocabulary.

use std::collections::HashMap;

use crate::decoder::{
    Attention, Decoder, DistanceBias, Experts, LatentAttention, LatentQuery, Linear, Mixer, Mlp, Operation,
    SharedExpert, WeightId,
};

/// The dimension of a weight that devices share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SplitAlong {
    /// The outputs of `[.., outputs, inputs]`.
    Outputs,
    /// The inputs.
    Inputs,
    /// The first dimension, such as heads or the vocabulary.
    First,
    /// The last, such as of a bias over outputs.
    Last,
}

impl Decoder {
    /// Along which dimension each weight is split where `devices` share the network; those that are not
    /// listed are on each device. Whether a dimension divides evenly is for the caller to see, but for
    /// heads: where those do not, their weights are not listed.
    ///
    /// ```no_run
    /// # fn main() -> mlxcel_core::Result<()> {
    /// let decoder = mlxcel_models::Checkpoint::open("models/llama")?.decoder()?;
    /// let splits = decoder.tensor_parallel(2);
    /// println!("{:?}", splits.get(&decoder.embedding.weight)); // Some(First): by the vocabulary
    /// # Ok(())
    /// # }
    /// ```
    pub fn tensor_parallel(&self, devices: usize) -> HashMap<WeightId, SplitAlong> {
        let mut roles = Roles { along: HashMap::new(), devices };
        if devices > 1 {
            roles.decoder(self);
        }
        roles.along
    }
}

struct Roles {
    along: HashMap<WeightId, SplitAlong>,
    devices: usize,
}

impl Roles {
    fn decoder(&mut self, decoder: &Decoder) {
        self.along.insert(decoder.embedding.weight, SplitAlong::First);
        if let Some(head) = decoder.head {
            self.along.insert(head.projection.weight, SplitAlong::First);
        }
        for block in decoder.layers.iter().flat_map(|layer| &layer.blocks) {
            match &block.operation {
                Operation::Mixer(Mixer::Attention(attention)) => self.attention(attention),
                Operation::Mixer(Mixer::Shared(shared))
                    if shared.query_heads.is_multiple_of(self.devices) =>
                {
                    self.outputs([&shared.query]);
                    self.along.insert(shared.output.weight, SplitAlong::Inputs);
                    self.along.extend(shared.core.sinks.map(|sinks| (sinks, SplitAlong::First)));
                }
                Operation::Mixer(Mixer::Shared(_)) | Operation::LayerInput(_) => {}
                Operation::Mixer(Mixer::Latent(latent)) => self.latent(latent),
                // One head's keys are read by all heads, whose results are grouped.
                Operation::Mixer(Mixer::Compressed(_)) => {}
                // Their channels belong together in ways of their own.
                Operation::Mixer(
                    Mixer::ShortConvolution(_)
                    | Mixer::DeltaRule(_)
                    | Mixer::StateSpace(_)
                    | Mixer::SelectiveScan(_)
                    | Mixer::GeneralizedDeltaRule(_),
                ) => {}
                Operation::Mixer(Mixer::ShiftedMlp(shifted)) => self.mlp(&shifted.mlp),
                Operation::Mlp(mlp) => self.mlp(mlp),
                Operation::Experts(experts) => self.experts(experts),
            }
        }
    }

    fn attention(&mut self, attention: &Attention) {
        if attention.query_heads.is_multiple_of(self.devices) {
            self.outputs([attention.query].iter().chain(&attention.gate));
            self.along.insert(attention.output.weight, SplitAlong::Inputs);
            self.along.extend(attention.core.sinks.map(|sinks| (sinks, SplitAlong::First)));
            if let Some(DistanceBias::Buckets(table)) = attention.core.distance {
                self.along.insert(table, SplitAlong::Last);
            }
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
            self.along.extend([&latent.key_up, &latent.value_up].map(|up| (up.weight, SplitAlong::First)));
            self.along.insert(latent.output.weight, SplitAlong::Inputs);
        }
    }

    fn mlp(&mut self, mlp: &Mlp) {
        match mlp {
            Mlp::Gated { gate, up, down, gating: _, norm: _ } => {
                self.outputs([gate, up]);
                self.along.insert(down.weight, SplitAlong::Inputs);
            }
            Mlp::Plain { up, down, activation: _ } | Mlp::Xielu { up, down, activation: _ } => {
                self.outputs([up]);
                self.along.insert(down.weight, SplitAlong::Inputs);
            }
        }
    }

    fn experts(&mut self, experts: &Experts) {
        self.outputs([&experts.gate, &experts.up]);
        self.along.insert(experts.down.weight, SplitAlong::Inputs);
        if let Some(SharedExpert { mlp, .. }) = &experts.shared {
            self.mlp(mlp);
        }
    }

    fn outputs<'a>(&mut self, linears: impl IntoIterator<Item = &'a Linear>) {
        for linear in linears {
            self.along.insert(linear.weight, SplitAlong::Outputs);
            self.along.extend(linear.bias.map(|bias| (bias, SplitAlong::Last)));
        }
    }
}
