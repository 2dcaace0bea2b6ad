//! A decoder with its weights, and its walk over arrays.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use mlxcel_core::{Error, ErrorKind, Result};
use mlxcel_models::walk::{Hidden, Walk};
use mlxcel_models::{Decoder, Mixer, Rope, RopeEpochs, StateSlot};

use super::adapters::{Adapters, RowSlots};
use super::compute::{Compute, Masks};
use super::ops::PassOps;
use super::ops::triangles::Triangles;
use super::rotary::Rotary;
use super::state::{Layout, States};
use super::weights::Weights;
use crate::array::{Array, DType, concatenate};

/// The element types that a network runs with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Numerics {
    /// The type of activations.
    pub(super) activation: DType,
    /// The type of keys and values in caches.
    pub(super) kv: DType,
}

/// A decoder with its weights.
pub(super) struct Network {
    decoder: Decoder,
    walk: Walk,
    /// For each token the index of its logit, or of none behind them, if the head does not compute those of
    /// all.
    places: Option<Array>,
    pub(super) weights: Weights,
    pub(super) adapters: Adapters,
    pub(super) compute: Compute,
    /// The distinct rotary embeddings in use.
    ropes: Vec<Rotary>,
    /// Their descriptions.
    rope_descriptions: Vec<Rope>,
    /// The rotary embedding of each layer, per state group.
    rope_of: Vec<Vec<Option<usize>>>,
    /// The slots of caches that other layers read too.
    shared: HashSet<StateSlot>,
    pub(super) layout: Layout,
    pub(super) numerics: Numerics,
    /// The sequence lengths at which rotary embeddings change.
    pub(super) epochs: RopeEpochs,
}

/// The part of one sequence among the tokens of a pass.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    /// The index of its first token.
    pub(super) start: usize,
    pub(super) count: usize,
    /// The position of its first token in its sequence.
    pub(super) position: usize,
    /// The sequence length that selects rotary embeddings.
    pub(super) length: usize,
    /// The slot of its sequence's adapter, if it has one.
    pub(super) adapter: Option<usize>,
}

impl Span {
    /// The positions of its tokens.
    pub(super) fn positions(&self) -> Range<usize> {
        self.position..self.position + self.count
    }
}

/// The inputs of a pass: those of all spans, consecutively.
#[derive(Clone, Copy, Debug)]
pub(super) struct Inputs<'a> {
    /// `[tokens]`, `U32`.
    pub(super) tokens: &'a Array,
    /// Their types, likewise; none if all are 0.
    pub(super) types: Option<&'a Array>,
    /// The hidden states that a draft head reads beside them (`[tokens, hidden]`, float32).
    pub(super) states: Option<&'a Array>,
}

/// The tokens whose logits or hidden states are wanted.
#[derive(Clone, Copy, Debug)]
pub(super) enum Wanted<'a> {
    None,
    All,
    /// All, in the order of these indices.
    Reordered(&'a Array),
    /// Fewer, by their indices (`[wanted]`, `U32`).
    Some(&'a Array),
}

/// The results of a pass.
#[derive(Debug, Default)]
pub(super) struct Outputs {
    /// `[tokens, vocabulary]`, float32.
    pub(super) logits: Option<Array>,
    /// Hidden states after the last norm, `[tokens, hidden]`, float32.
    pub(super) hidden: Option<Array>,
    /// Those of all tokens of the pass, if the decoder returns them.
    pub(super) states: Option<Array>,
}

impl Network {
    /// The network of `decoder`, for sequences of up to `capacity` positions.
    pub(super) fn new(
        decoder: Decoder,
        weights: Weights,
        compute: Compute,
        numerics: Numerics,
        capacity: usize,
    ) -> Result<Self> {
        // If activations are rounded more coarsely than MLX's own angles.
        let fused = numerics.activation != DType::F32;
        let ropes =
            decoder.ropes().into_iter().map(|rope| Rotary::new(rope, fused)).collect::<Result<_>>()?;
        Ok(Self {
            walk: Walk::new(&decoder),
            places: places(&decoder)?,
            weights,
            adapters: Adapters::default(),
            compute,
            ropes,
            rope_descriptions: decoder.ropes().into_iter().cloned().collect(),
            rope_of: rope_of(&decoder),
            shared: shared_slots(&decoder),
            layout: Layout::new(&decoder, numerics.kv, capacity),
            numerics,
            epochs: decoder.rope_epochs(),
            decoder,
        })
    }

    /// The wanted results of `inputs` with the adapters in these `slots`, and each span's states after its
    /// positions. The last `hidden` of the wanted tokens return hidden states, those before return logits.
    pub(super) fn run(
        &self,
        inputs: Inputs<'_>,
        spans: &[Span],
        states: &[Option<&States>],
        (wanted, slots): (Wanted<'_>, RowSlots),
        hidden: usize,
    ) -> Result<(Outputs, Vec<States>)> {
        let mut ops = PassOps {
            network: self,
            inputs,
            spans,
            states,
            filled: spans.iter().map(|_| States::default()).collect(),
            wanted,
            slots,
            rotations: self.ropes.iter().map(|rope| rope.at(spans)).collect::<Result<_>>()?,
            masks: Masks::default(),
            triangles: Triangles::default(),
            visible: HashMap::new(),
            selected: HashMap::new(),
        };
        let mut outputs = Outputs::default();
        let Hidden { wanted: mut states, states: all } = self.walk.hidden(&self.decoder, &mut ops)?;
        outputs.states = all.map(|all| all.astype(DType::F32)).transpose()?;
        if let Wanted::Reordered(indices) = wanted {
            states = states.take(indices, 0)?;
        }
        let count = match wanted {
            Wanted::None => 0,
            Wanted::All | Wanted::Reordered(_) => inputs.tokens.len(),
            Wanted::Some(indices) => indices.len(),
        };
        if count > hidden {
            let sources =
                if hidden == 0 { states.clone() } else { states.slice_axis(0, 0, count - hidden)? };
            let head = self.decoder.head.as_ref();
            let head = head.ok_or_else(|| inconsistent("a model without a head was asked for logits"))?;
            let logits = self.walk.logits(head, &sources, &mut ops)?;
            outputs.logits = Some(self.spread(logits.astype(DType::F32)?)?);
        }
        if hidden > 0 {
            outputs.hidden = Some(states.slice_axis(0, count - hidden, count)?.astype(DType::F32)?);
        }
        Ok((outputs, ops.filled))
    }

    /// Logits (`[tokens, vocabulary]`, float32) of all tokens, minus infinity for those that the head does not
    /// compute.
    fn spread(&self, logits: Array) -> Result<Array> {
        let Some(places) = &self.places else { return Ok(logits) };
        let none = Array::full(&[logits.dim(0), 1], f32::NEG_INFINITY, DType::F32)?;
        concatenate([&logits, &none], 1)?.take(places, 1)
    }

    /// The elements of a returned state.
    pub(super) fn state_width(&self) -> usize {
        self.decoder.output_state_width().unwrap_or_default()
    }

    /// The size of a hidden state.
    pub(super) fn hidden_size(&self) -> usize {
        self.decoder.hidden_size
    }

    /// The bytes that [`run`](Self::run) sends to the device for this many tokens, besides these.
    pub(super) fn uploaded_bytes(&self, tokens: usize) -> usize {
        let positions =
            if self.decoder.embedding.positions.is_some() { tokens * size_of::<u32>() } else { 0 };
        positions + self.ropes.iter().map(|rope| rope.uploaded_bytes(tokens)).sum::<usize>()
    }

    /// The index of a rotary embedding of the decoder.
    pub(super) fn index_of(&self, rope: &Rope) -> Result<usize> {
        let index = self.rope_descriptions.iter().position(|known| known == rope);
        index.ok_or_else(|| inconsistent("a layer has a rotary embedding that is not among the decoder's"))
    }

    /// Whether other layers read the cache at a slot too.
    pub(super) fn is_shared(&self, slot: StateSlot) -> bool {
        self.shared.contains(&slot)
    }

    /// The rotary embedding of the layer at a slot.
    pub(super) fn rope_of(&self, slot: StateSlot) -> Option<usize> {
        self.rope_of.get(slot.group)?.get(slot.layer).copied().flatten()
    }
}

/// See [`Network::places`].
fn places(decoder: &Decoder) -> Result<Option<Array>> {
    let Some(tokens) = decoder.head_tokens.as_deref() else { return Ok(None) };
    let mut places = vec![tokens.len() as u32; decoder.vocabulary_size];
    for (place, &token) in (0..).zip(tokens) {
        if let Some(own) = places.get_mut(token as usize) {
            *own = place;
        }
    }
    Array::from_slice(&places, &[places.len()]).map(Some)
}

/// Where the caches lie that [`Mixer::Shared`] reads.
fn shared_slots(decoder: &Decoder) -> HashSet<StateSlot> {
    let slots = decoder.state_slots();
    let source = |mixer: &Mixer| match mixer {
        Mixer::Shared(shared) => slots.get(shared.source)?.first().copied(),
        _ => None,
    };
    decoder.mixers().filter_map(source).collect()
}

/// The index into [`Decoder::ropes`] of each layer's rotary embedding, per state group.
fn rope_of(decoder: &Decoder) -> Vec<Vec<Option<usize>>> {
    let ropes = decoder.ropes();
    let mut groups: Vec<Vec<Option<usize>>> =
        decoder.state_groups().iter().map(|group| vec![None; group.layers]).collect();
    for (mixer, slots) in decoder.mixers().zip(decoder.state_slots()) {
        let index = mixer.ropes().next().and_then(|rope| ropes.iter().position(|known| *known == rope));
        for slot in slots {
            if let Some(place) = groups.get_mut(slot.group).and_then(|group| group.get_mut(slot.layer)) {
                *place = index;
            }
        }
    }
    groups
}

/// The error for a decoder whose operations contradict its description.
pub(super) fn inconsistent(what: &'static str) -> Error {
    Error::new(ErrorKind::Internal, "step", what)
}

#[cfg(test)]
mod tests;
