//! Interprets a [`Decoder`]: walks over its layers and calls an engine's [`Ops`] for each operation.
//!
//! Engines that generate graphs and engines that compute eagerly share it; only their operations differ.

mod compressed;
mod experts;
mod latent;
mod mixers;
mod ops;
mod shifted;
mod streams;

pub use ops::{DeltaRuleOperands, Entries, Ops};

use crate::decoder::{
    Activation, Arrangement, Block, Decoder, Embedding, Head, InputStates, LatentAttention, Layer,
    LayerEmbeddings, LayerInput, Linear, Mixer, Mlp, Norm, Operation, OutputStates, SparseAttention,
    StateSlot, WeightId, Xielu,
};

/// A walk over a decoder, with everything that can be precomputed.
#[derive(Clone, Debug, PartialEq)]
pub struct Walk {
    /// For each mixer, where its states lie, or those that it reads of another.
    slots: Vec<Vec<StateSlot>>,
    /// Whether the last mixer is the place behind which only the wanted tokens are computed.
    selects: bool,
}

/// The hidden states of a pass.
#[derive(Clone, Debug)]
pub struct Hidden<V> {
    /// Those of the wanted tokens after the last norm, `[wanted tokens, hidden]`.
    pub wanted: V,
    /// [Those of all tokens](Decoder::output_states) that the decoder returns, if it returns any.
    pub states: Option<V>,
}

/// The stream in a walk, and what is left of it.
struct Stream<V> {
    hidden: V,
    /// What the first block's operation reads beside the stream, before it has run.
    beside: Option<V>,
    /// All streams, if there are several.
    all: Vec<V>,
    /// The inputs of all layers, beside each other, if layers have their own.
    inputs: Option<V>,
    /// How many mixers have run.
    mixers: usize,
    /// The values of the first mixer whose values later ones read.
    first_values: Option<V>,
}

impl Walk {
    /// The walk over `decoder`.
    pub fn new(decoder: &Decoder) -> Self {
        let own = decoder.state_slots();
        let slots = decoder.mixers().zip(&own).map(|(mixer, slots)| match mixer {
            Mixer::Shared(shared) => own.get(shared.source).unwrap_or(slots).clone(),
            // The keys that its positions were selected by come first, as those of an indexer of its own.
            Mixer::Latent(LatentAttention { sparse: Some(SparseAttention::Shared { source }), .. }) => {
                own.get(*source).and_then(|source| source.first()).into_iter().chain(slots).copied().collect()
            }
            _ => slots.clone(),
        });
        Self { slots: slots.collect(), selects: !decoder.returns_last_states() }
    }

    /// The hidden states of the pass of `ops`. `decoder` must be the decoder of [`new`](Self::new).
    ///
    /// # Errors
    ///
    /// The errors of the operations.
    pub fn hidden<O: Ops>(&self, decoder: &Decoder, ops: &mut O) -> Result<Hidden<O::Value>, O::Error> {
        let embedded = embed(&decoder.embedding, ops)?;
        let (hidden, beside) = match &decoder.input_states {
            None => (embedded, None),
            Some(InputStates::Projected { embedding_norm, state_norm, projection }) => {
                (project_states([embedding_norm, state_norm], projection, &embedded, ops)?, None)
            }
            Some(InputStates::Beside { embedding_norm, state_norm }) => {
                let embedded = ops.norm(&embedded, embedding_norm)?;
                let states = ops.input_states()?;
                (normed(state_norm.as_ref(), &states, ops)?, Some(embedded))
            }
        };
        let inputs = decoder.layer_embeddings.as_ref();
        let inputs =
            inputs.map(|inputs| embed_layers(inputs, decoder.vocabulary_size, &hidden, ops)).transpose()?;
        let several = decoder.streams.as_ref();
        let all = several.map_or(Ok(Vec::new()), |several| streams::split(several, &hidden, ops))?;
        let mut stream = Stream { hidden, beside, all, inputs, mixers: 0, first_values: None };
        if self.slots.is_empty() && self.selects {
            stream.select(ops)?;
        }
        let mut fused = Vec::new();
        for (depth, layer) in decoder.layers.iter().enumerate() {
            fused.extend(stream.at(depth, decoder));
            let Layer { blocks, arrangement, altup, scale } = layer;
            if let Some(altup) = altup {
                streams::predict(altup, &mut stream, ops)?;
            }
            match arrangement {
                Arrangement::Sequential => self.sequential(blocks, &mut stream, ops)?,
                Arrangement::Parallel => self.parallel(blocks, &mut stream, ops)?,
            }
            if let Some(altup) = altup {
                streams::correct(altup, &mut stream, ops)?;
            }
            if let Some(scale) = scale {
                stream.hidden = multiplied(&stream.hidden, *scale, ops)?;
            }
        }
        if let Some(several) = several {
            stream.hidden = streams::merge(several, &stream.all, ops)?;
        }
        fused.extend(stream.at(decoder.layers.len(), decoder));
        let states = match &decoder.output_states {
            None => None,
            Some(OutputStates::Normed) => {
                let states = normed(decoder.norm.as_ref(), &stream.hidden, ops)?;
                return Ok(Hidden { wanted: ops.select(&states)?, states: Some(states) });
            }
            Some(OutputStates::BeforeNorm) => Some(stream.hidden.clone()),
            Some(OutputStates::Fused { depths: _, state_norms, joined_norm, projection }) => {
                for (state, norm) in fused.iter_mut().zip(state_norms) {
                    *state = ops.norm(state, norm)?;
                }
                let fused = ops.concatenate(&fused)?;
                let fused = normed(joined_norm.as_ref(), &fused, ops)?;
                Some(ops.linear(&fused, projection)?)
            }
        };
        if !self.selects {
            stream.hidden = ops.select(&stream.hidden)?;
        }
        Ok(Hidden { wanted: normed(decoder.norm.as_ref(), &stream.hidden, ops)?, states })
    }

    /// The logits (`[tokens, `[`Decoder::logits`]`]`) of [hidden states](Self::hidden) by the `head` of the
    /// decoder.
    ///
    /// # Errors
    ///
    /// The errors of the operations.
    pub fn logits<O: Ops>(&self, head: &Head, hidden: &O::Value, ops: &mut O) -> Result<O::Value, O::Error> {
        let Head { projection, tied: _, scale, soft_cap } = head;
        let logits = ops.linear(hidden, projection)?;
        let logits = scaled(logits, *scale, ops)?;
        match soft_cap {
            Some(cap) => ops.soft_cap(&logits, *cap),
            None => Ok(logits),
        }
    }

    fn sequential<O: Ops>(
        &self,
        blocks: &[Block],
        stream: &mut Stream<O::Value>,
        ops: &mut O,
    ) -> Result<(), O::Error> {
        // What is added behind the last block, and the norm of the stream as a deferred block left it.
        let mut deferred: Option<O::Value> = None;
        let mut unchanged: Option<(Norm, O::Value)> = None;
        for block in blocks {
            let Block {
                norm_before,
                input_scale,
                operation,
                norm_after,
                laurel,
                residual_scale,
                norm_output,
                deferred: is_deferred,
                connection,
            } = block;
            let mut mixes = match connection {
                Some(connection) => Some(streams::collapse(connection, stream, ops)?),
                None => None,
            };
            let input = match (norm_before, unchanged.take()) {
                (Some(norm), Some((known, value))) if known == *norm => value,
                _ => normed(norm_before.as_ref(), &stream.hidden, ops)?,
            };
            let input = match stream.beside.take() {
                Some(beside) => ops.concatenate(&[beside, input])?,
                None => input,
            };
            if *is_deferred {
                unchanged = norm_before.map(|norm| (norm, input.clone()));
            }
            let input = scaled(input, *input_scale, ops)?;
            // What the operation reads of the tokens that come out.
            let mut read = input.clone();
            let result = match operation {
                Operation::Mixer(mixer) => {
                    let (slots, last) = self.next_mixer(stream);
                    if last {
                        stream.select(ops)?;
                        mixes = mixes.map(|mixes| mixes.select(ops)).transpose()?;
                        deferred = deferred.map(|value| ops.select(&value)).transpose()?;
                        unchanged = None;
                        read = if laurel.is_some() { ops.select(&read)? } else { read };
                    }
                    mixers::mix(mixer, &input, slots, last, &mut stream.first_values, ops)?
                }
                Operation::Mlp(mlp) => run_mlp(mlp, &input, ops)?,
                Operation::Experts(experts) => experts::run(experts, &input, self.is_narrow(stream), ops)?,
                Operation::LayerInput(own) => read_input(own, &input, stream.inputs.as_ref(), ops)?,
            };
            let result = finish(result, norm_after.as_ref(), *residual_scale, ops)?;
            if let Some(mixes) = mixes {
                streams::expand(&mixes, &result, stream, ops)?;
                continue;
            }
            if *is_deferred {
                deferred = Some(match deferred {
                    Some(others) => ops.add(&others, &result)?,
                    None => result,
                });
                continue;
            }
            stream.hidden = ops.add(&stream.hidden, &result)?;
            if let Some(laurel) = laurel {
                stream.hidden = streams::augment(laurel, &stream.hidden, &read, ops)?;
            }
            if let Some(norm) = norm_output {
                stream.hidden = ops.norm(&stream.hidden, norm)?;
            }
        }
        if let Some(deferred) = deferred {
            stream.hidden = ops.add(&stream.hidden, &deferred)?;
        }
        Ok(())
    }

    fn parallel<O: Ops>(
        &self,
        blocks: &[Block],
        stream: &mut Stream<O::Value>,
        ops: &mut O,
    ) -> Result<(), O::Error> {
        // What blocks read: the stream as it came in, and the norm of it that was taken last.
        let mut whole = stream.hidden.clone();
        let mut normed: Option<(Norm, O::Value)> = None;
        for block in blocks {
            // Only sequential layers have norms of the stream, residuals of low rank, deferred results, and
            // connections.
            let Block {
                norm_before,
                input_scale,
                operation,
                norm_after,
                laurel: _,
                residual_scale,
                norm_output: _,
                deferred: _,
                connection: _,
            } = block;
            let input = match (norm_before, &normed) {
                (None, _) => whole.clone(),
                (Some(norm), Some((known, value))) if known == norm => value.clone(),
                (Some(norm), _) => {
                    let value = ops.norm(&whole, norm)?;
                    normed = Some((*norm, value.clone()));
                    value
                }
            };
            let input = scaled(input, *input_scale, ops)?;
            let result = match operation {
                Operation::Mixer(mixer) => {
                    let (slots, last) = self.next_mixer(stream);
                    if last {
                        stream.select(ops)?;
                        whole = ops.select(&whole)?;
                        if let Some((_, value)) = &mut normed {
                            *value = ops.select(value)?;
                        }
                    }
                    mixers::mix(mixer, &input, slots, last, &mut stream.first_values, ops)?
                }
                Operation::Mlp(mlp) => run_mlp(mlp, &input, ops)?,
                Operation::Experts(experts) => experts::run(experts, &input, self.is_narrow(stream), ops)?,
                Operation::LayerInput(own) => read_input(own, &input, stream.inputs.as_ref(), ops)?,
            };
            let result = finish(result, norm_after.as_ref(), *residual_scale, ops)?;
            stream.hidden = ops.add(&stream.hidden, &result)?;
        }
        Ok(())
    }

    /// Whether only the wanted tokens are left in the stream.
    fn is_narrow<V>(&self, stream: &Stream<V>) -> bool {
        self.selects && stream.mixers == self.slots.len()
    }

    /// The states of the mixer that comes next, and whether it is the last one.
    fn next_mixer<V>(&self, stream: &mut Stream<V>) -> (&[StateSlot], bool) {
        let slots = self.slots.get(stream.mixers).map(Vec::as_slice).unwrap_or_default();
        stream.mixers += 1;
        (slots, self.is_narrow(stream))
    }
}

impl<V: Clone> Stream<V> {
    /// The stream, if it is at one of the depths whose states the decoder returns.
    fn at(&self, depth: usize, decoder: &Decoder) -> Option<V> {
        match &decoder.output_states {
            Some(OutputStates::Fused { depths, .. }) if depths.contains(&depth) => Some(self.hidden.clone()),
            _ => None,
        }
    }

    /// Leaves only the wanted tokens.
    fn select<O: Ops<Value = V>>(&mut self, ops: &mut O) -> Result<(), O::Error> {
        self.hidden = ops.select(&self.hidden)?;
        for stream in &mut self.all {
            *stream = ops.select(stream)?;
        }
        if let Some(inputs) = &mut self.inputs {
            *inputs = ops.select(inputs)?;
        }
        Ok(())
    }
}

/// `x` times the factor in a weight of one element.
fn multiplied<O: Ops>(x: &O::Value, factor: WeightId, ops: &mut O) -> Result<O::Value, O::Error> {
    let factor = ops.vector(factor)?;
    ops.multiply(x, &factor)
}

/// The inputs of all layers for the embedded tokens `x`.
fn embed_layers<O: Ops>(
    embeddings: &LayerEmbeddings,
    vocabulary: usize,
    x: &O::Value,
    ops: &mut O,
) -> Result<O::Value, O::Error> {
    let LayerEmbeddings {
        weight,
        rows,
        layers,
        width: _,
        scale,
        projection,
        projection_scale,
        norm,
        sum_scale,
    } = embeddings;
    let embedded = if *rows < vocabulary { ops.embed_within(*weight, *rows)? } else { ops.embed(*weight)? };
    let embedded = scaled(embedded, *scale, ops)?;
    let projected = ops.linear(x, projection)?;
    let projected = scaled(projected, *projection_scale, ops)?;
    let projected = ops.split_heads(&projected, *layers)?;
    let projected = ops.norm(&projected, norm)?;
    let projected = ops.join_heads(&projected)?;
    let sum = ops.add(&projected, &embedded)?;
    scaled(sum, *sum_scale, ops)
}

fn read_input<O: Ops>(
    own: &LayerInput,
    x: &O::Value,
    inputs: Option<&O::Value>,
    ops: &mut O,
) -> Result<O::Value, O::Error> {
    let LayerInput { layer, activation, gate, projection } = own;
    let width = gate.outputs;
    let gate = ops.linear(x, gate)?;
    let mut gated = ops.activate(&gate, *activation)?;
    if let Some(inputs) = inputs {
        let input = ops.slice(inputs, layer * width, (layer + 1) * width)?;
        gated = ops.multiply(&gated, &input)?;
    }
    ops.linear(&gated, projection)
}

fn embed<O: Ops>(embedding: &Embedding, ops: &mut O) -> Result<O::Value, O::Error> {
    let Embedding { weight, scale, positions, types, norm, projection } = embedding;
    let hidden = ops.embed(*weight)?;
    let mut hidden = scaled(hidden, *scale, ops)?;
    if let Some(positions) = positions {
        let rows = ops.embed_positions(positions.weight, positions.offset)?;
        hidden = ops.add(&hidden, &rows)?;
    }
    if let Some(types) = types {
        let rows = ops.embed_types(types.weight)?;
        hidden = ops.add(&hidden, &rows)?;
    }
    let hidden = normed(norm.as_ref(), &hidden, ops)?;
    match projection {
        Some(projection) => ops.linear(&hidden, projection),
        None => Ok(hidden),
    }
}

/// What enters the layer of a draft head for the `embedded` tokens: a projection of them and the states.
fn project_states<O: Ops>(
    [embedding_norm, state_norm]: [&Norm; 2],
    projection: &Linear,
    embedded: &O::Value,
    ops: &mut O,
) -> Result<O::Value, O::Error> {
    let embedded = ops.norm(embedded, embedding_norm)?;
    let states = ops.input_states()?;
    let states = ops.norm(&states, state_norm)?;
    let joined = ops.concatenate(&[embedded, states])?;
    ops.linear(&joined, projection)
}

/// What a block adds to the stream.
fn finish<O: Ops>(
    result: O::Value,
    norm: Option<&Norm>,
    residual_scale: f32,
    ops: &mut O,
) -> Result<O::Value, O::Error> {
    let result = normed(norm, &result, ops)?;
    scaled(result, residual_scale, ops)
}

/// `x` after a norm, if there is one.
fn normed<O: Ops>(norm: Option<&Norm>, x: &O::Value, ops: &mut O) -> Result<O::Value, O::Error> {
    norm.map_or_else(|| Ok(x.clone()), |norm| ops.norm(x, norm))
}

/// `x` times `factor`, which is often one.
fn scaled<O: Ops>(x: O::Value, factor: f32, ops: &mut O) -> Result<O::Value, O::Error> {
    if factor == 1.0 { Ok(x) } else { ops.scale(&x, factor) }
}

fn xielu<O: Ops>(activation: &Xielu, x: &O::Value, ops: &mut O) -> Result<O::Value, O::Error> {
    let Xielu { positive, negative, beta, epsilon } = activation;
    let beta = ops.vector(*beta)?;
    let [positive, negative] = [positive, negative].map(|weight| {
        let weight = ops.vector(*weight)?;
        ops.activate(&weight, Activation::Softplus)
    });
    let negative = ops.add(&negative?, &beta)?;
    let above = ops.activate(x, Activation::Relu)?;
    let square = ops.multiply(&above, &above)?;
    let square = ops.multiply(&square, &positive?)?;
    let linear = ops.multiply(x, &beta)?;
    let epsilon = ops.vector(*epsilon)?;
    let below = ops.exp_below(x, &epsilon)?;
    let below = ops.multiply(&below, &negative)?;
    let sum = ops.add(&square, &linear)?;
    ops.add(&sum, &below)
}

fn run_mlp<O: Ops>(mlp: &Mlp, x: &O::Value, ops: &mut O) -> Result<O::Value, O::Error> {
    match mlp {
        Mlp::Gated { gating, gate, up, norm, down } => {
            let gate = ops.linear(x, gate)?;
            let up = ops.linear(x, up)?;
            let mut gated = ops.gate(*gating, &gate, &up)?;
            if let Some(norm) = norm {
                gated = ops.norm(&gated, norm)?;
            }
            ops.linear(&gated, down)
        }
        Mlp::Plain { activation, up, down } => {
            let up = ops.linear(x, up)?;
            let active = ops.activate(&up, *activation)?;
            ops.linear(&active, down)
        }
        Mlp::Xielu { activation, up, down } => {
            let up = ops.linear(x, up)?;
            let active = xielu(activation, &up, ops)?;
            ops.linear(&active, down)
        }
    }
}
