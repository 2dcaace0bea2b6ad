//! Blocks of rows with an expert each: a workgroup belongs to one block, looks up its expert, and reads only
//! that expert's matrix of the stack.

use mlxcel_stablehlo::{Builder, Comparison, ElementType, GatherDimensions, Result, Value};

use super::kernels::{Binding, Kernel};
use super::value::{Operand, Type};
use super::view::View;
use super::writer::Writer;

/// The blocks of one layer: each multiplies `rows` rows by one of `matrices`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Blocks {
    /// The number of blocks.
    pub(crate) count: usize,
    /// Rows of a block.
    pub(crate) rows: usize,
    /// The number of stacked matrices.
    pub(crate) matrices: usize,
    /// Whether all blocks have the same rows.
    pub(crate) shared: bool,
}

/// The block of a workgroup, in the kernel that is being written.
#[derive(Debug)]
pub(crate) struct Block {
    /// The block's index.
    pub(crate) number: Operand,
    /// The index of its matrix; arbitrary if the block is empty.
    pub(crate) matrix: Operand,
    /// Whether it has an expert (not empty), of type `i1`.
    chosen: Operand,
    empty: Operand,
}

/// A part of a buffer: `shape` elements with `strides`, from the element `offset` of `all` on.
#[derive(Debug)]
pub(crate) struct Part<'a> {
    pub(crate) all: usize,
    pub(crate) offset: &'a Operand,
    pub(crate) shape: &'a [usize],
    pub(crate) strides: &'a [usize],
}

impl Blocks {
    /// The blocks of `x: [R, B, K]` or `[1, B, K]` with `experts: [R]` out of `matrices`; none if there is
    /// nothing to compute.
    pub(crate) fn of<'f>(b: &Builder<'f>, x: Value<'f>, experts: Value<'f>, matrices: usize) -> Option<Self> {
        let (&[given, rows, _], &[count]) = (&b.ty(x).shape[..], &b.ty(experts).shape[..]) else {
            return None;
        };
        (count > 0 && rows > 0 && matrices > 0).then_some(Self {
            count,
            rows,
            matrices,
            shared: given != count,
        })
    }

    /// The number of blocks of activations in the operand.
    pub(crate) fn given(&self) -> usize {
        if self.shared { 1 } else { self.count }
    }

    /// Finds the block of a workgroup: its index in the second dimension.
    pub(crate) fn find(&self, kernel: &mut Kernel, experts: &Binding) -> Block {
        let experts = kernel.view("experts", experts, &[self.count], "i32");
        let number = kernel.workgroup(1);
        let w = &mut kernel.body;
        let expert = experts.element(w, "expert", &[&number]);
        let (least, most) = (w.constant(0, Type::I32), w.constant(self.matrices - 1, Type::I32));
        let chosen = w.compare("chosen", "sge", &expert, &least);
        let empty = w.compare("empty", "slt", &expert, &least);
        let expert = w.arith("expert", "maxsi", &expert, &least);
        let expert = w.arith("expert", "minsi", &expert, &most);
        let matrix = w.cast("matrix", "index_cast", &expert, "index");
        Block { number, matrix, chosen, empty }
    }

    /// Where the activations of a block begin, with this many elements per block.
    pub(crate) fn start(&self, w: &mut Writer, block: &Block, elements: usize) -> Operand {
        if self.shared { w.index(0) } else { w.scaled("start", &block.number, elements) }
    }
}

impl Block {
    /// Computes the block's results with `compute` if it has an expert; otherwise the first of its workgroups
    /// zeroes all of `out`, which is float32.
    pub(crate) fn results(
        &self,
        w: &mut Writer,
        workgroup: &Operand,
        out: &View,
        [rows, outputs]: [usize; 2],
        compute: impl FnOnce(&mut Writer),
    ) {
        w.if_then(&self.chosen, compute);
        let [zero, one, rows, outputs] = [0, 1, rows, outputs].map(|n| w.index(n));
        let first = w.compare("first", "eq", workgroup, &zero);
        let clears = w.arith("clears", "andi", &self.empty, &first);
        let nothing = w.constant("0.0", Type::F32);
        w.if_then(&clears, |w| {
            w.for_loop("row", [&zero, &rows, &one], &[], |w, row, _| {
                w.for_loop("output", [&zero, &outputs, &one], &[], |w, output, _| {
                    out.store(w, &nothing, &[row, output]);
                    Vec::new()
                });
                Vec::new()
            });
        });
    }
}

/// A part of a buffer.
pub(crate) fn part(
    kernel: &mut Kernel,
    word: &str,
    binding: &Binding,
    part: &Part<'_>,
    element: &'static str,
) -> View {
    let Part { all, offset, shape, strides } = part;
    let whole = kernel.view(word, binding, &[*all], element);
    let sizes: String = shape.iter().map(|size| format!("{size}x")).collect();
    let ty = format!("memref<{sizes}{element}, strided<{strides:?}, offset: ?>>");
    let cast = format!(
        "memref.reinterpret_cast {} to offset: [{offset}], sizes: {shape:?}, strides: {strides:?} : {} to {ty}",
        whole.name, whole.ty
    );
    View { name: kernel.body.define(word, cast), ty, rank: shape.len(), element }
}

/// The strides of a contiguous `shape`.
pub(crate) fn dense(shape: &[usize]) -> Vec<usize> {
    (0..shape.len()).map(|i| shape[i + 1..].iter().product()).collect()
}

/// `sum: [R, B, N]` with the rows of `bias: [E, N]` of each block's expert; empty blocks stay zero. This is
/// rare and small, and left to the compiler's code.
pub(crate) fn add_bias<'f>(
    b: &mut Builder<'f>,
    sum: Value<'f>,
    experts: Value<'f>,
    bias: Value<'f>,
) -> Result<Value<'f>> {
    let shape = b.shape(sum);
    // A gather clamps indices to the last row.
    let dimensions = GatherDimensions {
        offset_dims: vec![1],
        collapsed_slice_dims: vec![0],
        start_index_map: vec![0],
        index_vector_dim: 1,
        slice_sizes: vec![1, shape[2]],
    };
    let bias = b.gather(bias, experts, dimensions)?;
    let bias = b.convert(bias, ElementType::F32)?;
    let none = b.splat(ElementType::I32, 0.0, &shape[..1])?;
    let chosen = b.compare(experts, none, Comparison::GreaterOrEqual)?;
    let chosen = b.expand(chosen, &[shape[0], shape[2]], &[1])?;
    let zero = b.splat(ElementType::F32, 0.0, &[shape[0], shape[2]])?;
    let bias = b.select(chosen, bias, zero)?;
    let bias = b.expand(bias, &shape, &[1])?;
    b.add(sum, bias)
}
