//! Residents: device tensors of a model that are not the checkpoint's and are rewritten between passes.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use mlxcel_core::{AdapterLimits, Error, ErrorKind, Result};
use mlxcel_models::{Decoder, WeightId};
use mlxcel_stablehlo::{ElementType, TensorType};

/// A resident tensor: an argument of all programs of a model behind the weights. It is zero at first, and the
/// host rewrites slots of it between passes ([`Executor::write_resident`](crate::Executor::write_resident)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResidentArgument {
    /// Its name in the program.
    pub name: String,
    /// What it contains.
    pub content: Resident,
    /// Its type; the outermost dimension counts the slots.
    pub ty: TensorType,
}

/// What a resident tensor contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Resident {
    /// `[slots, rank, inputs]`: the first matrices, `A`, of the adapters of a product with this weight.
    AdapterA(WeightId),
    /// `[slots, outputs, rank]`: the second matrices, `B`, of the same, times the adapters' scales.
    AdapterB(WeightId),
}

impl Resident {
    /// The weight that it belongs to.
    pub fn weight(self) -> WeightId {
        match self {
            Self::AdapterA(weight) | Self::AdapterB(weight) => weight,
        }
    }
}

impl ResidentArgument {
    /// The size of one slot in bytes.
    pub fn slot_bytes(&self) -> usize {
        let slots = self.ty.shape.first().copied().unwrap_or_default();
        self.ty.bytes().checked_div(slots).unwrap_or_default()
    }

    /// The bytes of the tensor that `len` bytes for `slot` replace.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Internal`] if there is no such slot, or it has another size.
    pub fn slot_range(&self, slot: usize, len: usize) -> Result<Range<usize>> {
        let start = slot.saturating_mul(self.slot_bytes());
        if self.ty.shape.first().is_some_and(|&slots| slot < slots) && len == self.slot_bytes() {
            return Ok(start..start + len);
        }
        Err(Error::new(ErrorKind::Internal, "write resident", "the tensor has no such slot of this size")
            .with_context("resident", &self.name)
            .with_context("slot", slot)
            .with_context("bytes", len))
    }
}

impl fmt::Display for Resident {
    /// The kind: `adapter A` or `adapter B`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AdapterA(_) => "adapter A",
            Self::AdapterB(_) => "adapter B",
        })
    }
}

/// The residents of `decoder` with room for `adapters`, of this element type: `A` and `B` for each weight
/// that adapters can change ([`Decoder::adaptable`]). None without adapters.
pub fn resident_arguments(
    decoder: &Decoder,
    element: ElementType,
    adapters: Option<AdapterLimits>,
) -> Vec<ResidentArgument> {
    let Some(AdapterLimits { slots, rank, .. }) = adapters else { return Vec::new() };
    let of_linear = |linear: mlxcel_models::Linear| {
        let weight = decoder.weight(linear.weight);
        let resident = move |content, sizes: [usize; 3]| ResidentArgument {
            name: format!("{weight} {content}"),
            content,
            ty: TensorType::new(element, sizes),
        };
        [
            resident(Resident::AdapterA(linear.weight), [slots, rank, linear.inputs]),
            resident(Resident::AdapterB(linear.weight), [slots, linear.outputs, rank]),
        ]
    };
    decoder.adaptable().into_iter().flat_map(of_linear).collect()
}

/// For executors: the tensors of a model's residents, each as a `B` of the device. A pass that runs keeps
/// those that it began with.
#[derive(Debug)]
pub struct Residents<B>(Mutex<Arc<Vec<Arc<B>>>>);

impl<B> Residents<B> {
    /// These tensors, in the order of the arguments.
    pub fn new(tensors: impl IntoIterator<Item = B>) -> Self {
        Self(Mutex::new(Arc::new(tensors.into_iter().map(Arc::new).collect())))
    }

    /// The tensors for a pass that begins now. They do not change while it holds them.
    pub fn current(&self) -> Arc<Vec<Arc<B>>> {
        Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Changes one tensor for passes that begin later. `change` may write it in place if nobody else holds it
    /// ([`Arc::get_mut`]), and puts another in its place otherwise.
    ///
    /// # Errors
    ///
    /// Those of `change`; [`ErrorKind::Internal`] if there is no such tensor.
    pub fn change(&self, index: usize, change: impl FnOnce(&mut Arc<B>) -> Result<()>) -> Result<()> {
        let mut tensors = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let tensor = Arc::make_mut(&mut tensors).get_mut(index).ok_or_else(|| {
            Error::new(ErrorKind::Internal, "write resident", "the model has no such resident")
                .with_context("resident", index)
        })?;
        change(tensor)
    }
}

#[cfg(test)]
mod tests {
    use mlxcel_models::{WeightRef, WeightTable};

    use super::*;

    #[test]
    fn a_running_pass_keeps_the_residents_that_it_began_with() {
        let residents = Residents::new([vec![1], vec![2]]);
        let write = |index, value| {
            residents.change(index, |tensor| {
                Arc::make_mut(tensor)[0] = value;
                Ok(())
            })
        };
        let running = residents.current();
        write(1, 7).unwrap();
        assert_eq!((running[1][0], residents.current()[1][0]), (2, 7));
        assert!(Arc::ptr_eq(&running[0], &residents.current()[0]), "what did not change is not copied");
        let place = Arc::as_ptr(&residents.current()[1]);
        drop(running);
        write(1, 8).unwrap();
        assert_eq!((residents.current()[1][0], Arc::as_ptr(&residents.current()[1])), (8, place));
        assert_eq!(write(2, 0).unwrap_err().kind(), ErrorKind::Internal);
    }

    #[test]
    fn a_slot_is_written_whole() {
        let weight = WeightRef::new("w", mlxcel_models::ElementType::BF16, [4, 5]);
        let argument = ResidentArgument {
            name: "a".to_owned(),
            content: Resident::AdapterA(WeightTable::default().add(weight)),
            ty: TensorType::new(ElementType::BF16, [3, 2, 5]),
        };
        assert_eq!(argument.slot_range(2, 20).unwrap(), 40..60);
        for (slot, len) in [(3, 20), (0, 19), (usize::MAX, 20)] {
            assert_eq!(argument.slot_range(slot, len).unwrap_err().kind(), ErrorKind::Internal);
        }
    }
}
