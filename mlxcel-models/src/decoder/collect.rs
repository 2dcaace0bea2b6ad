//! The weights of each part of a decoder, with their roles.

use super::{
    AltUp, Attention, AttentionCore, Block, Convolution, Decoder, DeltaRule, DistanceBias, Embedding,
    Experts, GeneralizedDeltaRule, Head, HeadLinear, HeadNorm, HyperConnection, Indexer, InputStates,
    LatentAttention, LatentQuery, Laurel, Layer, LayerEmbeddings, LayerInput, Linear, Mixer, Mlp, Norm,
    Operation, OutputStates, PositionTable, Projection, Router, SelectiveScan, SharedAttention, SharedExpert,
    ShiftedMlp, ShiftedProjection, ShortConvolution, SparseAttention, StateSpace, StreamMixer, Streams,
    TypeTable, WeightId, WeightRole, Xielu,
};

impl Decoder {
    pub(super) fn collect(&self) -> Collected {
        let mut collected =
            Collected { roles: vec![None; self.weights.len()], products: Vec::new(), linears: Vec::new() };
        let Embedding { weight, scale: _, positions, types, norm, projection } = self.embedding;
        collected.product(WeightRole::Embedding, weight);
        if let Some(PositionTable { weight, offset: _ }) = positions {
            collected.add(WeightRole::Positions, [weight]);
        }
        if let Some(TypeTable { weight, rows: _ }) = types {
            collected.add(WeightRole::TokenTypes, [weight]);
        }
        norm.iter().for_each(|norm| collected.norm(norm));
        collected.linears(WeightRole::Embedding, projection);
        match &self.input_states {
            None => {}
            Some(InputStates::Projected { embedding_norm, state_norm, projection }) => {
                [embedding_norm, state_norm].into_iter().for_each(|norm| collected.norm(norm));
                collected.linears(WeightRole::Embedding, [*projection]);
            }
            Some(InputStates::Beside { embedding_norm, state_norm }) => {
                [embedding_norm].into_iter().chain(state_norm).for_each(|norm| collected.norm(norm));
            }
        }
        if let Some(embeddings) = &self.layer_embeddings {
            collected.layer_embeddings(embeddings);
        }
        match &self.streams {
            None => {}
            Some(Streams::Predicted { projections, merges, least: _ }) => {
                collected.linears(WeightRole::Embedding, projections.iter().chain(merges).copied());
            }
            Some(Streams::Connected(mixer)) => collected.stream_mixer(mixer),
        }
        for Layer { blocks, arrangement: _, altup, scale } in &self.layers {
            altup.iter().for_each(|altup| collected.altup(altup));
            collected.add(WeightRole::Norm, *scale);
            for Block {
                norm_before,
                input_scale: _,
                operation,
                norm_after,
                laurel,
                residual_scale: _,
                norm_output,
                deferred: _,
                connection,
            } in blocks
            {
                if let Some(HyperConnection { mixer, iterations: _ }) = connection {
                    collected.stream_mixer(mixer);
                }
                norm_before.iter().chain(norm_after).chain(norm_output).for_each(|norm| collected.norm(norm));
                if let Some(Laurel { left, right, norm, scale: _ }) = laurel {
                    collected.linears(WeightRole::Mlp, [*left, *right]);
                    collected.norm(norm);
                }
                match operation {
                    Operation::Mixer(mixer) => collected.mixer(mixer),
                    Operation::Mlp(mlp) => collected.mlp(mlp),
                    Operation::Experts(experts) => collected.experts(experts),
                    Operation::LayerInput(input) => {
                        collected.layer_input(input);
                    }
                }
            }
        }
        self.norm.iter().for_each(|norm| collected.norm(norm));
        if let Some(Head { projection, tied: _, scale: _, soft_cap: _ }) = self.head {
            collected.linears(WeightRole::Head, [projection]);
        }
        if let Some(OutputStates::Fused { depths: _, state_norms, joined_norm, projection }) =
            &self.output_states
        {
            state_norms.iter().chain(joined_norm).for_each(|norm| collected.norm(norm));
            collected.linears(WeightRole::Embedding, [*projection]);
        }
        collected
    }
}

/// What a walk over all parts of a decoder finds.
pub(super) struct Collected {
    /// By index.
    pub(super) roles: Vec<Option<WeightRole>>,
    pub(super) products: Vec<WeightId>,
    pub(super) linears: Vec<(WeightRole, Linear)>,
}

impl Collected {
    pub(super) fn add(&mut self, role: WeightRole, weights: impl IntoIterator<Item = WeightId>) {
        for weight in weights {
            if let Some(known) = self.roles.get_mut(weight.index()) {
                known.get_or_insert(role);
            }
        }
    }

    pub(super) fn product(&mut self, role: WeightRole, weight: WeightId) {
        self.add(role, [weight]);
        self.products.push(weight);
    }

    pub(super) fn linears(&mut self, role: WeightRole, linears: impl IntoIterator<Item = Linear>) {
        for linear in linears {
            let Linear { weight, bias, inputs: _, outputs: _ } = linear;
            self.linears.push((role, linear));
            self.product(role, weight);
            self.add(role, bias);
        }
    }

    pub(super) fn norm(&mut self, norm: &Norm) {
        let Norm { kind: _, weight, bias, epsilon: _, offset: _, width: _ } = norm;
        self.add(WeightRole::Norm, weight.iter().chain(bias).copied());
    }

    fn stream_mixer(&mut self, mixer: &StreamMixer) {
        let StreamMixer { streams: _, norm, projection, scale, base, epsilon: _ } = mixer;
        self.norm(norm);
        self.linears(WeightRole::Router, [*projection]);
        self.add(WeightRole::Router, [*scale, *base]);
    }

    fn altup(&mut self, altup: &AltUp) {
        let AltUp {
            active: _,
            norm,
            input_scale: _,
            router,
            prediction,
            correction,
            output_scale,
            input,
            input_norm,
        } = altup;
        self.linears(WeightRole::Router, [*router, *prediction, *correction]);
        self.add(WeightRole::Norm, *output_scale);
        [norm, input_norm].into_iter().for_each(|norm| self.norm(norm));
        self.layer_input(input);
    }

    fn layer_input(&mut self, input: &LayerInput) {
        let LayerInput { layer: _, activation: _, gate, projection } = *input;
        self.linears(WeightRole::Mlp, [gate, projection]);
    }

    fn layer_embeddings(&mut self, embeddings: &LayerEmbeddings) {
        let LayerEmbeddings {
            weight,
            rows: _,
            layers: _,
            width: _,
            scale: _,
            projection,
            projection_scale: _,
            norm,
            sum_scale: _,
        } = embeddings;
        self.product(WeightRole::Embedding, *weight);
        self.linears(WeightRole::Embedding, [*projection]);
        self.norm(norm);
    }

    fn convolution(&mut self, convolution: &Convolution) {
        let Convolution { weight, bias, channels: _, taps: _, activation: _ } = *convolution;
        self.add(WeightRole::Recurrence, [weight]);
        self.add(WeightRole::Recurrence, bias);
    }

    fn mixer(&mut self, mixer: &Mixer) {
        match mixer {
            Mixer::Attention(attention) => self.attention(attention),
            Mixer::Shared(shared) => {
                let SharedAttention {
                    query_heads: _,
                    head_dim: _,
                    query,
                    output,
                    query_norm,
                    source: _,
                    core,
                } = shared;
                self.linears(WeightRole::Attention, [*query, *output]);
                query_norm.iter().for_each(|norm| self.norm(norm));
                self.core(core);
            }
            Mixer::Latent(latent) => self.latent(latent),
            Mixer::Compressed(attention) => self.compressed(attention),
            Mixer::ShortConvolution(ShortConvolution { input, convolution, output }) => {
                self.linears(WeightRole::Recurrence, [*input, *output]);
                self.convolution(convolution);
            }
            Mixer::DeltaRule(mixer) => self.delta_rule(mixer),
            Mixer::StateSpace(mixer) => self.state_space(mixer),
            Mixer::SelectiveScan(mixer) => self.selective_scan(mixer),
            Mixer::GeneralizedDeltaRule(mixer) => self.generalized_delta_rule(mixer),
            Mixer::ShiftedMlp(ShiftedMlp { width: _, mix, mlp }) => {
                self.add(WeightRole::Mlp, [*mix]);
                self.mlp(mlp);
            }
        }
    }

    fn attention(&mut self, attention: &Attention) {
        let Attention {
            query_heads: _,
            kv_heads: _,
            head_dim: _,
            value_dim: _,
            query,
            key,
            value,
            gate_activation: _,
            value_scale: _,
            output,
            query_norm,
            key_norm,
            value_norm,
            clip: _,
            gate,
            output_norm,
            core,
        } = attention;
        output_norm.iter().for_each(|norm| self.norm(norm));
        self.linears(WeightRole::Attention, [*query, *key, *value, *output].into_iter().chain(*gate));
        for HeadNorm { norm, scope: _ } in query_norm.iter().chain(key_norm) {
            self.norm(norm);
        }
        value_norm.iter().for_each(|norm| self.norm(norm));
        self.core(core);
    }

    pub(super) fn core(&mut self, core: &AttentionCore) {
        let AttentionCore {
            scale: _,
            mask: _,
            window: _,
            rope: _,
            soft_cap: _,
            sinks,
            query_scale: _,
            distance,
        } = core;
        self.add(WeightRole::Attention, *sinks);
        if let Some(DistanceBias::Buckets(table)) = *distance {
            self.add(WeightRole::Attention, [table]);
        }
    }

    fn latent(&mut self, latent: &LatentAttention) {
        let LatentAttention {
            heads: _,
            plain_dim: _,
            rope_dim: _,
            value_dim: _,
            rank: _,
            query,
            down,
            norm,
            latent_scale: _,
            key_up,
            value_up,
            output,
            gate,
            scale: _,
            rope: _,
            query_scale: _,
            sparse,
        } = latent;
        match query {
            LatentQuery::Direct(query) => self.linears(WeightRole::Attention, [*query]),
            LatentQuery::Compressed { down, norm, up } => {
                self.linears(WeightRole::Attention, [*down, *up]);
                self.norm(norm);
                if let Some(SparseAttention::Indexed(indexer)) = sparse {
                    let Indexer {
                        heads: _,
                        head_dim: _,
                        count: _,
                        query,
                        key,
                        key_norm,
                        weights,
                        scale: _,
                        interleaved: _,
                    } = indexer;
                    self.linears(WeightRole::Attention, [*query, *key, *weights]);
                    self.norm(key_norm);
                }
            }
        }
        self.linears(WeightRole::Attention, [*down, *output].into_iter().chain(*gate));
        for HeadLinear { weight, transposed: _, heads: _, inputs: _, outputs: _ } in [key_up, value_up] {
            self.product(WeightRole::Attention, *weight);
        }
        self.norm(norm);
    }

    fn delta_rule(&mut self, mixer: &DeltaRule) {
        let DeltaRule {
            key_heads: _,
            value_heads: _,
            sharing: _,
            key_dim: _,
            value_dim: _,
            query,
            key,
            value,
            gate,
            gate_activation: _,
            beta,
            beta_scale: _,
            alpha,
            convolution,
            alpha_bias,
            decay,
            decay_form: _,
            decay_scope: _,
            norm,
            output,
        } = mixer;
        self.linears(WeightRole::Recurrence, [*query, *key, *value]);
        self.linears(
            WeightRole::Recurrence,
            gate.linears().chain([*beta]).chain(alpha.linears()).chain([*output]),
        );
        self.convolution(convolution);
        self.add(WeightRole::Recurrence, [*alpha_bias, *decay]);
        self.norm(norm);
    }

    fn state_space(&mut self, mixer: &StateSpace) {
        let StateSpace {
            heads: _,
            head_dim: _,
            groups: _,
            state_size: _,
            gate,
            input,
            dt,
            scales: _,
            convolution,
            dt_bias,
            dt_limits: _,
            decay,
            skip,
            norm,
            norm_first: _,
            output,
        } = mixer;
        self.linears(WeightRole::Recurrence, [*gate, *input, *dt, *output]);
        self.convolution(convolution);
        self.add(WeightRole::Recurrence, [*dt_bias, *decay, *skip]);
        norm.iter().for_each(|norm| self.norm(norm));
    }

    fn selective_scan(&mut self, mixer: &SelectiveScan) {
        let SelectiveScan {
            channels: _,
            state_size: _,
            input,
            gate,
            convolution,
            rank,
            state_input,
            state_output,
            norms,
            step,
            decay,
            skip,
            output,
        } = mixer;
        let linears = [*input, *gate, *rank, *state_input, *state_output, *step, *output];
        self.linears(WeightRole::Recurrence, linears);
        self.convolution(convolution);
        self.add(WeightRole::Recurrence, [*decay, *skip]);
        norms.iter().flatten().for_each(|norm| self.norm(norm));
    }

    fn generalized_delta_rule(&mut self, mixer: &GeneralizedDeltaRule) {
        let GeneralizedDeltaRule {
            width: _,
            heads: _,
            head_dim: _,
            query,
            key,
            value,
            value_mix,
            decay,
            decay_bound: _,
            rate,
            gate,
            removal_scale,
            rate_scale,
            bonus,
            norm,
            output,
        } = mixer;
        for ShiftedProjection { mix, projection } in [query, key, value, decay, rate, gate] {
            self.add(WeightRole::Recurrence, [*mix]);
            self.linears(WeightRole::Recurrence, projection.linears());
        }
        let value_mix = value_mix.iter().flat_map(Projection::linears);
        self.linears(WeightRole::Recurrence, value_mix.chain([*output]));
        self.add(WeightRole::Recurrence, [*removal_scale, *rate_scale, *bonus]);
        self.norm(norm);
    }

    fn mlp(&mut self, mlp: &Mlp) {
        match *mlp {
            Mlp::Gated { gating: _, gate, up, norm, down } => {
                self.linears(WeightRole::Mlp, [gate, up, down]);
                norm.iter().for_each(|norm| self.norm(norm));
            }
            Mlp::Plain { activation: _, up, down } => self.linears(WeightRole::Mlp, [up, down]),
            Mlp::Xielu { activation, up, down } => {
                let Xielu { positive, negative, beta, epsilon } = activation;
                self.linears(WeightRole::Mlp, [up, down]);
                self.add(WeightRole::Mlp, [positive, negative, beta, epsilon]);
            }
        }
    }

    fn experts(&mut self, experts: &Experts) {
        let Experts {
            count: _,
            identities: _,
            chosen: _,
            router,
            norm_before,
            gating: _,
            gate,
            up,
            down,
            norm_after,
            shared,
            output_bias,
        } = *experts;
        let Router {
            norm,
            input_scale: _,
            projection,
            scoring: _,
            selection_bias,
            ranks_logits: _,
            by_token,
            groups: _,
            normalised: _,
            normaliser: _,
            scale: _,
            weighs_inputs: _,
            expert_scales,
        } = router;
        norm.iter().chain(&norm_before).chain(&norm_after).for_each(|norm| self.norm(norm));
        self.linears(WeightRole::Router, [projection]);
        self.add(WeightRole::Router, selection_bias.into_iter().chain(by_token).chain(expert_scales));
        self.linears(WeightRole::Experts, [gate, up, down]);
        self.add(WeightRole::Experts, output_bias);
        if let Some(SharedExpert { norm_before, mlp, norm_after, gate }) = shared {
            norm_before.iter().chain(&norm_after).for_each(|norm| self.norm(norm));
            self.mlp(&mlp);
            self.linears(WeightRole::Mlp, gate);
        }
    }
}
