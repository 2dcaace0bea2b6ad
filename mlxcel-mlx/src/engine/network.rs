//! A decoder as operations on arrays.

use std::collections::HashMap;
use std::rc::Rc;

use mlxcel_core::{Error, ErrorKind, Result};
use mlxcel_models::{Activation, Attention, Decoder, Linear, Mixer, Norm, Rope};

use super::cache::{Cache, LayerLayout, Layout, Order};
use super::ops;
use super::weights::{Weight, Weights};
use crate::array::{Array, DType, Mask, concatenate};

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
    embedding: Rc<Weight>,
    layers: Vec<NetworkLayer>,
    norm: RmsNorm,
    head: Rc<Weight>,
    /// The rotary embeddings in use, each once.
    ropes: Vec<Rope>,
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
    /// Cosines and sines of each rotary embedding, `[tokens, 1, pairs]`.
    rotary: Vec<(Array, Array)>,
    /// Masks of sliding windows, by span and what the queries see.
    masks: HashMap<(usize, usize, usize), Array>,
}

impl Network {
    /// The network of `decoder`; `rotates` where caches of sliding windows keep the window alone.
    pub(super) fn new(
        decoder: &Decoder,
        weights: &Weights,
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
        Ok(Self {
            embedding: weights.get(&decoder.embedding.weight)?,
            layers,
            norm: RmsNorm::new(&decoder.norm, weights)?,
            head: weights.get(&decoder.head.weight)?,
            ropes,
            layout: Layout { layers: layouts, element: numerics.kv },
            numerics,
        })
    }

    /// The hidden states (`[tokens, hidden]`, not yet normed) of `tokens`, those of all spans one behind the other, and each span's
    /// cache with its positions in it.
    pub(super) fn run(
        &self,
        tokens: &Array,
        spans: &[Span],
        caches: &[Option<&Cache>],
    ) -> Result<(Array, Vec<Cache>)> {
        let mut around = Surroundings { spans, rotary: self.rotary(spans)?, masks: HashMap::new() };
        let mut filled: Vec<Cache> = spans.iter().map(|_| Cache::default()).collect();
        let mut hidden = ops::embed(&self.embedding, tokens, self.numerics.activation)?;
        for (index, layer) in self.layers.iter().enumerate() {
            let normed = layer.mixer_norm.apply(&hidden)?;
            let mixed = self.attend(index, &layer.attention, &normed, &mut around, caches, &mut filled)?;
            hidden = hidden.add(&mixed)?;
            let normed = layer.mlp_norm.apply(&hidden)?;
            hidden = hidden.add(&layer.mlp(&normed)?)?;
        }
        Ok((hidden, filled))
    }

    /// The logits (`[rows, vocabulary]`, float32) of hidden states (`[rows, hidden]`).
    pub(super) fn logits(&self, hidden: &Array) -> Result<Array> {
        ops::linear(&self.norm.apply(hidden)?, &self.head, None)?.astype(DType::F32)
    }

    /// Cosines and sines at every span's positions, of each rotary embedding.
    fn rotary(&self, spans: &[Span]) -> Result<Vec<(Array, Array)>> {
        let tokens = spans.iter().map(|span| span.count).sum::<usize>();
        let table = |rope: &Rope| {
            let pairs = rope.rotary_dim / 2;
            let (mut cos, mut sin) = (vec![0.0; tokens * pairs], vec![0.0; tokens * pairs]);
            let positions = spans.iter().flat_map(|span| span.position..span.position + span.count);
            for (index, position) in positions.enumerate() {
                let row = index * pairs..(index + 1) * pairs;
                rope.cos_sin(position, &mut cos[row.clone()], &mut sin[row]);
            }
            let shape = [tokens, 1, pairs];
            Ok((Array::from_slice(&cos, &shape)?, Array::from_slice(&sin, &shape)?))
        };
        self.ropes.iter().map(table).collect()
    }

    /// The bytes that [`run`](Self::run) sends to the device besides tokens.
    pub(super) fn uploaded_bytes(&self, tokens: usize) -> usize {
        self.ropes.iter().map(|rope| tokens * rope.rotary_dim * size_of::<f32>()).sum()
    }

    /// Attention of each span over its own cache, into which its keys and values go first.
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
            projection.apply(x)?.reshape(&[x.dim(0), heads, layout.head_dim])
        };
        let (cos, sin) = &around.rotary[attention.rope];
        let query = ops::rotate(&heads(&attention.query, attention.query_heads)?, cos, sin)?;
        let key =
            ops::rotate(&heads(&attention.key, layout.kv_heads)?, cos, sin)?.astype(self.numerics.kv)?;
        let value = heads(&attention.value, layout.kv_heads)?.astype(self.numerics.kv)?;
        let mut mixed = Vec::with_capacity(around.spans.len());
        for (number, (span, cache)) in around.spans.iter().zip(caches).enumerate() {
            let own = |x: &Array| heads_first(x, span);
            let before = cache.and_then(|cache| cache.layers.get(index));
            let (layer, visible) =
                layout.extend(before, span.position, &own(&key)?, &own(&value)?, self.numerics.kv)?;
            filled[number].layers.push(layer);
            let mask = match visible.order {
                Order::All => Mask::None,
                Order::Causal => Mask::Causal,
                Order::Window(window) => {
                    let seen = visible.keys.dim(2);
                    let mask = match around.masks.entry((number, window, seen)) {
                        std::collections::hash_map::Entry::Occupied(entry) => entry.into_mut(),
                        std::collections::hash_map::Entry::Vacant(entry) => {
                            entry.insert(window_mask(span.count, seen, window)?)
                        }
                    };
                    Mask::Array(mask)
                }
            };
            let attended =
                ops::attention(&own(&query)?, &visible.keys, &visible.values, attention.scale, mask)?;
            let width = attention.query_heads * layout.head_dim;
            mixed.push(attended.transpose(&[0, 2, 1, 3])?.reshape(&[span.count, width])?);
        }
        let mixed = match &mixed[..] {
            [only] => only.clone(),
            several => concatenate(several, 0)?,
        };
        attention.output.apply(&mixed)
    }
}

impl NetworkLayer {
    fn mlp(&self, x: &Array) -> Result<Array> {
        let gate = ops::activate(self.activation, &self.gate.apply(x)?)?;
        self.down.apply(&gate.multiply(&self.up.apply(x)?)?)
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

    fn apply(&self, x: &Array) -> Result<Array> {
        ops::linear(x, &self.weight, self.bias.as_ref())
    }
}

impl RmsNorm {
    fn new(norm: &Norm, weights: &Weights) -> Result<Self> {
        Ok(Self { weight: weights.vector(&norm.weight)?, epsilon: norm.epsilon })
    }

    fn apply(&self, x: &Array) -> Result<Array> {
        x.rms_norm(Some(&self.weight), self.epsilon)?.astype(x.dtype()?)
    }
}

/// A span's part of `x` (`[tokens of all spans, heads, head_dim]`) as `[1, heads, tokens, head_dim]`.
fn heads_first(x: &Array, span: &Span) -> Result<Array> {
    let part = x.slice_axis(0, span.start, span.start + span.count)?;
    part.transpose(&[1, 0, 2])?.expand_dims(&[0])
}

/// Which of `seen` keys each of `queries` queries sees (`[queries, seen]` booleans), the last ones being of the same position: its
/// own and those before, `window` in all.
fn window_mask(queries: usize, seen: usize, window: usize) -> Result<Array> {
    let count = |n: usize| {
        i32::try_from(n)
            .map_err(|_| Error::new(ErrorKind::Internal, "step", "a sequence is too long to be masked"))
    };
    let (queries, seen, window) = (count(queries)?, count(seen)?, count(window)?);
    let own = Array::arange(seen - queries, seen, DType::I32)?.expand_dims(&[1])?;
    let keys = Array::arange(0, seen, DType::I32)?.expand_dims(&[0])?;
    let first = own.subtract(&Array::from_slice(&[window], &[1, 1])?)?;
    keys.less_equal(&own)?.logical_and(&keys.greater(&first)?)
}
