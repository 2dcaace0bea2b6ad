//! Misuse of every operation is an error that names it, says what is wrong and shows all operands; never a
//! panic.

use crate::refusal;
use mlxcel_stablehlo::{
    Comparison, DotDimensions, ElementType, GatherDimensions, Reduction, ScatterDimensions, ScatterUpdate,
};

use ElementType::{BF16, F32, I1, I8, I32, I64};

/// What an error must show for `operands`.
fn shown(operands: &[(&str, &str)]) -> String {
    let list: Vec<String> = operands.iter().map(|(name, ty)| format!("{name}: tensor<{ty}>")).collect();
    format!("({}), in `main`", list.join(", "))
}

/// Each line: an operation, what its error must say, the operands that it must show, and the misuse.
macro_rules! refused {
    ($($test:ident: $op:literal, $says:literal, [$(($name:literal, $ty:literal)),*], |$b:ident, $v:ident| $misuse:expr;)*) => {$(
        #[test]
        fn $test() {
            let error = refusal!(|$b, $v| $misuse);
            let text = error.to_string();
            assert_eq!(error.op(), $op);
            assert!(text.starts_with(&format!("{}: ", $op)), "{text}");
            assert!(text.contains($says), "{text}");
            assert!(text.ends_with(&shown(&[$(($name, $ty)),*])), "{text}");
        }
    )*};
}

refused! {
    add_of_different_shapes: "add", "lhs and rhs must have the same type",
        [("lhs", "2x3xf32"), ("rhs", "3xf32")], |b, v| b.add(v.x, v.row);
    add_of_different_elements: "add", "lhs and rhs must have the same type",
        [("lhs", "2x3xf32"), ("rhs", "2x3xi32")], |b, v| b.add(v.x, v.i);
    multiply_of_truth_values: "multiply", "must be of numbers",
        [("lhs", "2x3xi1"), ("rhs", "2x3xi1")], |b, v| b.multiply(v.truth, v.truth);
    atan2_of_integers: "atan2", "must be of floats",
        [("lhs", "2x3xi32"), ("rhs", "2x3xi32")], |b, v| b.atan2(v.i, v.i);
    and_of_floats: "and", "must be of integers or truth values",
        [("lhs", "2x3xf32"), ("rhs", "2x3xf32")], |b, v| b.and(v.x, v.x);
    shift_of_truth_values: "shift_left", "must be of integers",
        [("lhs", "2x3xi1"), ("rhs", "2x3xi1")], |b, v| b.shift_left(v.truth, v.truth);
    exponential_of_integers: "exponential", "operand must be of floats",
        [("operand", "2x3xi32")], |b, v| b.exponential(v.i);
    abs_of_truth_values: "abs", "operand must be of floats or signed integers",
        [("operand", "2x3xi1")], |b, v| b.abs(v.truth);
    not_of_floats: "not", "operand must be of integers or truth values",
        [("operand", "2x3xf32")], |b, v| b.not(v.x);
    popcnt_of_floats: "popcnt", "operand must be of integers",
        [("operand", "2x3xf32")], |b, v| b.popcnt(v.x);
    compare_of_different_elements: "compare", "lhs and rhs must have the same type",
        [("lhs", "2x3xf32"), ("rhs", "2x3xi32")], |b, v| b.compare(v.x, v.i, Comparison::Less);
    select_by_numbers: "select", "condition must be of truth values",
        [("condition", "2x3xi32"), ("on_true", "2x3xf32"), ("on_false", "2x3xf32")], |b, v| b.select(v.i, v.x, v.x);
    select_of_different_types: "select", "on_true and on_false must have the same type",
        [("condition", "2x3xi1"), ("on_true", "2x3xf32"), ("on_false", "3xf32")], |b, v| b.select(v.truth, v.x, v.row);
    select_by_another_shape: "select", "condition must be a scalar or have the shape of on_true",
        [("condition", "2x3xi1"), ("on_true", "3xf32"), ("on_false", "3xf32")], |b, v| b.select(v.truth, v.row, v.row);
    clamp_by_other_elements: "clamp", "maximum and operand must have the same element type",
        [("minimum", "f32"), ("operand", "2x3xf32"), ("maximum", "i32")], |b, v| b.clamp(v.scalar, v.x, v.index);
    clamp_by_another_shape: "clamp", "minimum must be a scalar or have the shape of operand",
        [("minimum", "3xf32"), ("operand", "2x3xf32"), ("maximum", "f32")], |b, v| b.clamp(v.row, v.x, v.scalar);
    clamp_of_truth_values: "clamp", "operand must be of numbers",
        [("minimum", "2x3xi1"), ("operand", "2x3xi1"), ("maximum", "2x3xi1")], |b, v| b.clamp(v.truth, v.truth, v.truth);
    bitcast_of_truth_values: "bitcast_convert", "truth values have no bits to read as i8",
        [("operand", "2x3xi1")], |b, v| b.bitcast_convert(v.truth, I8);
    bitcast_to_wider_elements: "bitcast_convert", "the last dimension of operand must be 2 to become i64",
        [("operand", "2x3xf32")], |b, v| b.bitcast_convert(v.x, I64);
    reshape_to_another_count: "reshape", "operand has 6 elements, but the shape [4] has 4",
        [("operand", "2x3xf32")], |b, v| b.reshape(v.x, &[4]);
    reshape_beyond_memory: "reshape", "larger than memory can address",
        [("operand", "2x3xf32")], |b, v| b.reshape(v.x, &[usize::MAX, 2]);
    broadcast_of_a_size: "broadcast_in_dim", "dimension 0 of operand has size 3, which is neither 1 nor dimension 1",
        [("operand", "3xf32")], |b, v| b.broadcast_in_dim(v.row, &[3, 4], &[1]);
    broadcast_to_a_missing_dimension: "broadcast_in_dim", "dimension 2 of the result shape [3, 4]",
        [("operand", "3xf32")], |b, v| b.broadcast_in_dim(v.row, &[3, 4], &[2]);
    broadcast_to_one_dimension_twice: "broadcast_in_dim", "name one twice",
        [("operand", "2x3xf32")], |b, v| b.broadcast_in_dim(v.x, &[2, 3], &[0, 0]);
    broadcast_without_all_dimensions: "broadcast_in_dim", "dimensions has 1 entries, but operand has rank 2",
        [("operand", "2x3xf32")], |b, v| b.broadcast_in_dim(v.x, &[2, 3], &[0]);
    broadcast_beyond_memory: "broadcast_in_dim", "larger than memory can address",
        [("operand", "f32")], |b, v| b.broadcast_in_dim(v.scalar, &[1 << 40, 1 << 40], &[]);
    broadcast_like_of_lower_rank: "broadcast_like", "operand has a higher rank than like",
        [("operand", "2x3xf32"), ("like", "3xf32")], |b, v| b.broadcast_like(v.x, v.row);
    transpose_by_no_permutation: "transpose", "[0, 0] is not a permutation",
        [("operand", "2x3xf32")], |b, v| b.transpose(v.x, &[0, 0]);
    transpose_of_another_rank: "transpose", "permutation has 1 entries, but operand has rank 2",
        [("operand", "2x3xf32")], |b, v| b.transpose(v.x, &[0]);
    concatenate_of_different_shapes: "concatenate", "operand 1 must have the shape of operand 0 except in dimension 0",
        [("operand 0", "2x3xf32"), ("operand 1", "3xf32")], |b, v| b.concatenate(&[v.x, v.row], 0);
    concatenate_of_different_elements: "concatenate", "operand 1 and operand 0 must have the same element type",
        [("operand 0", "2x3xf32"), ("operand 1", "2x3xi32")], |b, v| b.concatenate(&[v.x, v.i], 0);
    concatenate_along_a_missing_dimension: "concatenate", "dimension 2 of operand, which has rank 2",
        [("operand", "2x3xf32")], |b, v| b.concatenate(&[v.x], 2);
    pad_with_other_elements: "pad", "value and operand must have the same element type",
        [("operand", "2x3xf32"), ("value", "i32")], |b, v| b.pad(v.x, v.index, &[0, 0], &[0, 0], &[0, 0]);
    pad_with_a_tensor: "pad", "value must be a scalar",
        [("operand", "2x3xf32"), ("value", "3xf32")], |b, v| b.pad(v.x, v.row, &[0, 0], &[0, 0], &[0, 0]);
    pad_of_another_rank: "pad", "high has 1 entries, but operand has rank 2",
        [("operand", "2x3xf32"), ("value", "f32")], |b, v| b.pad(v.x, v.scalar, &[0, 0], &[0], &[0, 0]);
    pad_to_a_negative_size: "pad", "dimension 0 of the result would have size -1",
        [("operand", "2x3xf32"), ("value", "f32")], |b, v| b.pad(v.x, v.scalar, &[-3, 0], &[0, 0], &[0, 0]);
    pad_beyond_memory: "pad", "larger than memory can address",
        [("operand", "2x3xf32"), ("value", "f32")], |b, v| b.pad(v.x, v.scalar, &[i64::MAX, 0], &[0, 0], &[0, 0]);
    pad_beyond_counting: "pad", "dimension 1 of the result would have size",
        [("operand", "2x3xf32"), ("value", "f32")],
        |b, v| b.pad(v.x, v.scalar, &[0, i64::MAX], &[0, i64::MAX], &[0, usize::MAX]);
    slice_backwards: "slice", "bounds 2..1 of dimension 1, which has size 3",
        [("operand", "2x3xf32")], |b, v| b.slice(v.x, &[0, 2], &[2, 1]);
    slice_beyond: "slice", "bounds 0..4 of dimension 1, which has size 3",
        [("operand", "2x3xf32")], |b, v| b.slice(v.x, &[0, 0], &[2, 4]);
    slice_of_another_rank: "slice", "start has 1 entries, but operand has rank 2",
        [("operand", "2x3xf32")], |b, v| b.slice(v.x, &[0], &[2, 3]);
    slice_without_a_step: "slice", "stride 0 in dimension 1",
        [("operand", "2x3xf32")], |b, v| b.slice_strided(v.x, &[0, 0], &[2, 3], &[1, 0]);
    dynamic_slice_without_all_starts: "dynamic_slice", "start has 1 entries, but operand has rank 2",
        [("operand", "2x3xf32"), ("start", "i32")], |b, v| b.dynamic_slice(v.x, &[v.index], &[1, 1]);
    dynamic_slice_from_floats: "dynamic_slice", "start 1 must be of integers",
        [("operand", "2x3xf32"), ("start 0", "i32"), ("start 1", "f32")],
        |b, v| b.dynamic_slice(v.x, &[v.index, v.scalar], &[1, 1]);
    dynamic_slice_from_a_tensor: "dynamic_slice", "start 0 must be a scalar",
        [("operand", "2x3xf32"), ("start 0", "2x3xi32"), ("start 1", "i32")],
        |b, v| b.dynamic_slice(v.x, &[v.i, v.index], &[1, 1]);
    dynamic_slice_larger_than_the_operand: "dynamic_slice", "size 4 of dimension 1, which has size 3",
        [("operand", "2x3xf32"), ("start 0", "i32"), ("start 1", "i32")],
        |b, v| b.dynamic_slice(v.x, &[v.index, v.index], &[1, 4]);
    dynamic_update_slice_of_another_rank: "dynamic_update_slice", "update must have the rank of operand",
        [("operand", "2x3xf32"), ("update", "3xf32"), ("start 0", "i32"), ("start 1", "i32")],
        |b, v| b.dynamic_update_slice(v.x, v.row, &[v.index, v.index]);
    dynamic_update_slice_of_other_elements: "dynamic_update_slice", "update and operand must have the same element type",
        [("operand", "2x3xf32"), ("update", "2x3xi32"), ("start 0", "i32"), ("start 1", "i32")],
        |b, v| b.dynamic_update_slice(v.x, v.i, &[v.index, v.index]);
    reduce_along_a_missing_dimension: "reduce", "dimension 2 of operand, which has rank 2",
        [("operand", "2x3xf32")], |b, v| b.sum(v.x, &[2]);
    reduce_in_disorder: "reduce", "dimensions [1, 0] must be ascending",
        [("operand", "2x3xf32")], |b, v| b.sum(v.x, &[1, 0]);
    sum_of_truth_values: "reduce", "Sum joins numbers, which operand does not hold",
        [("operand", "2x3xi1")], |b, v| b.sum(v.truth, &[0]);
    all_of_numbers: "reduce", "And joins truth values, which operand does not hold",
        [("operand", "2x3xf32")], |b, v| b.reduce(v.x, Reduction::And, &[0]);
    argmax_of_truth_values: "reduce_argmax", "values must be of numbers",
        [("values", "2x3xi1"), ("indices", "2x3xi32")], |b, v| b.argmax(v.truth, 0);
    argmax_along_a_missing_dimension: "reduce_argmax", "dimension 0 of values, which has rank 0",
        [("values", "f32"), ("indices", "i32")], |b, v| b.argmax(v.scalar, 0);
    argmax_with_float_indices: "reduce_argmax", "indices must be of integers",
        [("values", "2x3xf32"), ("indices", "2x3xf32")], |b, v| b.reduce_argmax(v.x, v.x, 0);
    argmax_with_other_indices: "reduce_argmax", "values and indices must have the same shape",
        [("values", "3xf32"), ("indices", "2x3xi32")], |b, v| b.reduce_argmax(v.row, v.i, 0);
    argmax_of_nothing: "reduce_argmax", "dimension 0 of values has no element to choose",
        [("values", "0xf32"), ("indices", "0xi32")], |b, v| {
            let none = b.slice(v.row, &[3], &[3])?;
            b.argmax(none, 0)
        };
    dot_of_different_elements: "dot_general", "lhs and rhs must have the same element type",
        [("lhs", "2x3xf32"), ("rhs", "2x3xi32")], |b, v| b.dot_general(v.x, v.i, DotDimensions::default(), F32);
    dot_of_different_sizes: "dot_general", "contracting dimensions 0 of lhs and 0 of rhs differ in size",
        [("lhs", "2x3xf32"), ("rhs", "3xf32")], |b, v| b.dot_general(v.x, v.row, contracting(&[0], &[0]), F32);
    dot_of_unpaired_dimensions: "dot_general", "contracting dimensions [0] of lhs and [] of rhs do not pair",
        [("lhs", "2x3xf32"), ("rhs", "3xf32")], |b, v| b.dot_general(v.x, v.row, contracting(&[0], &[]), F32);
    dot_of_a_missing_dimension: "dot_general", "dimension 1 of rhs, which has rank 1",
        [("lhs", "2x3xf32"), ("rhs", "3xf32")], |b, v| b.dot_general(v.x, v.row, contracting(&[1], &[1]), F32);
    dot_of_one_dimension_twice: "dot_general", "a dimension of lhs is named twice: [1, 1]",
        [("lhs", "2x3xf32"), ("rhs", "2x3xf32")], |b, v| {
            let dimensions = DotDimensions { lhs_batch: vec![1], rhs_batch: vec![1], ..contracting(&[1], &[1]) };
            b.dot_general(v.x, v.x, dimensions, F32)
        };
    dot_into_narrower_elements: "dot_general", "bf16 cannot hold the sums of products of f32",
        [("lhs", "2x3xf32"), ("rhs", "3xf32")], |b, v| b.dot_general(v.x, v.row, contracting(&[1], &[0]), BF16);
    dot_into_another_kind: "dot_general", "i32 cannot hold the sums of products of f32",
        [("lhs", "2x3xf32"), ("rhs", "3xf32")], |b, v| b.dot_general(v.x, v.row, contracting(&[1], &[0]), I32);
    dot_of_truth_values: "dot_general", "lhs and rhs must be of numbers",
        [("lhs", "2x3xi1"), ("rhs", "2x3xi1")], |b, v| b.dot_general(v.truth, v.truth, contracting(&[1], &[1]), I1);
    gather_by_floats: "gather", "indices must be of integers",
        [("operand", "2x3xf32"), ("indices", "3xf32")], |b, v| b.take(v.x, v.row);
    gather_of_too_large_slices: "gather", "slice size 4 of dimension 1, which has size 3",
        [("operand", "2x3xf32"), ("indices", "i32")],
        |b, v| b.gather(v.x, v.index, GatherDimensions { slice_sizes: vec![1, 4], ..rows() });
    gather_of_collapsed_slices: "gather", "slice size 2 of dimension 0, which is collapsed and must be 1",
        [("operand", "2x3xf32"), ("indices", "i32")],
        |b, v| b.gather(v.x, v.index, GatherDimensions { slice_sizes: vec![2, 3], ..rows() });
    gather_without_all_offsets: "gather", "offset_dims [] must be as many as the 1 dimensions of operand",
        [("operand", "2x3xf32"), ("indices", "i32")],
        |b, v| b.gather(v.x, v.index, GatherDimensions { offset_dims: vec![], ..rows() });
    gather_to_offsets_beyond: "gather", "offset_dims [1] must be ascending and below the rank 1",
        [("operand", "2x3xf32"), ("indices", "i32")],
        |b, v| b.gather(v.x, v.index, GatherDimensions { offset_dims: vec![1], ..rows() });
    gather_by_missing_components: "gather", "start_index_map [0, 1] must have one entry for each of 1 components",
        [("operand", "2x3xf32"), ("indices", "i32")],
        |b, v| b.gather(v.x, v.index, GatherDimensions { start_index_map: vec![0, 1], ..rows() });
    gather_by_components_beyond: "gather", "index_vector_dim 1 of indices, which has rank 0",
        [("operand", "2x3xf32"), ("indices", "i32")],
        |b, v| b.gather(v.x, v.index, GatherDimensions { index_vector_dim: 1, ..rows() });
    gather_from_a_missing_dimension: "gather", "dimension 2 of operand, which has rank 2",
        [("operand", "2x3xf32"), ("indices", "i32")],
        |b, v| b.gather(v.x, v.index, GatherDimensions { start_index_map: vec![2], ..rows() });
    take_from_a_row: "gather", "table must have two dimensions",
        [("table", "3xf32"), ("indices", "i32")], |b, v| b.take(v.row, v.index);
    scatter_of_other_elements: "scatter", "updates and operand must have the same element type",
        [("operand", "2x3xf32"), ("indices", "i32"), ("updates", "i32")],
        |b, v| b.scatter(v.x, v.index, v.index, into_rows(), ScatterUpdate::Add, false);
    scatter_of_truth_values: "scatter", "must be of numbers to be added",
        [("operand", "2x3xi1"), ("indices", "i32"), ("updates", "2x3xi1")],
        |b, v| b.scatter(v.truth, v.index, v.truth, into_rows(), ScatterUpdate::Add, false);
    scatter_of_another_batch: "scatter", "the dimensions of updates outside of update_window_dims must be those of indices",
        [("operand", "2x3xf32"), ("indices", "i32"), ("updates", "2x3xf32")],
        |b, v| b.scatter(v.x, v.index, v.x, into_rows(), ScatterUpdate::Add, false);
    scatter_of_too_large_windows: "scatter", "dimension 0 of updates is larger than operand's, 3",
        [("operand", "2x3xf32"), ("indices", "i32"), ("updates", "4xf32")], |b, v| {
            let four = b.splat(F32, 0.0, &[4])?;
            b.scatter(v.x, v.index, four, into_rows(), ScatterUpdate::Replace, false)
        };
    scatter_without_all_windows: "scatter", "update_window_dims [] must be as many as the 1 dimensions of operand",
        [("operand", "2x3xf32"), ("indices", "i32"), ("updates", "3xf32")], |b, v| {
            let dimensions = ScatterDimensions { update_window_dims: vec![], ..into_rows() };
            b.scatter(v.x, v.index, v.row, dimensions, ScatterUpdate::Replace, false)
        };
    while_without_a_condition: "while", "the condition must return a tensor<i1>, not (tensor<i32>)",
        [("operand", "i32")], |b, v| b.while_loop(&[v.index], |_, args| Ok(args[0]), |_, args| Ok(args.to_vec()));
    while_with_another_body: "while", "the body must return (tensor<i32>), not (tensor<f32>)",
        [("operand", "i32")], |b, v| b.while_loop(
            &[v.index],
            |b, args| b.compare(args[0], args[0], Comparison::Less),
            |_, _| Ok(vec![v.scalar]),
        );
    linear_of_integers: "linear", "must be of floats",
        [("x", "2x3xi32"), ("weight", "2x3xf32")], |b, v| b.linear(v.i, v.x, None, F32);
    linear_into_integers: "linear", "must be of floats",
        [("x", "2x3xf32"), ("weight", "2x3xf32")], |b, v| b.linear(v.x, v.x, None, I32);
    linear_of_another_width: "linear", "weight must be [N, K] for x of [.., K]",
        [("x", "2x3xf32"), ("weight", "3x2xf32")], |b, v| {
            let weight = b.transpose(v.x, &[1, 0])?;
            b.linear(v.x, weight, None, F32)
        };
    linear_of_a_scalar: "linear", "weight must be [N, K] for x of [.., K]",
        [("x", "f32"), ("weight", "2x3xf32")], |b, v| b.linear(v.scalar, v.x, None, F32);
    linear_with_another_bias: "linear", "bias must be [N] for a weight of [N, K]",
        [("x", "2x3xf32"), ("weight", "2x3xf32"), ("bias", "3xf32")], |b, v| b.linear(v.x, v.x, Some(v.row), F32);
    call_with_other_operands: "call", "the function `my.op.0` takes (tensor<3xf32>)",
        [("operand", "2x3xf32")], |b, v| {
            b.composite("my.op", &[v.row], &[], |b, args| Ok(vec![b.negate(args[0])?]))?;
            b.call("my.op.0", &[v.x])
        };
}

fn contracting(lhs: &[usize], rhs: &[usize]) -> DotDimensions {
    DotDimensions { lhs_contracting: lhs.to_vec(), rhs_contracting: rhs.to_vec(), ..DotDimensions::default() }
}

/// One row of `[2, 3]` by a scalar index.
fn rows() -> GatherDimensions {
    GatherDimensions {
        offset_dims: vec![0],
        collapsed_slice_dims: vec![0],
        start_index_map: vec![0],
        index_vector_dim: 0,
        slice_sizes: vec![1, 3],
    }
}

/// One row into `[2, 3]` by a scalar index.
fn into_rows() -> ScatterDimensions {
    ScatterDimensions {
        update_window_dims: vec![0],
        inserted_window_dims: vec![0],
        scatter_dims_to_operand_dims: vec![0],
        index_vector_dim: 0,
    }
}
