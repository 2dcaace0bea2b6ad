//! A decoder as operations on arrays.

use std::rc::Rc;

use mlxcel_core::{Error, Result};
use mlxcel_models::{Activation, Attention, Decoder, Linear, Mixer, Norm, Rope};

use super::cache::{Cache, LayerLayout, Layout};
use super::ops::{Masks, Ops, embed};
use super::rotary::{Rotary, Turn};
use super::weights::{Weight, Weights};
use crate::array::{Array, DType, concatenate};

/// The element types that a network runs with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Numerics {
    /// Of activations.
    pub(super) activation: DType,
    /// Of keys and values in caches.
    pub(super) kv: DType,
}

/// A decoder with its weights.
pub(super) struct Network {
    pub(super) ops: Ops,
    embedding: Rc<Weight>,
    layers: Vec<NetworkLayer>,
    norm: RmsNorm,
    head: Rc<Weight>,
    /// The rotary embeddings in use, each once.
    ropes: Vec<Rotary>,
    pub(super) layout: Layout,
    pub(super) numerics: Numerics,
}

struct NetworkLayer {
    mixer_norm: RmsNorm,
    attention: NetworkAttention,
    mlp_norm: RmsNorm,
    gate: Projection,
    up: Projection,
    down: Projection,
    activation: Activation,
}

struct NetworkAttention {
    query_heads: usize,
    scale: f32,
    /// The index of its rotary embedding.
    rope: usize,
    query: Projection,
    key: Projection,
    value: Projection,
    output: Projection,
}

struct Projection {
    weight: Rc<Weight>,
    bias: Option<Array>,
}

struct RmsNorm {
    weight: Array,
    epsilon: f32,
}

/// The part of one sequence among the tokens that run together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    /// The index of its first token.
    pub(super) start: usize,
    pub(super) count: usize,
    /// Where its first token stands in its sequence.
    pub(super) position: usize,
}

/// What layers need besides activations: computed once for all of them.
struct Surroundings<'a> {
    spans: &'a [Span],
    /// Each rotary embedding at the positions of the spans.
    turns: Vec<Turn<'a>>,
    masks: Masks,
}

impl Network {
    /// The network of `decoder`; `rotates` where caches of sliding windows keep the window alone.
    pub(super) fn new(
        decoder: &Decoder,
        weights: &Weights,
        ops: Ops,
        numerics: Numerics,
        rotates: bool,
    ) -> Result<Self> {
        let mut ropes = Vec::new();
        let (mut layers, mut layouts) = (Vec::new(), Vec::new());
        for layer in &decoder.layers {
            let Mixer::Attention(attention) = &layer.mixer else {
                return Err(Error::unsupported("load model", "of mixers, only attention is computed"));
            };
            layouts.push(LayerLayout {
                kv_heads: attention.kv_heads,
                head_dim: attention.head_dim,
                window: attention.window,
                rotates: rotates && attention.window.is_some(),
            });
            layers.push(NetworkLayer {
                mixer_norm: RmsNorm::new(&layer.mixer_norm, weights)?,
                attention: NetworkAttention::new(attention, weights, &mut ropes)?,
                mlp_norm: RmsNorm::new(&layer.mlp_norm, weights)?,
                gate: Projection::new(&layer.mlp.gate, weights)?,
                up: Projection::new(&layer.mlp.up, weights)?,
                down: Projection::new(&layer.mlp.down, weights)?,
                activation: layer.mlp.activation,
            });
        }
        // Where activations are rounded more coarsely than MLX's own angles.
        let fused = numerics.activation != DType::F32;
        Ok(Self {
            ops,
            embedding: weights.get(&decoder.embedding.weight)?,
            layers,
            norm: RmsNorm::new(&decoder.norm, weights)?,
            head: weights.get(&decoder.head.weight)?,
            ropes: ropes.iter().map(|rope| Rotary::new(rope, fused)).collect::<Result<_>>()?,
            layout: Layout { layers: layouts, element: numerics.kv },
            numerics,
        })
    }

    /// The hidden states (`[wanted, hidden]`, not yet normed) of `tokens`, those of all spans one behind the other, and each span's
    /// cache with its positions in it. `wanted` are the indices of the tokens whose states are asked for; all where none are given.
    pub(super) fn run(
        &self,
        tokens: &Array,
        spans: &[Span],
        caches: &[Option<&Cache>],
        wanted: Option<&Array>,
    ) -> Result<(Array, Vec<Cache>)> {
        let mut around = Surroundings {
            spans,
            turns: self.ropes.iter().map(|rope| rope.at(spans)).collect::<Result<_>>()?,
            masks: Masks::default(),
        };
        let mut filled: Vec<Cache> = spans.iter().map(|_| Cache::default()).collect();
        let mut hidden = embed(&self.embedding, tokens, self.numerics.activation)?;
        for (index, layer) in self.layers.iter().enumerate() {
            let normed = layer.mixer_norm.apply(&self.ops, &hidden)?;
            let mut mixed =
                self.attend(index, &layer.attention, &normed, &mut around, caches, &mut filled)?;
            // From here on positions do not see each other.
            if let Some(wanted) = wanted.filter(|_| index + 1 == self.layers.len()) {
                (hidden, mixed) = (hidden.take(wanted, 0)?, mixed.take(wanted, 0)?);
            }
            hidden = hidden.add(&layer.attention.output.apply(&self.ops, &mixed)?)?;
            let normed = layer.mlp_norm.apply(&self.ops, &hidden)?;
            hidden = hidden.add(&layer.mlp(&self.ops, &normed)?)?;
        }
        Ok((hidden, filled))
    }

    /// The logits (`[rows, vocabulary]`, float32) of hidden states (`[rows, hidden]`).
    pub(super) fn logits(&self, hidden: &Array) -> Result<Array> {
        self.ops.linear(&self.norm.apply(&self.ops, hidden)?, &self.head, None)?.astype(DType::F32)
    }

    /// The bytes that [`run`](Self::run) sends to the device besides tokens.
    pub(super) fn uploaded_bytes(&self, tokens: usize) -> usize {
        self.ropes.iter().map(|rope| rope.uploaded_bytes(tokens)).sum()
    }

    /// Attention of each span over its own cache, into which its keys and values go first; not yet projected.
    fn attend(
        &self,
        index: usize,
        attention: &NetworkAttention,
        x: &Array,
        around: &mut Surroundings<'_>,
        caches: &[Option<&Cache>],
        filled: &mut [Cache],
    ) -> Result<Array> {
        let layout = self.layout.layers[index];
        let heads = |projection: &Projection, heads: usize| -> Result<Array> {
            projection.apply(&self.ops, x)?.reshape(&[x.dim(0), heads, layout.head_dim])
        };
        let turn = |x: &Array| around.turns[attention.rope].apply(&self.ops, x, around.spans);
        let query = turn(&heads(&attention.query, attention.query_heads)?)?;
        let key = turn(&heads(&attention.key, layout.kv_heads)?)?.astype(self.numerics.kv)?;
        let value = heads(&attention.value, layout.kv_heads)?.astype(self.numerics.kv)?;
        let mut mixed = Vec::with_capacity(around.spans.len());
        for (number, (span, cache)) in around.spans.iter().zip(caches).enumerate() {
            let own = |x: &Array| heads_first(x, span);
            let before = cache.and_then(|cache| cache.layers.get(index));
            let (layer, visible) =
                layout.extend(before, span.position, &own(&key)?, &own(&value)?, self.numerics.kv)?;
            filled[number].layers.push(layer);
            let own = query.slice_axis(0, span.start, span.start + span.count)?;
            mixed.push(self.ops.attention(&own, &visible, attention.scale, &mut around.masks)?);
        }
        match &mixed[..] {
            [only] => Ok(only.clone()),
            several => concatenate(several, 0),
        }
    }
}

impl NetworkLayer {
    fn mlp(&self, ops: &Ops, x: &Array) -> Result<Array> {
        let (gate, up) = (self.gate.apply(ops, x)?, self.up.apply(ops, x)?);
        self.down.apply(ops, &ops.gated(self.activation, &gate, &up)?)
    }
}

impl NetworkAttention {
    fn new(attention: &Attention, weights: &Weights, ropes: &mut Vec<Rope>) -> Result<Self> {
        let known = ropes.iter().position(|rope| *rope == attention.rope);
        let rope = known.unwrap_or_else(|| {
            ropes.push(attention.rope.clone());
            ropes.len() - 1
        });
        Ok(Self {
            query_heads: attention.query_heads,
            scale: attention.scale,
            rope,
            query: Projection::new(&attention.query, weights)?,
            key: Projection::new(&attention.key, weights)?,
            value: Projection::new(&attention.value, weights)?,
            output: Projection::new(&attention.output, weights)?,
        })
    }
}

impl Projection {
    fn new(linear: &Linear, weights: &Weights) -> Result<Self> {
        let bias = linear.bias.as_ref().map(|bias| weights.vector(bias)).transpose()?;
        Ok(Self { weight: weights.get(&linear.weight)?, bias })
    }

    fn apply(&self, ops: &Ops, x: &Array) -> Result<Array> {
        ops.linear(x, &self.weight, self.bias.as_ref())
    }
}

impl RmsNorm {
    fn new(norm: &Norm, weights: &Weights) -> Result<Self> {
        Ok(Self { weight: weights.vector(&norm.weight)?, epsilon: norm.epsilon })
    }

    fn apply(&self, ops: &Ops, x: &Array) -> Result<Array> {
        ops.rms_norm(x, &self.weight, self.epsilon)
    }
}

/// A span's part of `x` (`[tokens of all spans, heads, head_dim]`) as `[1, heads, tokens, head_dim]`.
fn heads_first(x: &Array, span: &Span) -> Result<Array> {
    let part = x.slice_axis(0, span.start, span.start + span.count)?;
    if span.count == 1 {
        return part.reshape(&[1, x.dim(1), 1, x.dim(2)]);
    }
    part.transpose(&[1, 0, 2])?.expand_dims(&[0])
}
