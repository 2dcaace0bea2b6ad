//! Barriers that keep the compiler's code for GPUs within what it can express.
//!
//! The compiler fuses operations into kernels and then fails to write the kernel: counted positions next to a
//! reduction make it share indices between threads, which it cannot distribute, and SPIR-V (Vulkan, Metal)
//! has no type for. In SPIR-V, table lookups do so too; half precision next to a matrix product or a
//! reduction makes it load two numbers as one, and so does a bias in half precision that is added to a
//! product, or is reshaped before. A barrier after each of these keeps it in a kernel of its own.
//!
//! A reduction of other dimensions than the last is fused with what reads its operand or its result into a
//! kernel that it cannot write, or whose numbers are wrong. Barriers before and after keep it alone.
//!
//! Where many rows of few elements are reduced, as scores of few experts are, and the results are reduced
//! again, it computes eight rows at once in one kernel, and SPIR-V has no vectors of more than four elements.
//! A barrier after such a reduction keeps it apart from the next.
//!
//! A product of matrices that is transposed afterwards, as attention is for each head, becomes one kernel
//! that computes each element by itself, 27 times slower on an H100 than the products beside it. A barrier
//! between them keeps the product one of matrices.
//!
//! Where it sees that integers are not negative, it divides them as unsigned ones, which it cannot write in
//! SPIR-V for single elements. A barrier before a division hides where its numbers come from.

use std::collections::HashSet;

use mlxcel_stablehlo::print::CustomCall;
use mlxcel_stablehlo::{BinaryOp, Block, ElementType, Function, Op, OpKind, TensorType, ValueId};

/// The name of a barrier in a module until it is printed.
const BARRIER: &str = "mlxcel.barrier";

/// Fewer elements than these are few in a row.
const FEW_ELEMENTS: usize = 16;
/// The compiler computes so many rows at once if there are as many.
const ROWS_AT_ONCE: usize = 8;

/// Inserts barriers where the compiler would fuse too much.
pub(super) fn insert(function: &mut Function, in_spirv: bool) {
    let mut body = std::mem::take(&mut function.body);
    part_block(function, &mut body, in_spirv);
    function.body = body;
}

/// The text of a barrier. Unlike `stablehlo.optimization_barrier` it does not end a submission to the device,
/// nor have the host wait for one.
pub(super) fn print(call: &CustomCall<'_>) -> Option<String> {
    let (operand, ty) = (call.operands.first()?, call.signature.rsplit_once("-> ")?.1);
    (call.target == BARRIER)
        .then(|| format!("iree_tensor_ext.compute_barrier.start {operand} : {ty} -> {ty}"))
}

/// Inserts barriers into a block of `function` and the blocks inside.
fn part_block(function: &mut Function, block: &mut Block, in_spirv: bool) {
    let weights: HashSet<ValueId> = function.arguments.iter().map(|argument| argument.value).collect();
    let multiplied = operands_of(block, |op| is_product_of_matrices(op, function));
    let added = added_after_broadcast(block);
    let reshaped = operands_of(block, |op| matches!(op.kind, OpKind::Reshape));
    let transposed = operands_of(block, |op| moves_rows(op, function));
    let ops = std::mem::take(&mut block.ops);
    let mut parted = Vec::with_capacity(ops.len());
    for mut op in ops {
        op.regions.iter_mut().for_each(|region| part_block(function, region, in_spirv));
        let sums_columns = reduces_before_last(&op, function);
        if sums_columns || in_spirv && divides_signed(&op, function) {
            let hidden = function.add_value(function.value_type(op.operands[0]).clone());
            parted.extend(barrier(function, op.operands[0], hidden));
            op.operands[0] = hidden;
        }
        let ends_kernel = match op.kind {
            OpKind::Iota { .. } => true,
            OpKind::Gather { .. } => in_spirv,
            OpKind::Convert if in_spirv => {
                let from = function.value_type(op.operands[0]);
                let half = matches!(from.element, ElementType::BF16 | ElementType::F16);
                let result = &op.results[0];
                let on_the_way = weights.contains(&op.operands[0]) && !multiplied.contains(result);
                let fuses = match from.shape.len() {
                    0 | 1 => added.contains(result) || reshaped.contains(result),
                    _ => !on_the_way,
                };
                half && fuses
            }
            OpKind::DotGeneral { .. } => transposed.contains(&op.results[0]),
            OpKind::Reduce { .. } => sums_columns || in_spirv && reduces_few(&op, function),
            _ => false,
        };
        if !ends_kernel {
            parted.push(op);
            continue;
        }
        let result = op.results[0];
        let ty = function.value_type(result).clone();
        op.results[0] = function.add_value(ty);
        let barrier = barrier(function, op.results[0], result);
        parted.push(op);
        parted.extend(barrier);
    }
    block.ops = parted;
}

/// A barrier from `operand` to `result`. The compiler's has no unsigned integers, whose bits pass as those of
/// signed ones.
fn barrier(function: &mut Function, operand: ValueId, result: ValueId) -> Vec<Op> {
    let op = |kind, operand, result| Op {
        kind,
        operands: vec![operand],
        results: vec![result],
        regions: Vec::new(),
    };
    let call =
        OpKind::CustomCall { target: BARRIER.to_owned(), attributes: Vec::new(), has_side_effect: false };
    let ty = function.value_type(operand);
    let signed = match ty.element {
        ElementType::U32 => ElementType::I32,
        ElementType::U8 => ElementType::I8,
        ElementType::U4 => ElementType::I4,
        _ => return vec![op(call, operand, result)],
    };
    let ty = TensorType::new(signed, ty.shape.clone());
    let [before, behind] = [(); 2].map(|()| function.add_value(ty.clone()));
    vec![
        op(OpKind::BitcastConvert, operand, before),
        op(call, before, behind),
        op(OpKind::BitcastConvert, behind, result),
    ]
}

/// Whether an operation divides signed integers.
fn divides_signed(op: &Op, function: &Function) -> bool {
    matches!(op.kind, OpKind::Binary(BinaryOp::Divide | BinaryOp::Remainder))
        && function.value_type(op.operands[0]).element.is_signed()
}

/// Whether an operation reduces another dimension than the last ones.
fn reduces_before_last(op: &Op, function: &Function) -> bool {
    let OpKind::Reduce { dimensions, .. } = &op.kind else { return false };
    let rank = function.value_type(op.operands[0]).shape.len();
    dimensions.first().is_some_and(|&first| first + dimensions.len() < rank)
}

/// Whether an operation reduces many rows of few elements.
fn reduces_few(op: &Op, function: &Function) -> bool {
    let elements = |value| function.value_type(value).elements();
    let (all, rows) = (elements(op.operands[0]), elements(op.results[0]));
    rows >= ROWS_AT_ONCE && all < rows * FEW_ELEMENTS
}

/// Whether an operation transposes more than dimensions of one element.
fn moves_rows(op: &Op, function: &Function) -> bool {
    let OpKind::Transpose { permutation } = &op.kind else { return false };
    let shape = &function.value_type(op.operands[0]).shape;
    let order = permutation.iter().filter(|dimension| shape[**dimension] > 1);
    !order.is_sorted()
}

/// The operands of the operations of a block that are `wanted`.
fn operands_of(block: &Block, wanted: impl Fn(&Op) -> bool) -> HashSet<ValueId> {
    block.ops.iter().filter(|op| wanted(op)).flat_map(|op| op.operands.iter().copied()).collect()
}

/// The values that are broadcast and then added to others, as biases are.
fn added_after_broadcast(block: &Block) -> HashSet<ValueId> {
    let added = operands_of(block, |op| matches!(op.kind, OpKind::Binary(BinaryOp::Add)));
    operands_of(block, |op| {
        matches!(op.kind, OpKind::BroadcastInDim { .. }) && added.contains(&op.results[0])
    })
}

/// Whether an operation multiplies several rows by several: with one row nothing is loaded twice, and the
/// conversion is better fused.
fn is_product_of_matrices(op: &Op, function: &Function) -> bool {
    let OpKind::DotGeneral { dimensions } = &op.kind else { return false };
    let [left, right] = op.operands[..] else { return false };
    let rows = |operand: ValueId, contracting: &[usize]| {
        let shape = &function.value_type(operand).shape;
        let others = (0..shape.len()).filter(|dimension| !contracting.contains(dimension));
        others.map(|dimension| shape[dimension]).product::<usize>()
    };
    rows(left, &dimensions.lhs_contracting) > 1 && rows(right, &dimensions.rhs_contracting) > 1
}

#[cfg(test)]
mod tests {
    use mlxcel_graph::layers;
    use mlxcel_stablehlo::{Comparison, Module};

    use super::super::shapes::by_group;
    use super::super::text;
    use super::*;

    fn text_of(rows: usize) -> String {
        let module = Module::of_function("test", "main", |b| {
            let x = b.argument("x", TensorType::new(ElementType::F32, [rows, 64]))?;
            let w = b.argument("w", TensorType::new(ElementType::BF16, [96, 64]))?;
            let norm = b.argument("norm", TensorType::new(ElementType::BF16, [64]))?;
            let norm = b.convert(norm, ElementType::F32)?;
            let norm = b.broadcast_like(norm, x)?;
            let x = b.multiply(x, norm)?;
            let positions = b.iota(TensorType::new(ElementType::I32, [8]), 0)?;
            Ok(vec![layers::linear(b, x, w, None, ElementType::F32)?, positions])
        })
        .unwrap();
        text(module.decompose_composites(|_| true).unwrap(), true)
    }

    #[test]
    fn counted_positions_and_weights_of_products_are_kept_apart() {
        let many = text_of(4);
        assert_eq!(many.matches("compute_barrier.start").count(), 2, "{many}");
        assert!(many.contains("-> tensor<8xi32>\n") && many.contains("-> tensor<96x64xf32>\n"), "{many}");
        let one = text_of(1);
        assert_eq!(one.matches("compute_barrier.start").count(), 1, "{one}");
    }

    #[test]
    fn a_product_is_kept_apart_from_a_transposition_of_its_rows() {
        let barriers = |rows, permutation: [usize; 3]| {
            let module = Module::of_function("test", "main", |b| {
                let x = b.argument("x", TensorType::new(ElementType::F32, [2, rows, 8]))?;
                let y = b.argument("y", TensorType::new(ElementType::F32, [2, 8, 6]))?;
                let product = b.dot_general(x, y, by_group(2, 1), ElementType::F32)?;
                Ok(vec![b.transpose(product, &permutation)?])
            })
            .unwrap();
            text(module, false).matches("compute_barrier.start").count()
        };
        assert_eq!(barriers(5, [1, 0, 2]), 1);
        assert_eq!(barriers(1, [1, 0, 2]), 0, "nothing moves");
    }

    #[test]
    fn a_bias_in_half_precision_is_kept_apart_from_its_product() {
        let barriers = |element| {
            let module = Module::of_function("test", "main", |b| {
                let x = b.argument("x", TensorType::new(ElementType::F32, [1, 64]))?;
                let w = b.argument("w", TensorType::new(ElementType::F32, [96, 64]))?;
                let bias = b.argument("bias", TensorType::new(element, [96]))?;
                Ok(vec![b.linear(x, w, Some(bias), ElementType::F32)?])
            })
            .unwrap();
            let text = text(module.decompose_composites(|_| true).unwrap(), true);
            text.matches("compute_barrier.start").count()
        };
        assert_eq!([ElementType::BF16, ElementType::F16, ElementType::F32].map(barriers), [1, 1, 0]);
    }

    #[test]
    fn outside_spirv_only_counted_positions_are_kept_apart() {
        let module = Module::of_function("test", "main", |b| {
            let w = b.argument("w", TensorType::new(ElementType::BF16, [96, 64]))?;
            let positions = b.iota(TensorType::new(ElementType::I32, [8]), 0)?;
            let halves = b.divide(positions, positions)?;
            Ok(vec![b.convert(w, ElementType::F32)?, halves])
        })
        .unwrap();
        assert_eq!(text(module, false).matches("compute_barrier.start").count(), 1);
    }

    #[test]
    fn the_sign_of_what_is_divided_is_hidden() {
        let barriers = |element| {
            let module = Module::of_function("test", "main", |b| {
                let x = b.argument("x", TensorType::new(element, [8]))?;
                let y = b.argument("y", TensorType::new(element, [8]))?;
                Ok(vec![b.divide(x, y)?, b.remainder(x, y)?])
            })
            .unwrap();
            text(module, true).matches("compute_barrier.start %x").count()
        };
        assert_eq!([ElementType::I32, ElementType::U32, ElementType::F32].map(barriers), [2, 0, 0]);
    }

    #[test]
    fn reductions_of_other_dimensions_than_the_last_are_alone_in_loops_too() {
        let module = Module::of_function("test", "main", |b| {
            let x = b.argument("x", TensorType::new(ElementType::F32, [4, 8]))?;
            let rows = b.sum(x, &[1])?;
            let zero = b.splat(ElementType::F32, 0.0, &[8])?;
            let start = b.scalar(0i32)?;
            let columns = b.while_loop(
                &[start, zero],
                |b, state| {
                    let end = b.scalar(2i32)?;
                    b.compare(state[0], end, Comparison::Less)
                },
                |b, state| {
                    let one = b.scalar(1i32)?;
                    let sum = b.sum(x, &[0])?;
                    Ok(vec![b.add(state[0], one)?, b.add(state[1], sum)?])
                },
            )?;
            Ok(vec![rows, columns[1]])
        })
        .unwrap();
        let text = text(module, true);
        let barriers = |shape| text.matches(&format!("barrier.start %{shape}")).count();
        assert_eq!(text.matches("compute_barrier.start").count(), 2, "{text}");
        assert_eq!(barriers("x : tensor<4x8xf32>"), 1, "{text}");
    }

    #[test]
    fn many_rows_of_few_elements_are_kept_apart_from_what_reads_their_results() {
        let barriers = |shape: [usize; 2], in_spirv| {
            let module = Module::of_function("test", "main", |b| {
                let x = b.argument("x", TensorType::new(ElementType::F32, shape))?;
                Ok(vec![b.softmax(x, 1)?])
            })
            .unwrap();
            text(module, in_spirv).matches("compute_barrier.start").count()
        };
        // The maximum and the sum.
        assert_eq!(barriers([64, 4], true), 2);
        assert_eq!(barriers([8, 15], true), 2);
        assert_eq!(barriers([64, 16], true), 0);
        assert_eq!(barriers([7, 4], true), 0);
        assert_eq!(barriers([64, 4], false), 0);
    }

    #[test]
    fn a_module_with_barriers_is_well_formed() {
        let module = Module::of_function("test", "main", |b| {
            let numbers = b.iota(TensorType::new(ElementType::I32, [8]), 0)?;
            Ok(vec![b.divide(numbers, numbers)?])
        })
        .unwrap();
        let mut module = module;
        module.functions.iter_mut().for_each(|function| insert(function, true));
        module.verify().unwrap();
    }
}
