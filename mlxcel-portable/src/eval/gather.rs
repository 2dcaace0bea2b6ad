//! `gather`: slices at run-time indices. Of the operand only the slices are read.

use mlxcel_stablehlo::{GatherDimensions, TensorType};

use super::buffer::zeros;
use super::error::Result;
use super::kernel::Kernel;
use super::movement::{Stretches, clamp_start};
use super::node::SlotId;
use super::run::Frame;
use super::step::CHUNK;
use super::view::{Linear, View, dense_strides, without};

#[derive(Debug)]
pub(super) struct Gather {
    operand: Kernel,
    indices: IndexVectors,
    stretches: Stretches,
    /// Where each element of a slice lies in the result, counted from the slice's first.
    window: Linear,
    /// The first result element of each slice.
    slices: Linear,
    /// Whether the slices lie one after another in the result.
    consecutive: bool,
    pub(super) out: SlotId,
}

/// The index vectors of gather and scatter: which element of the operand each one addresses.
#[derive(Debug)]
pub(super) struct IndexVectors {
    pub(super) kernel: Kernel,
    /// The number of index vectors.
    pub(super) count: usize,
    /// The number of a vector's first component among the indices, and the distance between components.
    firsts: Linear,
    distance: usize,
    /// For each component: the largest start at which a slice fits, and the operand's stride.
    components: Vec<(usize, usize)>,
}

impl IndexVectors {
    pub(super) fn new(
        kernel: Kernel,
        ty: &TensorType,
        vector_dimension: usize,
        map: &[usize],
        shape: &[usize],
        sizes: &[usize],
    ) -> Self {
        let mut firsts = View::dense(&ty.shape);
        let distance = if vector_dimension < ty.rank() {
            firsts.shape.remove(vector_dimension);
            firsts.strides.remove(vector_dimension)
        } else {
            1
        };
        let strides = dense_strides(shape);
        let components = map.iter().map(|&i| (shape[i].saturating_sub(sizes[i]), strides[i])).collect();
        Self { kernel, count: firsts.elements(), firsts: firsts.linear(), distance, components }
    }

    /// All indices, read once.
    pub(super) fn read(&self, frame: &Frame<'_>) -> Result<Box<[i64]>> {
        let mut indices = zeros(self.kernel.elements)?;
        self.kernel.bind(|slot| frame.bytes(slot)).evaluator().write_i64(0, &mut indices);
        Ok(indices)
    }

    fn components<'i>(
        &'i self,
        indices: &'i [i64],
        vector: usize,
    ) -> impl Iterator<Item = (i64, usize, usize)> + 'i {
        let first = self.firsts.at(vector);
        let components = self.components.iter().enumerate();
        components.map(move |(i, &(limit, stride))| (indices[first + i * self.distance], limit, stride))
    }

    /// The operand element that the vector addresses, each component clamped so that a slice fits.
    pub(super) fn clamped(&self, indices: &[i64], vector: usize) -> usize {
        self.components(indices, vector).map(|(at, limit, stride)| clamp_start(at, limit) * stride).sum()
    }

    /// The operand element that the vector addresses, or `None` where a slice would not fit.
    pub(super) fn fitting(&self, indices: &[i64], vector: usize) -> Option<usize> {
        let fitting = |(at, limit, stride): (i64, usize, usize)| {
            usize::try_from(at).ok().filter(|&at| at <= limit).map(|at| at * stride)
        };
        self.components(indices, vector).map(fitting).sum()
    }
}

impl Gather {
    pub(super) fn plan(
        (operand, operand_type): (Kernel, &TensorType),
        (indices, indices_type): (Kernel, &TensorType),
        dimensions: &GatherDimensions,
        result: &TensorType,
        out: SlotId,
    ) -> Self {
        let GatherDimensions { offset_dims, start_index_map, index_vector_dim, slice_sizes, .. } = dimensions;
        let window = View::dimensions(&result.shape, offset_dims);
        let batch_dims = without(result.rank(), offset_dims);
        let slices = View::dimensions(&result.shape, &batch_dims);
        let indices = IndexVectors::new(
            indices, indices_type, *index_vector_dim, start_index_map, &operand_type.shape, slice_sizes,
        );
        Self {
            operand,
            indices,
            stretches: Stretches::new(&operand_type.shape, slice_sizes),
            consecutive: batch_dims.iter().enumerate().all(|(i, &dimension)| i == dimension)
                && window.is_dense(),
            window: window.linear(),
            slices: slices.linear(),
            out,
        }
    }

    pub(super) fn reads(&self, each: &mut dyn FnMut(SlotId)) {
        self.operand.slots.iter().copied().for_each(&mut *each);
        self.indices.kernel.slots.iter().copied().for_each(each);
    }

    pub(super) fn run(&self, frame: &mut Frame<'_>) -> Result<()> {
        frame.write(self.out, |frame, out| {
            let indices = self.indices.read(frame)?;
            let operand = self.operand.bind(|slot| frame.bytes(slot));
            let size = self.operand.element.bytes_for(1);
            let Stretches { length, starts, count } = &self.stretches;
            let slice = count * length;
            if self.consecutive {
                let group = (CHUNK / slice).max(1);
                frame.workers.for_each(
                    out.chunks_mut(group * slice * size).enumerate(),
                    || operand.evaluator(),
                    |operand, (i, places): (usize, &mut [u8])| {
                        for (j, place) in places.chunks_mut(slice * size).enumerate() {
                            let origin = self.indices.clamped(&indices, i * group + j);
                            for (k, place) in place.chunks_mut(length * size).enumerate() {
                                operand.write(origin + starts.at(k), *length, place);
                            }
                        }
                    },
                );
            } else {
                let mut operand = operand.evaluator();
                let mut scratch = zeros(slice * size)?;
                for vector in 0..self.indices.count {
                    let origin = self.indices.clamped(&indices, vector);
                    for (k, place) in scratch.chunks_mut(length * size).enumerate() {
                        operand.write(origin + starts.at(k), *length, place);
                    }
                    let start = self.slices.at(vector);
                    for (k, element) in scratch.chunks(size).enumerate() {
                        let place = (start + self.window.at(k)) * size;
                        out[place..place + size].copy_from_slice(element);
                    }
                }
            }
            Ok(())
        })
    }
}
