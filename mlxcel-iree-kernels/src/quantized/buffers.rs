//! Views of the buffers of a linear layer's kernel; with experts, those of the workgroup's block.

use mlxcel_graph::packed::operand_parts;

use super::linear::Linear;
use super::product::Product;
use super::tail;
use super::weight::{self, Weight};
use crate::experts::{self, Block, Part};
use crate::kernels::{Binding, Kernel};
use crate::view::View;

/// The views of a call's buffers.
pub(super) struct Views {
    /// `[chunks, rows, chunk / width, planes]`: the activations that are multiplied with a lane.
    pub(super) x: View,
    /// `[chunks, rows, 2]` f32: scale and sum.
    pub(super) meta: View,
    /// `[panels, width, lanes]` each.
    pub(super) weight: Weight,
    /// `[rows, outputs]` f32.
    pub(super) out: View,
}

/// The buffers of a call, and the workgroup's block if there are blocks.
pub(super) struct Buffers {
    x: Binding,
    meta: Binding,
    parts: Vec<Binding>,
    out: Binding,
    pub(super) block: Option<Block>,
}

impl Buffers {
    pub(super) fn new(linear: &Linear, kernel: &mut Kernel) -> Self {
        let (x, meta) = (kernel.operand("x"), kernel.operand("meta"));
        let parts = operand_parts(&linear.product.form.packing);
        let parts = parts.map(|part| kernel.panel_operand(weight::name(part))).collect();
        let experts = linear.blocks.map(|blocks| (blocks, kernel.operand("experts")));
        let out = kernel.result("out");
        let block = experts.map(|(blocks, experts)| blocks.find(kernel, &experts));
        Self { x, meta, parts, out, block }
    }

    /// Activations of `of_row` elements per chunk and row, those of the workgroup's block.
    fn activations(
        &self,
        linear: &Linear,
        kernel: &mut Kernel,
        (word, binding): (&str, &Binding),
        of_row: &[usize],
        element: &'static str,
    ) -> View {
        let (chunks, rows) = (linear.product.form.chunks(), linear.rows);
        let shape = [&[chunks, rows], of_row].concat();
        let (Some(blocks), Some(block)) = (linear.blocks, &self.block) else {
            return kernel.view(word, binding, &shape, element);
        };
        let row: usize = of_row.iter().product();
        let offset = blocks.start(&mut kernel.body, block, rows * row);
        let mut strides = experts::dense(&shape);
        strides[0] *= blocks.given();
        let part = Part {
            all: chunks * blocks.given() * rows * row,
            offset: &offset,
            shape: &shape,
            strides: &strides,
        };
        experts::part(kernel, word, binding, &part, element)
    }

    /// The buffer of a part of the weight with `of_output` elements per output, those of the block's matrix.
    fn weight(
        &self,
        linear: &Linear,
        kernel: &mut Kernel,
        (word, binding): (&str, &Binding),
        (of_output, shape): (usize, &[usize]),
        element: &'static str,
    ) -> View {
        let (Some(blocks), Some(block)) = (linear.blocks, &self.block) else {
            return kernel.view(word, binding, shape, element);
        };
        let matrix = linear.product.form.outputs * of_output;
        let offset = kernel.body.scaled("start", &block.matrix, matrix);
        let part =
            Part { all: blocks.matrices * matrix, offset: &offset, shape, strides: &experts::dense(shape) };
        experts::part(kernel, word, binding, &part, element)
    }
}

impl Views {
    pub(super) fn new(linear: &Linear, kernel: &mut Kernel, buffers: &Buffers) -> Self {
        let Product { form, arithmetic, .. } = linear.product;
        let of_row = [linear.product.units(), arithmetic.planes()];
        let x = buffers.activations(linear, kernel, ("x", &buffers.x), &of_row, linear.product.met());
        let meta = buffers.activations(linear, kernel, ("meta", &buffers.meta), &[2], "f32");
        let weight = Weight::new(&form, |index, part| {
            let (width, element) = form.in_panels(part);
            let given = (weight::name(part), &buffers.parts[index]);
            let shape = [form.panels(), width, form.lanes];
            buffers.weight(linear, kernel, given, (width, &shape), element)
        });
        let shape = [linear.rows, form.outputs];
        let out = match (linear.blocks, &buffers.block) {
            (Some(blocks), Some(block)) => {
                let size = shape.iter().product();
                let offset = kernel.body.scaled("start", &block.number, size);
                let part = Part {
                    all: blocks.count * size,
                    offset: &offset,
                    shape: &shape,
                    strides: &experts::dense(&shape),
                };
                experts::part(kernel, "out", &buffers.out, &part, "f32")
            }
            _ => kernel.view("out", &buffers.out, &shape, "f32"),
        };
        Self { x, meta, weight, out }
    }
}

impl tail::Views {
    pub(super) fn new(linear: &Linear, kernel: &mut Kernel, buffers: &Buffers) -> Self {
        let Product { form, arithmetic, .. } = linear.product;
        let of_row = [form.chunk() * arithmetic.planes()];
        let x = ("x_values", &buffers.x);
        let x = buffers.activations(linear, kernel, x, &of_row, arithmetic.activation());
        let weight = Weight::new(&form, |index, part| {
            let (width, element) = form.as_stored(part);
            let given = (weight::name(part), &buffers.parts[index]);
            buffers.weight(linear, kernel, given, (width, &[form.outputs, width]), element)
        });
        Self { x, weight }
    }
}
