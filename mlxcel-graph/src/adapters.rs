//! Adapters of a model: which are loaded, and their matrices in the residents.

use std::collections::HashMap;

use mlxcel_core::{
    Adapter, AdapterLimits, AdapterSlots, Error, ErrorKind, ModelSource, Result, SequenceOptions,
};
use mlxcel_models::{Decoder, StoredAdapter};
use mlxcel_stablehlo::ElementType;

use crate::executor::Executor;
use crate::resident::ResidentArgument;

/// The room for adapters of a model.
pub(crate) struct AdapterRoom {
    slots: AdapterSlots,
    decoder: Decoder,
    residents: Vec<ResidentArgument>,
}

impl AdapterRoom {
    /// Room that `residents` of the programs of `decoder` have.
    pub(crate) fn new(limits: AdapterLimits, decoder: &Decoder, residents: Vec<ResidentArgument>) -> Self {
        Self { slots: AdapterSlots::new(limits), decoder: decoder.clone(), residents }
    }

    /// Loads the adapter in `source` into a free slot of the residents of `executor`.
    pub(crate) fn load<E: Executor>(&self, executor: &E, source: &ModelSource) -> Result<Adapter> {
        let limits = self.slots.limits();
        let stored = StoredAdapter::open(source, &self.decoder, limits)?;
        self.slots.load(stored.identity(), |slot| {
            // `A` and `B` of a weight stand together.
            let pairs = self.residents.chunks(2).zip((0..).step_by(2));
            let mut left: HashMap<_, _> =
                pairs.map(|(pair, index)| (pair[0].content.weight(), (index, pair))).collect();
            let write = |index, matrices: [Vec<u8>; 2]| {
                let mut numbered = matrices.iter().zip(index..);
                numbered.try_for_each(|(bytes, index)| executor.write_resident(index, slot, bytes))
            };
            stored.for_each(|weight, product| match left.remove(&weight) {
                Some((index, pair)) => {
                    write(index, product.padded(stored_type(pair[0].ty.element)?, limits.rank)?)
                }
                None => Ok(()),
            })?;
            // What an earlier adapter had there is gone.
            left.into_values().try_for_each(|(index, pair)| {
                write(index, [&pair[0], &pair[1]].map(|argument| vec![0; argument.slot_bytes()]))
            })
        })
    }

    /// The slot of a sequence's adapter, as programs take it.
    pub(crate) fn slot(&self, adapter: Option<&Adapter>) -> Result<i32> {
        let slot = adapter.map(|adapter| self.slots.slot_of(adapter)).transpose()?;
        Ok(slot.map_or(-1, |slot| slot as i32))
    }
}

/// The room of a model that has some.
///
/// # Errors
///
/// [`ErrorKind::Unsupported`] otherwise.
pub(crate) fn room<'a>(room: Option<&'a AdapterRoom>, operation: &'static str) -> Result<&'a AdapterRoom> {
    room.ok_or_else(|| AdapterSlots::no_room(operation))
}

/// Refuses a sequence with an adapter that is not one of a model with this room.
pub(crate) fn check(
    own: Option<&AdapterRoom>,
    options: &SequenceOptions,
    operation: &'static str,
) -> Result<()> {
    match &options.adapter {
        None => Ok(()),
        Some(adapter) => room(own, operation)?.slot(Some(adapter)).map(drop),
    }
}

/// The type of a resident as files name it.
fn stored_type(element: ElementType) -> Result<mlxcel_models::ElementType> {
    match element {
        ElementType::F32 => Ok(mlxcel_models::ElementType::F32),
        ElementType::F16 => Ok(mlxcel_models::ElementType::F16),
        ElementType::BF16 => Ok(mlxcel_models::ElementType::BF16),
        other => {
            let message = "adapters are resident in a type that they do not have";
            Err(Error::new(ErrorKind::Internal, "load adapter", message).with_context("type", other.mlir()))
        }
    }
}
