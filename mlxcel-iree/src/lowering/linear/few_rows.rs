//! The kernel of a linear layer over few rows: decoding, where reading the weight is all the work.
//!
//! The compiler's own code for `dot_general` over weights in half precision is bound by the instructions that it spends on each
//! weight, not by memory. This one converts sixteen weights with one load and one shift, multiplies them with every row, and
//! so reads the weight once, as fast as memory gives it. It is written in MLIR's `vector` dialect, which knows no instruction
//! set: LLVM makes of it what the target has.

use std::fmt::Write;

use mlxcel_stablehlo::{ElementType, TensorType};

use crate::lowering::kernels::Kernel;

/// The most rows: beyond, the compiler's own tiling for matrix products does better.
const MOST_ROWS: usize = 16;

/// Rows whose sums are kept in registers together: four rows by four outputs fill half of 32 vector registers.
const ROWS_TOGETHER: usize = 4;

/// Bytes of weight that one workgroup reads: enough to hide the cost of starting it, little enough to share work evenly.
const WORKGROUP_BYTES: usize = 256 * 1024;

/// `x: [rows, inputs]` times the transpose of `weight: [outputs, inputs]`, with sums in float32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct FewRows {
    rows: usize,
    inputs: usize,
    outputs: usize,
    x: ElementType,
    weight: ElementType,
    out: ElementType,
}

/// How the loops of a kernel are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tiling {
    /// Elements of one vector.
    lanes: usize,
    /// Outputs computed together, which share the loads of `x`.
    outputs: usize,
    /// Vectors of each row taken in one turn of the loop over inputs, so that enough sums run side by side.
    unroll: usize,
    /// Outputs of one workgroup.
    workgroup: usize,
}

impl FewRows {
    /// The kernel for these operands, or none where the compiler's code is as good or the shapes do not fit vectors.
    pub(crate) fn new(x: &TensorType, weight: &TensorType, out: ElementType) -> Option<Self> {
        let &[outputs, inputs] = &weight.shape[..] else { return None };
        let rows = x.elements().checked_div(inputs)?;
        let fits = (1..=MOST_ROWS).contains(&rows) && outputs > 0 && inputs.is_multiple_of(4);
        let floats = [x.element, weight.element, out].into_iter().all(ElementType::is_float);
        (fits && floats).then_some(Self { rows, inputs, outputs, x: x.element, weight: weight.element, out })
    }

    fn tiling(&self, rows: usize) -> Tiling {
        let dividing = |of: usize, most: usize| {
            let mut size = most;
            while !of.is_multiple_of(size) {
                size /= 2;
            }
            size
        };
        let lanes = dividing(self.inputs, 16);
        let outputs = dividing(self.outputs, 4);
        let unroll = dividing(self.inputs / lanes, (8 / (outputs * rows)).max(1).next_power_of_two());
        let row_bytes = self.weight.bytes_for(self.inputs);
        let workgroup = (WORKGROUP_BYTES / row_bytes).max(1).next_multiple_of(outputs);
        Tiling { lanes, outputs, unroll, workgroup }
    }

    /// The kernel.
    pub(crate) fn kernel(&self) -> Kernel {
        let Self { rows, inputs, outputs, x, weight, out } = *self;
        let workgroup = self.tiling(rows.min(ROWS_TOGETHER)).workgroup;
        let label = format!("linear_{weight}_{rows}x{inputs}x{outputs}");
        let mut kernel = Kernel::new(label, [outputs.div_ceil(workgroup), 1, 1]);
        let bindings = [
            (kernel.operand("x"), "%x", format!("memref<{rows}x{inputs}x{x}>")),
            (kernel.operand("weight"), "%weight", format!("memref<{outputs}x{inputs}x{weight}>")),
            (kernel.result("out"), "%out", format!("memref<{rows}x{outputs}x{out}>")),
        ];
        kernel.body.line("%zero = arith.constant 0 : index");
        for (binding, name, ty) in bindings {
            kernel.body.line(format_args!(
                "{name} = stream.binding.subspan {binding}[%zero] : !stream.binding -> {ty}"
            ));
        }
        let mut loops = String::new();
        for first in (0..rows).step_by(ROWS_TOGETHER) {
            self.rows_loop(&mut loops, first, ROWS_TOGETHER.min(rows - first));
        }
        let lines = format!(
            "%workgroup = stream.dispatch.workgroup.id[0] : index
%workgroup_size = arith.constant {workgroup} : index
%outputs = arith.constant {outputs} : index
%inputs = arith.constant {inputs} : index
%begin = arith.muli %workgroup, %workgroup_size : index
%full_end = arith.addi %begin, %workgroup_size : index
%end = arith.minui %full_end, %outputs : index
{loops}"
        );
        lines.lines().for_each(|line| kernel.body.line(line.trim_start()));
        kernel
    }

    /// The loops over a workgroup's outputs for `count` rows from `first`.
    ///
    /// Later rows find a workgroup's weights in the cache, where the first have left them.
    fn rows_loop(&self, text: &mut String, first: usize, count: usize) {
        let Self { rows, inputs, outputs, x, weight, out } = *self;
        let tiling = self.tiling(count);
        let lanes = tiling.lanes;
        let step = lanes * tiling.unroll;
        let vector = format!("vector<{lanes}xf32>");
        // One running sum for each output, row and unrolled vector.
        let sums = |prefix: &str| -> Vec<String> {
            let tile = move |o| (0..count).map(move |m| (o, m));
            let all = (0..tiling.outputs)
                .flat_map(tile)
                .flat_map(|(o, m)| (0..tiling.unroll).map(move |u| (o, m, u)));
            all.map(|(o, m, u)| format!("%{prefix}_{first}_{o}_{m}_{u}")).collect()
        };
        let before = sums("sum");
        let starts = before.iter().map(|sum| format!("{sum} = %none_{first}")).collect::<Vec<_>>().join(", ");
        let types = vec![vector.as_str(); before.len()].join(", ");
        let mut line = |indent: usize, content: std::fmt::Arguments<'_>| {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{:indent$}{content}", "");
        };
        line(8, format_args!("%none_{first} = arith.constant dense<0.0> : {vector}"));
        line(8, format_args!("%tile_{first} = arith.constant {} : index", tiling.outputs));
        line(8, format_args!("%step_{first} = arith.constant {step} : index"));
        for m in 0..count {
            line(8, format_args!("%row_{first}_{m} = arith.constant {} : index", first + m));
        }
        line(8, format_args!("scf.for %output_{first} = %begin to %end step %tile_{first} {{"));
        for o in 0..tiling.outputs {
            line(10, format_args!("%offset_{first}_{o} = arith.constant {o} : index"));
            line(
                10,
                format_args!("%at_{first}_{o} = arith.addi %output_{first}, %offset_{first}_{o} : index"),
            );
        }
        line(
            10,
            format_args!(
                "%total_{first}:{} = scf.for %k_{first} = %zero to %inputs step %step_{first} iter_args({starts}) -> ({types}) {{",
                before.len()
            ),
        );
        for u in 0..tiling.unroll {
            line(12, format_args!("%ahead_{first}_{u} = arith.constant {} : index", u * lanes));
            line(12, format_args!("%k_{first}_{u} = arith.addi %k_{first}, %ahead_{first}_{u} : index"));
            let mut load = |target: &str, source: &str, row: &str, shape: String, element: ElementType| {
                let from = format!("{source}[{row}, %k_{first}_{u}] : memref<{shape}x{element}>");
                if element == ElementType::F32 {
                    line(12, format_args!("{target} = vector.load {from}, {vector}"));
                } else {
                    let narrow = format!("vector<{lanes}x{element}>");
                    line(12, format_args!("{target}_narrow = vector.load {from}, {narrow}"));
                    line(12, format_args!("{target} = arith.extf {target}_narrow : {narrow} to {vector}"));
                }
            };
            for m in 0..count {
                let target = format!("%x_{first}_{m}_{u}");
                load(&target, "%x", &format!("%row_{first}_{m}"), format!("{rows}x{inputs}"), x);
            }
            for o in 0..tiling.outputs {
                let target = format!("%w_{first}_{o}_{u}");
                load(&target, "%weight", &format!("%at_{first}_{o}"), format!("{outputs}x{inputs}"), weight);
            }
            for o in 0..tiling.outputs {
                for m in 0..count {
                    let at = format!("{first}_{o}_{m}_{u}");
                    let product = format!("%w_{first}_{o}_{u}, %x_{first}_{m}_{u}, %sum_{at}");
                    line(12, format_args!("%next_{at} = vector.fma {product} : {vector}"));
                }
            }
        }
        line(12, format_args!("scf.yield {} : {types}", sums("next").join(", ")));
        line(10, format_args!("}}"));
        for o in 0..tiling.outputs {
            for m in 0..count {
                let at = format!("{first}_{o}_{m}");
                let index = (o * count + m) * tiling.unroll;
                let mut sum = format!("%total_{first}#{index}");
                for u in 1..tiling.unroll {
                    line(
                        10,
                        format_args!(
                            "%joined_{at}_{u} = arith.addf {sum}, %total_{first}#{} : {vector}",
                            index + u
                        ),
                    );
                    sum = format!("%joined_{at}_{u}");
                }
                line(10, format_args!("%result_{at} = vector.reduction <add>, {sum} : {vector} into f32"));
                let mut result = format!("%result_{at}");
                if out != ElementType::F32 {
                    line(10, format_args!("%rounded_{at} = arith.truncf {result} : f32 to {out}"));
                    result = format!("%rounded_{at}");
                }
                let place =
                    format!("%out[%row_{first}_{m}, %at_{first}_{o}] : memref<{rows}x{outputs}x{out}>");
                line(10, format_args!("memref.store {result}, {place}"));
            }
        }
        line(8, format_args!("}}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(rows: usize, outputs: usize, inputs: usize) -> Option<FewRows> {
        let x = TensorType::new(ElementType::F32, [rows, inputs]);
        FewRows::new(&x, &TensorType::new(ElementType::BF16, [outputs, inputs]), ElementType::F32)
    }

    #[test]
    fn tiles_divide_what_they_tile() {
        for (rows, outputs, inputs) in
            [(1, 729, 192), (1, 128_256, 2048), (4, 2048, 8192), (16, 6, 20), (3, 1, 4)]
        {
            let kernel = kernel(rows, outputs, inputs).unwrap();
            for count in 1..=ROWS_TOGETHER {
                let tiling = kernel.tiling(count);
                assert!(inputs.is_multiple_of(tiling.lanes * tiling.unroll), "{kernel:?} {tiling:?}");
                assert!(
                    outputs.is_multiple_of(tiling.outputs) && tiling.workgroup.is_multiple_of(tiling.outputs)
                );
                assert!(tiling.outputs * count * tiling.unroll <= 16);
            }
        }
    }

    #[test]
    fn there_is_no_kernel_for_many_rows_or_shapes_that_do_not_fit_vectors() {
        assert_eq!(kernel(MOST_ROWS + 1, 8, 8), None);
        assert_eq!(kernel(1, 8, 6), None);
        assert_eq!(kernel(0, 8, 8), None);
        assert_eq!(kernel(1, 0, 8), None);
        assert_eq!(kernel(1, 8, 0), None);
    }
}
