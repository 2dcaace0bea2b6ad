//! A product of activations with a weight in panels: its sizes, how the work is divided, and how activations
//! are arranged.

use mlxcel_stablehlo::{Builder, ElementType, Result, TensorType, Value};

use super::format::{Format, Units};
use super::{blocked, rest, streamed};
use crate::experts::{self, Block, Blocks, Part};
use crate::instructions::Instructions;
use crate::kernels::{Binding, Description, Kernel};
use crate::value::Operand;
use crate::vector_set::VectorSet;
use crate::view::View;
use crate::writer::Writer;

/// The most rows for which the weight is streamed; more are computed block by block.
const FEW_ROWS: usize = 16;

/// Inputs per block where rows are many: those of 32 outputs fill half an L1 cache.
const BLOCK: usize = 128;

/// Rows whose activations of one block are processed together: they stay in the L2 cache.
const MOST_ROWS_TOGETHER: usize = 132;

/// `x: [rows, inputs]` times the transpose of `weight: [outputs, inputs]` in panels, summed in float32; or,
/// for each of `blocks` of rows, times its expert's weight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Product {
    /// The rows, or those of a block.
    pub(super) rows: usize,
    pub(super) inputs: usize,
    pub(super) outputs: usize,
    weight: ElementType,
    pub(super) format: Format,
    pub(super) arrangement: Arrangement,
    experts: Option<Blocks>,
}

/// The order of activations that a kernel reads: `[chunks][blocks][tiles][block_units][tile_rows]`, so that
/// those multiplied by the same weight are adjacent; those of experts' blocks block by block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Arrangement {
    /// Parts of the rows.
    pub(super) chunks: usize,
    /// Parts of the inputs.
    pub(super) blocks: usize,
    /// Tiles of a chunk.
    pub(super) tiles: usize,
    /// Units of a block; the last block may have fewer in use.
    pub(super) block_units: usize,
    /// Rows whose sums are in registers together; the last tiles may have fewer in use.
    pub(super) tile_rows: usize,
}

impl Product {
    /// The product of operands of these types, or none if there is nothing to compute.
    pub(super) fn new(
        x: &TensorType,
        weight: &TensorType,
        instructions: Instructions,
        experts: Option<Blocks>,
    ) -> Option<Self> {
        let &[.., outputs, inputs] = &weight.shape[..] else { return None };
        let rows = x.elements().checked_div(inputs)?;
        let rows = experts.map_or(rows, |blocks| blocks.rows);
        if rows == 0 || outputs == 0 {
            return None;
        }
        let lanes = instructions.lanes();
        let halves = (x.element, weight.element) == (ElementType::BF16, ElementType::BF16);
        let pairs = halves
            && instructions.multiplies_bf16()
            && inputs.is_multiple_of(2)
            && outputs.is_multiple_of(lanes);
        let few = rows <= few_rows(&Format::new(weight.element, instructions, Units::Floats));
        // Arm processors that multiply pairs of bfloat16 also multiply matrices of them.
        let matrices = instructions.set == VectorSet::Neon && inputs.is_multiple_of(4) && !few;
        let units = match pairs {
            true if matrices => Units::Matrices,
            true => Units::Pairs,
            false => Units::Floats,
        };
        let format = Format::new(weight.element, instructions, units);
        let mut product = Self {
            rows,
            inputs,
            outputs,
            weight: weight.element,
            format,
            arrangement: Arrangement { chunks: 1, blocks: 1, tiles: 1, block_units: 1, tile_rows: 1 },
            experts,
        };
        product.arrangement = product.arrange();
        Some(product)
    }

    fn arrange(&self) -> Arrangement {
        let unit_depth = self.format.unit_depth();
        if self.few_rows() {
            let (block_units, tile_rows) = (self.inputs / unit_depth, self.rows);
            return Arrangement { chunks: 1, blocks: 1, tiles: 1, block_units, tile_rows };
        }
        let most = self.format.sums() / self.panels_together(2);
        let chunks = self.rows.div_ceil(MOST_ROWS_TOGETHER);
        let chunk_rows = self.rows.div_ceil(chunks);
        let tile_rows = if self.format.in_matrices() {
            2 * tile_rows(chunk_rows.div_ceil(2), most / 2)
        } else {
            tile_rows(chunk_rows, most)
        };
        let block = BLOCK.min(self.inputs.next_multiple_of(2));
        Arrangement {
            chunks,
            blocks: self.inputs.div_ceil(block),
            tiles: chunk_rows.div_ceil(tile_rows),
            block_units: block / unit_depth,
            tile_rows,
        }
    }

    /// Whether the sums of all rows stay in registers while the weight is streamed.
    fn few_rows(&self) -> bool {
        self.rows <= few_rows(&self.format)
    }

    /// Whole panels.
    pub(super) fn panels(&self) -> usize {
        self.outputs / self.format.lanes()
    }

    /// Outputs after the last whole panel.
    pub(super) fn rest(&self) -> usize {
        self.outputs % self.format.lanes()
    }

    /// How many panels are computed together: at most `most`, with enough groups left for many cores: 64 where
    /// the weight is streamed, fewer where each computes many rows.
    pub(super) fn panels_together(&self, most: usize) -> usize {
        let panels = self.panels();
        let groups = if self.few_rows() { 64usize } else { 12 };
        let groups = groups.div_ceil(self.experts.map_or(1, |blocks| blocks.count));
        let mut together = most;
        while together > 1 && (!panels.is_multiple_of(together) || panels / together < groups) {
            together /= 2;
        }
        together
    }

    /// Whether blocks of rows have an expert, or an adapter, each.
    pub(super) fn of_experts(&self) -> bool {
        self.experts.is_some()
    }

    /// Steps of a panel.
    pub(super) fn steps(&self) -> usize {
        self.inputs / self.format.depth()
    }

    /// Whether a panel ends with a step of one input where the others have two.
    pub(super) fn has_last_step(&self) -> bool {
        !self.inputs.is_multiple_of(self.format.depth())
    }

    /// The type of the activations as a kernel takes them.
    fn arranged_type(&self) -> TensorType {
        let Arrangement { chunks, blocks, tiles, block_units, tile_rows } = self.arrangement;
        let mut shape = vec![chunks, blocks, tiles, block_units, tile_rows];
        if let Some(of_experts) = self.experts {
            shape.insert(0, of_experts.given());
        }
        if self.format.unit_depth() > 1 {
            shape.push(self.format.unit_depth());
        }
        TensorType::new(self.activation_element(), shape)
    }

    fn activation_element(&self) -> ElementType {
        if self.format.unit_depth() > 1 { ElementType::BF16 } else { ElementType::F32 }
    }

    /// Writes the activations in the order in which a kernel reads them.
    pub(super) fn arranged<'f>(&self, b: &mut Builder<'f>, x: Value<'f>) -> Result<Value<'f>> {
        let Arrangement { chunks, blocks, tiles, block_units, tile_rows } = self.arrangement;
        let depth = self.format.unit_depth();
        let (rows, inputs) = (chunks * tiles * tile_rows, blocks * block_units * depth);
        let given = self.experts.map_or(1, |of_experts| of_experts.given());
        let x = if self.activation_element() == ElementType::F32 { widened(b, x)? } else { x };
        let x = b.convert(x, self.activation_element())?;
        let mut x = b.reshape(x, &[given, self.rows, self.inputs])?;
        if (rows, inputs) != (self.rows, self.inputs) {
            let zero = b.splat(self.activation_element(), 0.0, &[])?;
            let more = [0, rows - self.rows, inputs - self.inputs].map(|count| count as i64);
            x = b.pad(x, zero, &[0; 3], &more, &[0; 3])?;
        }
        if rows > 1 {
            let mut shape = vec![given, chunks, tiles, tile_rows, blocks, block_units];
            let mut order = vec![0, 1, 4, 2, 5, 3];
            if depth > 1 {
                shape.push(depth);
                order.push(6);
            }
            // Dimensions of one element are removed, so that the compiler sees a simple transposition.
            let kept: Vec<usize> = (0..shape.len()).filter(|&i| shape[i] != 1).collect();
            let order: Vec<usize> =
                order.iter().filter_map(|i| kept.iter().position(|kept| kept == i)).collect();
            let shape: Vec<usize> = kept.iter().map(|&i| shape[i]).collect();
            x = b.reshape(x, &shape)?;
            x = b.transpose(x, &order)?;
        }
        b.reshape(x, &self.arranged_type().shape)
    }

    /// The outputs of a workgroup.
    fn workgroup_results(
        &self,
        w: &mut Writer,
        buffers: &Buffers,
        workgroup: &Operand,
        panels_in_group: usize,
    ) {
        let few = self.few_rows();
        let main = |w: &mut Writer| {
            let first = w.scaled("panel", workgroup, panels_in_group);
            if few {
                streamed::write(self, w, buffers, &first);
            } else {
                blocked::write(self, w, buffers, &first);
            }
        };
        if self.rest() == 0 {
            return main(w);
        }
        let groups = w.index(self.panels().div_ceil(panels_in_group));
        if self.panels() > 0 {
            let in_panels = w.compare("in_panels", "ult", workgroup, &groups);
            w.if_then(&in_panels, main);
        }
        let behind = w.compare("behind", "uge", workgroup, &groups);
        w.if_then(&behind, |w| {
            let row = w.arith("rest", "subi", workgroup, &groups);
            rest::write(self, w, buffers, &row);
        });
    }

    /// The index in `weight.panels` at which a panel begins.
    pub(super) fn panel_start(&self, w: &mut Writer, panel: &Operand) -> Operand {
        w.scaled("start", panel, self.format.lanes() * self.inputs / self.format.depth())
    }

    /// The first of the outputs of a panel.
    pub(super) fn column(&self, w: &mut Writer, panel: &Operand) -> Operand {
        w.scaled("column", panel, self.format.lanes())
    }

    /// The prefetch distance in elements: at least 4 KiB.
    pub(super) fn ahead(&self) -> usize {
        self.format.bytes_ahead().max(4096) / self.format.step_bytes() * self.format.lanes()
    }

    /// One element of the weight as float32.
    pub(super) fn element(&self, w: &mut Writer, buffers: &Buffers, at: &Operand) -> Operand {
        let element = buffers.elements.element(w, "element", &[at]);
        match self.weight {
            ElementType::F32 => element,
            _ => w.cast("element", "extf", &element, "f32"),
        }
    }
}

impl Description for Product {
    /// The kernel over arranged activations and the weight in panels; its result is `[rows, outputs]` of
    /// float32.
    fn kernel(&self) -> Kernel {
        let Self { rows, inputs, outputs, weight, .. } = *self;
        let few = self.few_rows();
        let panels_in_group =
            if few { streamed::panels_of_workgroup(self) } else { blocked::panels_of_workgroup(self) };
        let groups = self.panels().div_ceil(panels_in_group);
        let of = if self.experts.is_some() { "expert_" } else { "" };
        let label = format!("{of}linear_{weight}_{rows}x{inputs}x{outputs}");
        let blocks = self.experts.map_or(1, |blocks| blocks.count);
        let mut kernel = Kernel::new(label, [groups + self.rest(), blocks, 1]);
        let (buffers, block) = Buffers::new(self, &mut kernel);
        let workgroup = kernel.workgroup(0);
        let w = &mut kernel.body;
        let compute = |w: &mut Writer| self.workgroup_results(w, &buffers, &workgroup, panels_in_group);
        match block {
            Some(block) => {
                block.results(w, &workgroup, &buffers.out, [rows, outputs], compute);
            }
            None => compute(w),
        }
        kernel
    }
}

/// `x` as float32. Values rounded to bfloat16 are rounded again, by their bits: the compiler folds a
/// conversion and its reverse where it fuses both, which depends on the number of rows.
fn widened<'f>(b: &mut Builder<'f>, x: Value<'f>) -> Result<Value<'f>> {
    let is_rounded = b.ty(x).element == ElementType::BF16;
    let x = b.convert(x, ElementType::F32)?;
    if !is_rounded {
        return Ok(x);
    }
    let shape = b.shape(x);
    let bits = b.bitcast_convert(x, ElementType::U32)?;
    let [half, one, below, kept] = [16u32, 1, 0x7fff, 0xffff_0000];
    let all = |b: &mut Builder<'f>, bits: u32| b.splat(ElementType::U32, f64::from(bits), &shape);
    let (half, one, below, kept) = (all(b, half)?, all(b, one)?, all(b, below)?, all(b, kept)?);
    // To nearest, ties to even.
    let last = b.shift_right_logical(bits, half)?;
    let last = b.and(last, one)?;
    let bits = b.add(bits, below)?;
    let bits = b.add(bits, last)?;
    let bits = b.and(bits, kept)?;
    b.bitcast_convert(bits, ElementType::F32)
}

/// The most rows for which the weight is streamed with their sums in registers.
fn few_rows(format: &Format) -> usize {
    FEW_ROWS.min(format.streamed_sums())
}

/// The rows of a tile: as many as fit, but preferably somewhat fewer that divide `rows` evenly.
fn tile_rows(rows: usize, most: usize) -> usize {
    let fitting = rows.div_ceil(rows.div_ceil(most));
    let dividing = (1..=most).rev().find(|&size| rows.is_multiple_of(size)).unwrap_or(1);
    if 3 * dividing >= 2 * most { dividing } else { fitting }
}

/// The buffers of a kernel.
#[derive(Debug)]
pub(super) struct Buffers {
    /// Arranged activations, in units.
    pub(super) x: View,
    /// The weight in elements that steps are loaded as, one for each lane of a step.
    pub(super) panels: View,
    /// The weight in its own elements.
    pub(super) elements: View,
    /// The result, `[rows, outputs]`.
    pub(super) out: View,
}

impl Buffers {
    /// The buffers of a call; with experts, those of the workgroup's block.
    fn new(product: &Product, kernel: &mut Kernel) -> (Self, Option<Block>) {
        let Product { rows, inputs, outputs, weight, format, experts, .. } = *product;
        let (x, panels) = (kernel.operand("x"), kernel.panel_operand("weight"));
        let experts = experts.map(|blocks| (blocks, kernel.operand("experts")));
        let out = kernel.result("out");
        let given = experts.as_ref().map_or(1, |(blocks, _)| blocks.given());
        let activations = product.arranged_type().elements() / format.unit_depth() / given;
        let stored = product.panels() * format.lanes() * inputs / format.depth();
        let (units, elements) = (format.activation(), weight.mlir());
        let Some((blocks, experts)) = experts else {
            let buffers = Self {
                x: kernel.view("x", &x, &[activations], units),
                panels: kernel.view("panels", &panels, &[stored], format.stored()),
                elements: kernel.view("elements", &panels, &[outputs * inputs], elements),
                out: kernel.view("out", &out, &[rows, outputs], "f32"),
            };
            return (buffers, None);
        };
        let block = blocks.find(kernel, &experts);
        let matrix = outputs * inputs;
        let starts = [
            blocks.start(&mut kernel.body, &block, activations),
            kernel.body.scaled("start", &block.matrix, matrix / format.depth()),
            kernel.body.scaled("start", &block.matrix, matrix),
            kernel.body.scaled("start", &block.number, rows * outputs),
        ];
        let mut number = 0;
        let mut view = |word: &str, binding: &Binding, all: usize, shape: &[usize], element: &'static str| {
            let part = Part { all, offset: &starts[number], shape, strides: &experts::dense(shape) };
            number += 1;
            experts::part(kernel, word, binding, &part, element)
        };
        let all = blocks.matrices * matrix;
        let buffers = Self {
            x: view("x", &x, given * activations, &[activations], units),
            panels: view("panels", &panels, all / format.depth(), &[stored], format.stored()),
            elements: view("elements", &panels, all, &[matrix], elements),
            out: view("out", &out, blocks.count * rows * outputs, &[rows, outputs], "f32"),
        };
        (buffers, Some(block))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vector_set::VectorSet;

    fn product(set: VectorSet, rows: usize) -> Product {
        let instructions = Instructions::new(set);
        let x = TensorType::new(ElementType::F32, [rows, 2048]);
        Product::new(&x, &TensorType::new(ElementType::BF16, [8192, 2048]), instructions, None).unwrap()
    }

    #[test]
    fn tiles_cover_all_rows_and_common_row_counts_fill_them() {
        for set in [VectorSet::Avx512, VectorSet::Avx2, VectorSet::Neon] {
            for rows in (1..300).chain([512, 1000, 2048]) {
                let Arrangement { chunks, blocks, tiles, block_units, tile_rows } =
                    product(set, rows).arrangement;
                let places = chunks * tiles * tile_rows;
                assert!(places >= rows, "{set:?} {rows}");
                assert!((places - rows) * 3 <= places, "{set:?} {rows}: {places}");
                assert_eq!(blocks * block_units, 2048);
                if [16, 32, 64, 128, 256, 512, 2048].contains(&rows) {
                    assert_eq!(places, rows, "{set:?}");
                }
            }
        }
    }

    #[test]
    fn large_layers_have_workgroups_for_many_cores() {
        for rows in [1, 8, 16, 128, 512] {
            let product = product(VectorSet::Avx512, rows);
            let of_workgroup = if product.few_rows() {
                streamed::panels_of_workgroup(&product)
            } else {
                blocked::panels_of_workgroup(&product)
            };
            assert!(product.panels() / of_workgroup >= 64, "{rows}");
        }
    }
}
