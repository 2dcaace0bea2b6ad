//! Which weights are multiplied with.

use super::{
    Attention, Decoder, DeltaRule, Experts, HeadLinear, LatentAttention, LatentQuery, Linear, Mixer, Mlp,
    Operation, Router, SharedExpert, ShortConvolution, StateSpace, WeightId,
};

impl Decoder {
    /// The weights that may be quantized, in the order of the table: those of every product, and the table of token embeddings. Others
    /// (norms, biases, convolutions, numbers of each head) are few, and their shapes say nothing about them.
    pub fn products(&self) -> Vec<WeightId> {
        let mut found = vec![self.embedding.weight, self.head.projection.weight];
        for block in self.layers.iter().flat_map(|layer| &layer.blocks) {
            match &block.operation {
                Operation::Mixer(mixer) => mixer_products(mixer, &mut found),
                Operation::Mlp(mlp) => found.extend(mlp_products(mlp)),
                Operation::Experts(experts) => {
                    let Experts { count: _, chosen: _, router, gating: _, gate, up, down, shared } = experts;
                    let Router {
                        projection,
                        scoring: _,
                        selection_bias: _,
                        groups: _,
                        normalised: _,
                        normaliser: _,
                        scale: _,
                    } = router;
                    found.extend([projection, gate, up, down].map(weight));
                    if let Some(SharedExpert { mlp, gate }) = shared {
                        found.extend(mlp_products(mlp));
                        found.extend(gate.iter().map(weight));
                    }
                }
            }
        }
        found.sort_unstable();
        found.dedup();
        found
    }
}

fn weight(linear: &Linear) -> WeightId {
    linear.weight
}

fn mlp_products(mlp: &Mlp) -> Vec<WeightId> {
    match mlp {
        Mlp::Gated { gating: _, gate, up, down } => [gate, up, down].map(weight).to_vec(),
        Mlp::Plain { activation: _, up, down } => [up, down].map(weight).to_vec(),
    }
}

fn mixer_products(mixer: &Mixer, found: &mut Vec<WeightId>) {
    match mixer {
        Mixer::Attention(attention) => {
            let Attention {
                query_heads: _,
                kv_heads: _,
                head_dim: _,
                query,
                key,
                value,
                output,
                query_norm: _,
                key_norm: _,
                clip: _,
                gate,
                core: _,
            } = attention;
            found.extend([query, key, value, output].map(weight));
            found.extend(gate.iter().map(weight));
        }
        Mixer::Latent(latent) => {
            let LatentAttention {
                heads: _,
                plain_dim: _,
                rope_dim: _,
                value_dim: _,
                rank: _,
                query,
                down,
                norm: _,
                key_up,
                value_up,
                output,
                scale: _,
                rope: _,
            } = latent;
            match query {
                LatentQuery::Direct(query) => found.push(query.weight),
                LatentQuery::Compressed { down, norm: _, up } => found.extend([down, up].map(weight)),
            }
            found.extend([down, output].map(weight));
            found.extend([key_up, value_up].map(|linear: &HeadLinear| linear.weight));
        }
        Mixer::ShortConvolution(ShortConvolution { input, convolution: _, output }) => {
            found.extend([input, output].map(weight));
        }
        Mixer::DeltaRule(rule) => {
            let DeltaRule {
                key_heads: _,
                value_heads: _,
                key_dim: _,
                value_dim: _,
                query,
                key,
                value,
                gate,
                beta,
                alpha,
                convolution: _,
                alpha_bias: _,
                decay: _,
                norm: _,
                output,
            } = rule;
            found.extend([query, key, value, gate, beta, alpha, output].map(weight));
        }
        Mixer::StateSpace(space) => {
            let StateSpace {
                heads: _,
                head_dim: _,
                groups: _,
                state_size: _,
                gate,
                input,
                dt,
                convolution: _,
                dt_bias: _,
                dt_limits: _,
                decay: _,
                skip: _,
                norm: _,
                output,
            } = space;
            found.extend([gate, input, dt, output].map(weight));
        }
    }
}
