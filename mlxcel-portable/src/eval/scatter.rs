//! `scatter`: windows written at run-time indices.
//!
//! A window that does not fit into the operand as a whole is left out. Windows are written in the row-major
//! order of the indices, so that of overlapping ones the last wins.

use mlxcel_stablehlo::{ElementType, ScatterDimensions, ScatterUpdate, TensorType};

use super::buffer::zeros;
use super::error::Result;
use super::gather::IndexVectors;
use super::kernel::Kernel;
use super::lanes::{Class, load_f32, load_i64, store_f32, store_i64};
use super::node::SlotId;
use super::run::Frame;
use super::view::{Linear, View, without};

#[derive(Debug)]
pub(super) struct Scatter {
    pub(super) operand: (SlotId, bool),
    indices: IndexVectors,
    updates: Kernel,
    /// The first update element of each window.
    windows: Linear,
    /// The elements of a window: their places among the updates and in the operand, counted from its first.
    from: Linear,
    to: Linear,
    elements: usize,
    update: ScatterUpdate,
    pub(super) out: SlotId,
}

impl Scatter {
    pub(super) fn plan(
        (operand, operand_type): (SlotId, &TensorType),
        (indices, indices_type): (Kernel, &TensorType),
        (updates, updates_type): (Kernel, &TensorType),
        dimensions: &ScatterDimensions,
        update: ScatterUpdate,
        out: SlotId,
    ) -> Self {
        let ScatterDimensions {
            update_window_dims,
            inserted_window_dims,
            scatter_dims_to_operand_dims,
            index_vector_dim,
        } = dimensions;
        let window_dims = without(operand_type.rank(), inserted_window_dims);
        let from = View::dimensions(&updates_type.shape, update_window_dims);
        let to = View { shape: from.shape.clone(), ..View::dimensions(&operand_type.shape, &window_dims) };
        let mut sizes = vec![1; operand_type.rank()];
        for (&dimension, &size) in window_dims.iter().zip(&from.shape) {
            sizes[dimension] = size;
        }
        let scatter_dims = without(updates_type.rank(), update_window_dims);
        let windows = View::dimensions(&updates_type.shape, &scatter_dims);
        let indices = IndexVectors::new(
            indices,
            indices_type,
            *index_vector_dim,
            scatter_dims_to_operand_dims,
            &operand_type.shape,
            &sizes,
        );
        Self {
            operand: (operand, false),
            indices,
            updates,
            windows: windows.linear(),
            elements: from.elements(),
            from: from.linear(),
            to: to.linear(),
            update,
            out,
        }
    }

    pub(super) fn reads(&self, each: &mut dyn FnMut(SlotId)) {
        each(self.operand.0);
        self.indices.kernel.slots.iter().copied().for_each(&mut *each);
        self.updates.slots.iter().copied().for_each(each);
    }

    pub(super) fn run(&self, frame: &mut Frame<'_>) -> Result<()> {
        frame.update(self.operand, self.out, |frame, bytes| {
            if self.updates.elements == 0 || bytes.is_empty() {
                return Ok(());
            }
            let indices = self.indices.read(frame)?;
            let updates = self.updates.bind(|slot| frame.bytes(slot));
            let mut updates = updates.evaluator();
            let element = self.updates.element;
            let size = element.bytes_for(1);
            let contiguous = self.from.is_contiguous() && self.to.is_contiguous();
            // A window of neighbours is written in one go, another one element by element.
            let (parts, length) = if contiguous { (1, self.elements) } else { (self.elements, 1) };
            let mut part: Box<[u8]> = zeros(length * size)?;
            for vector in 0..self.indices.count {
                let Some(origin) = self.indices.fitting(&indices, vector) else { continue };
                let window = self.windows.at(vector);
                for i in 0..parts {
                    updates.write(window + self.from.at(i), length, &mut part);
                    let place = (origin + self.to.at(i)) * size;
                    let place = &mut bytes[place..place + length * size];
                    match self.update {
                        ScatterUpdate::Replace => place.copy_from_slice(&part),
                        ScatterUpdate::Add => add(place, &part, element),
                    }
                }
            }
            Ok(())
        })
    }
}

/// Adds dense elements to others, rounded or wrapped to their type.
fn add(place: &mut [u8], part: &[u8], element: ElementType) {
    let count = part.len() / element.bytes_for(1);
    match Class::of(element) {
        Class::F32 => {
            let (mut a, mut b) = (vec![0.0; count], vec![0.0; count]);
            load_f32(place, element, 0, 1, &mut a);
            load_f32(part, element, 0, 1, &mut b);
            a.iter_mut().zip(&b).for_each(|(a, b)| *a += b);
            store_f32(&a, element, place);
        }
        Class::I64 => {
            let (mut a, mut b) = (vec![0i64; count], vec![0; count]);
            load_i64(place, element, 0, 1, &mut a);
            load_i64(part, element, 0, 1, &mut b);
            a.iter_mut().zip(&b).for_each(|(a, b)| *a = a.wrapping_add(*b));
            store_i64(&a, element, place);
        }
        // Addition of booleans is "or".
        Class::Bool => place.iter_mut().zip(part).for_each(|(a, b)| *a = u8::from(*a | *b != 0)),
    }
}
