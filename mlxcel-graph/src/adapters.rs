//! Adapters of a model: which are loaded, and their matrices in the residents.

use mlxcel_core::{
    Adapter, AdapterLimits, AdapterSlots, Error, ErrorKind, ModelSource, Result, SequenceOptions,
};
use mlxcel_models::{AdapterWeights, Decoder};
use mlxcel_stablehlo::ElementType;

use crate::executor::Executor;
use crate::resident::{Resident, ResidentArgument};

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
        let AdapterWeights { identity, products } = AdapterWeights::read(source, &self.decoder, limits)?;
        self.slots.load(identity, |slot| {
            // `A` and `B` of a weight stand together.
            for (index, pair) in self.residents.chunks(2).enumerate() {
                let (Resident::AdapterA(weight) | Resident::AdapterB(weight)) = pair[0].content;
                let matrices = match products.get(&weight) {
                    Some(product) => product.padded(stored_type(pair[0].ty.element)?, limits.rank)?.to_vec(),
                    // What an earlier adapter had there is gone.
                    None => pair.iter().map(|argument| vec![0; argument.slot_bytes()]).collect(),
                };
                for (matrix, bytes) in matrices.iter().enumerate() {
                    executor.write_resident(2 * index + matrix, slot, bytes)?;
                }
            }
            Ok(())
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
