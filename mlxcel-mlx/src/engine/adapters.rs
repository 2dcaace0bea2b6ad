//! Adapters: their matrices as arrays, and products with them beside those with the weights.

use std::collections::HashMap;

use mlxcel_core::{
    Adapter, AdapterLimits, AdapterSlots, Error, ErrorKind, ModelSource, Result, SequenceOptions,
};
use mlxcel_models::{AdapterWeights, Decoder, ElementType, WeightId};

use super::network::{Span, inconsistent};
use super::thread::Engine;
use super::worker::Worker;
use crate::array::{Array, DType, concatenate};

const OPERATION: &str = "load adapter";

/// The slots of a model with room for adapters, and what reads them.
pub(super) struct AdapterRoom {
    slots: AdapterSlots,
    decoder: Decoder,
}

impl AdapterRoom {
    pub(super) fn new(limits: AdapterLimits, decoder: Decoder) -> Self {
        Self { slots: AdapterSlots::new(limits), decoder }
    }

    /// Loads the adapter in `source`.
    pub(super) fn load(&self, source: &ModelSource, worker: &Worker<Engine>) -> Result<Adapter> {
        let AdapterWeights { identity, products } =
            AdapterWeights::read(source, &self.decoder, self.slots.limits())?;
        self.slots
            .load(identity, |slot| worker.call(OPERATION, move |engine| engine.set_adapter(slot, &products)))
    }
}

/// The bytes of the adapters of `decoder` that fill a room, in the type of activations.
pub(super) fn bytes(decoder: &Decoder, room: AdapterLimits, activation: DType) -> u64 {
    let widths =
        decoder.adaptable().iter().map(|linear| (linear.inputs + linear.outputs) as u64).sum::<u64>();
    let numbers = (room.slots as u64).saturating_mul(room.rank as u64).saturating_mul(widths);
    numbers.saturating_mul(activation.size() as u64)
}

/// The slot of the adapter in `options`, of a model with this room.
pub(super) fn slot(
    room: Option<&AdapterRoom>,
    options: &SequenceOptions,
    operation: &'static str,
) -> Result<Option<usize>> {
    let Some(adapter) = &options.adapter else { return Ok(None) };
    let room = room.ok_or_else(|| AdapterSlots::no_room(operation))?;
    room.slots.slot_of(adapter).map(Some)
}

/// The matrices beside each weight, transposed: `[inputs, rank]` and `[rank, outputs]`.
type Matrices = HashMap<WeightId, [Array; 2]>;

/// The loaded adapters, by slot.
#[derive(Default)]
pub(super) struct Adapters(HashMap<usize, Matrices>);

impl Adapters {
    /// Puts the matrices of an adapter into a slot, in the type of activations.
    pub(super) fn set(
        &mut self,
        slot: usize,
        products: &HashMap<WeightId, mlxcel_models::LowRank>,
        activation: DType,
    ) -> Result<()> {
        let element = match activation {
            DType::F32 => ElementType::F32,
            DType::F16 => ElementType::F16,
            DType::BF16 => ElementType::BF16,
            _ => return Err(Error::new(ErrorKind::Internal, OPERATION, "activations are not floats")),
        };
        let mut matrices = Matrices::with_capacity(products.len());
        for (&weight, product) in products {
            let rank = product.rank;
            let [inputs, outputs] = [&product.a, &product.b].map(|matrix| matrix.len() / rank.max(1));
            let [a, b] = product.padded(element, rank)?;
            let a = Array::from_bytes(&a, &[rank, inputs], activation)?.transpose(&[1, 0])?;
            let b = Array::from_bytes(&b, &[outputs, rank], activation)?.transpose(&[1, 0])?;
            matrices.insert(weight, [a, b]);
        }
        self.0.insert(slot, matrices);
        Ok(())
    }

    fn get(&self, slot: Option<usize>, weight: WeightId) -> Option<&[Array; 2]> {
        self.0.get(&slot?)?.get(&weight)
    }

    /// `y`, the product of `x` with a weight, plus that with the adapter of each of its rows, which are in
    /// these `slots`.
    pub(super) fn adapt(
        &self,
        y: Array,
        x: &Array,
        weight: WeightId,
        slots: &[Option<usize>],
    ) -> Result<Array> {
        if slots.iter().all(|&slot| self.get(slot, weight).is_none()) {
            return Ok(y);
        }
        if x.dim(0) != slots.len() {
            return Err(inconsistent("a product has other rows than the pass"));
        }
        let (mut start, mut parts) = (0, Vec::new());
        for run in slots.chunk_by(|a, b| a == b) {
            let end = start + run.len();
            let own = y.slice_axis(0, start, end)?;
            parts.push(match self.get(run[0], weight) {
                Some([a, b]) => own.add(&x.slice_axis(0, start, end)?.matmul(a)?.matmul(b)?)?,
                None => own,
            });
            start = end;
        }
        concatenate(&parts, 0)
    }
}

/// The slots that the rows of a pass use.
#[derive(Debug, Default)]
pub(super) struct RowSlots {
    /// Of each token.
    tokens: Vec<Option<usize>>,
    /// Of each wanted token, where the others are left out.
    wanted: Vec<Option<usize>>,
}

impl RowSlots {
    /// Those of `spans`, of which the tokens with these indices are wanted. Empty if no span has an adapter.
    pub(super) fn new(spans: &[Span], wanted: &[u32]) -> Self {
        if spans.iter().all(|span| span.adapter.is_none()) {
            return Self::default();
        }
        let tokens = spans.iter().flat_map(|span| std::iter::repeat_n(span.adapter, span.count));
        let tokens: Vec<_> = tokens.collect();
        let wanted = wanted.iter().map(|&index| tokens.get(index as usize).copied().flatten()).collect();
        Self { tokens, wanted }
    }

    /// The slots of this many rows: all tokens of the pass, or the wanted ones, which are fewer.
    pub(super) fn rows(&self, count: usize) -> &[Option<usize>] {
        if count == self.tokens.len() { &self.tokens } else { &self.wanted }
    }
}
