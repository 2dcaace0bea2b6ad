//! What shapes operations make, apart from building and printing.

use mlxcel_stablehlo::{
    DotDimensions, ElementType, GatherDimensions, OpKind, Reduction, ScatterDimensions, ScatterUpdate,
    TensorType, infer,
};
use proptest::prelude::*;

use ElementType::{BF16, F32, I1, I4, I32, I64, U8, U32};

fn ty(element: ElementType, shape: &[usize]) -> TensorType {
    TensorType::new(element, shape)
}

#[test]
fn data_movement_shapes_are_inferred() {
    let x = ty(F32, &[2, 3, 4]);
    assert_eq!(infer::reshape(&x, &[4, 6]).unwrap(), ty(F32, &[4, 6]));
    assert_eq!(infer::reshape(&ty(F32, &[0, 5]), &[7, 0]).unwrap(), ty(F32, &[7, 0]));
    assert_eq!(infer::transpose(&x, &[2, 0, 1]).unwrap(), ty(F32, &[4, 2, 3]));
    assert_eq!(infer::broadcast_in_dim(&ty(F32, &[1, 3]), &[3, 5], &[1, 0]).unwrap(), ty(F32, &[3, 5]));
    assert_eq!(infer::concatenate(&[&x, &ty(F32, &[2, 0, 4]), &x], 1).unwrap(), ty(F32, &[2, 6, 4]));
    let padded = infer::pad(&x, &ty(F32, &[]), &[1, -2, 0], &[0, 1, -3], &[2, 0, 1]).unwrap();
    assert_eq!(padded, ty(F32, &[5, 2, 4]));
    assert_eq!(infer::pad(&ty(F32, &[0]), &ty(F32, &[]), &[1], &[1], &[5]).unwrap(), ty(F32, &[2]));
    assert_eq!(infer::slice(&x, &[0, 1, 0], &[2, 3, 4], &[1, 1, 3]).unwrap(), ty(F32, &[2, 2, 2]));
    assert_eq!(infer::slice(&x, &[2, 3, 4], &[2, 3, 4], &[1, 1, 9]).unwrap(), ty(F32, &[0, 0, 0]));
}

#[test]
fn bitcasts_split_and_join_the_last_dimension() {
    let cases = [
        (ty(F32, &[2]), U8, ty(U8, &[2, 4])),
        (ty(U8, &[2, 4]), F32, ty(F32, &[2])),
        (ty(BF16, &[3]), ElementType::F16, ty(ElementType::F16, &[3])),
        (ty(U8, &[]), I4, ty(I4, &[2])),
        (ty(I4, &[5, 16]), I64, ty(I64, &[5])),
        (ty(I1, &[5]), I1, ty(I1, &[5])),
    ];
    for (from, to, wanted) in cases {
        assert_eq!(infer::bitcast_convert(&from, to).unwrap(), wanted, "{from} to {to}");
    }
}

#[test]
fn reduction_and_contraction_shapes_are_inferred() {
    let x = ty(BF16, &[2, 3, 4]);
    assert_eq!(infer::reduce(&x, Reduction::Max, &[0, 2]).unwrap(), ty(BF16, &[3]));
    assert_eq!(infer::reduce(&x, Reduction::Sum, &[]).unwrap(), x);
    let (value, index) = infer::reduce_argmax(&x, &ty(I32, &[2, 3, 4]), 1).unwrap();
    assert_eq!((value, index), (ty(BF16, &[2, 4]), ty(I32, &[2, 4])));
    let dimensions = DotDimensions {
        lhs_batch: vec![2],
        rhs_batch: vec![0],
        lhs_contracting: vec![0],
        rhs_contracting: vec![2],
    };
    let rhs = ty(BF16, &[4, 7, 2]);
    assert_eq!(infer::dot_general(&x, &rhs, &dimensions, F32).unwrap(), ty(F32, &[4, 3, 7]));
    let outer = infer::dot_general(&ty(U8, &[2]), &ty(U8, &[3]), &DotDimensions::default(), U32).unwrap();
    assert_eq!(outer, ty(U32, &[2, 3]));
    infer::dot_general(&ty(BF16, &[2]), &ty(BF16, &[2]), &DotDimensions::default(), ElementType::F16)
        .unwrap_err();
}

#[test]
fn gather_shapes_interleave_offset_and_batch_dimensions() {
    let dimensions = GatherDimensions {
        offset_dims: vec![0, 2],
        collapsed_slice_dims: vec![1],
        start_index_map: vec![1, 2],
        index_vector_dim: 0,
        slice_sizes: vec![5, 1, 2],
    };
    let result = infer::gather(&ty(F32, &[5, 6, 7]), &ty(I64, &[2, 8, 9]), &dimensions).unwrap();
    assert_eq!(result, ty(F32, &[5, 8, 2, 9]));
    // Without a dimension for components, an index has one.
    let single = GatherDimensions {
        offset_dims: vec![],
        collapsed_slice_dims: vec![0],
        start_index_map: vec![0],
        index_vector_dim: 1,
        slice_sizes: vec![1],
    };
    assert_eq!(infer::gather(&ty(F32, &[5]), &ty(U8, &[3]), &single).unwrap(), ty(F32, &[3]));
}

#[test]
fn scatter_keeps_the_type_of_its_operand() {
    let dimensions = ScatterDimensions {
        update_window_dims: vec![1],
        inserted_window_dims: vec![0],
        scatter_dims_to_operand_dims: vec![0],
        index_vector_dim: 1,
    };
    let operand = ty(I1, &[5, 4]);
    let result =
        infer::scatter(&operand, &ty(I32, &[3]), &ty(I1, &[3, 2]), &dimensions, ScatterUpdate::Replace);
    assert_eq!(result.unwrap(), operand);
}

#[test]
fn scalars_broadcast_in_select_and_clamp_only() {
    let x = ty(F32, &[2]);
    assert_eq!(infer::select(&ty(I1, &[]), &x, &x).unwrap(), x);
    assert_eq!(infer::clamp(&ty(F32, &[]), &x, &x).unwrap(), x);
    assert!(infer::binary(mlxcel_stablehlo::BinaryOp::Add, &x, &ty(F32, &[])).is_err());
}

#[test]
fn verification_compares_declared_results() {
    let x = ty(F32, &[2, 3]);
    let transpose = OpKind::Transpose { permutation: vec![1, 0] };
    assert!(infer::verify(&transpose, &[&x], &[&ty(F32, &[3, 2])]).is_ok());
    assert!(infer::verify(&transpose, &[&x], &[&x]).is_err());
    assert!(infer::verify(&transpose, &[&x], &[]).is_err());
    assert!(infer::verify(&transpose, &[&x, &x], &[&ty(F32, &[3, 2])]).is_err());
    assert!(infer::verify(&OpKind::Reshape, &[&x], &[]).is_err());
    assert!(infer::verify(&OpKind::DynamicSlice { sizes: vec![] }, &[], &[&x]).is_err());
    assert!(infer::verify(&OpKind::DynamicUpdateSlice, &[&x], &[&x]).is_err());
}

/// Sizes at which arithmetic overflows, among usual ones.
fn size() -> impl Strategy<Value = usize> {
    prop_oneof![0usize..5, Just(usize::MAX), Just(1 << 62), Just(1 << 31), any::<usize>()]
}

fn any_type() -> impl Strategy<Value = TensorType> {
    (prop::sample::select(&ElementType::ALL[..]), prop::collection::vec(size(), 0..4))
        .prop_map(|(element, shape)| TensorType::new(element, shape))
}

proptest! {
    /// Whatever numbers go in, inference answers: it does not panic, and what it makes can be addressed where its operands
    /// can.
    #[test]
    fn shape_arithmetic_never_overflows(
        x in any_type(),
        y in any_type(),
        z in any_type(),
        sizes in prop::collection::vec(size(), 0..4),
        more in prop::collection::vec(size(), 0..4),
        signed in prop::collection::vec(any::<i64>(), 0..4),
        element in prop::sample::select(&ElementType::ALL[..]),
    ) {
        let inputs_fit = [&x, &y, &z].into_iter().all(|ty| infer::sized("x", ty.clone()).is_ok());
        let dot = DotDimensions {
            lhs_batch: sizes.clone(),
            rhs_batch: more.clone(),
            lhs_contracting: more.clone(),
            rhs_contracting: sizes.clone(),
        };
        let gather = GatherDimensions {
            offset_dims: sizes.clone(),
            collapsed_slice_dims: more.clone(),
            start_index_map: sizes.clone(),
            index_vector_dim: sizes.len(),
            slice_sizes: more.clone(),
        };
        let scatter = ScatterDimensions {
            update_window_dims: sizes.clone(),
            inserted_window_dims: more.clone(),
            scatter_dims_to_operand_dims: more.clone(),
            index_vector_dim: more.len(),
        };
        let dimension = sizes.first().copied().unwrap_or_default();
        let made = [
            infer::iota(x.clone(), dimension),
            infer::reshape(&x, &sizes),
            infer::broadcast_in_dim(&x, &sizes, &more),
            infer::broadcast_in_dim(&TensorType::scalar(element), &sizes, &[]),
            infer::transpose(&x, &sizes),
            infer::concatenate(&[&x, &x, &x], dimension),
            infer::pad(&x, &TensorType::scalar(x.element), &signed, &signed, &sizes),
            infer::convert(&x, element),
            infer::bitcast_convert(&x, element),
            infer::slice(&x, &more, &sizes, &more),
            infer::slice(&x, &vec![0; x.rank()], &x.shape, &vec![usize::MAX; x.rank()]),
            infer::dynamic_slice(&x, &[&y], &sizes),
            infer::dynamic_update_slice(&x, &y, &[&z]),
            infer::gather(&x, &y, &gather),
            infer::scatter(&x, &y, &z, &scatter, ScatterUpdate::Add),
            infer::compare(&x, &x),
            infer::select(&x, &y, &z),
            infer::clamp(&x, &y, &z),
            infer::reduce(&x, Reduction::Sum, &sizes),
            infer::dot_general(&x, &y, &dot, element),
            infer::dot_general(&x, &x, &DotDimensions::default(), x.element),
        ];
        for ty in made.into_iter().flatten() {
            prop_assert!(!inputs_fit || infer::sized("x", ty.clone()).is_ok(), "{ty}");
            let _ = (ty.bytes(), ty.elements());
        }
    }
}
