//! Minima and maxima of signed integers: where the compiler joins the lanes of a warp it begins with the
//! neutral element of unsigned integers, -1 and 0, which may win. Such a reduction is one of unsigned
//! integers in the same order.

use mlxcel_stablehlo::{BinaryOp, ElementType, Literal, Op, OpKind, Reduction, TensorType, ValueId};

use super::place::Place;

pub(super) fn rewrite(place: &mut Place<'_>, op: &Op) -> bool {
    let OpKind::Reduce { reduction: Reduction::Min | Reduction::Max, .. } = op.kind else { return false };
    // Narrower and wider ones are not reduced by any program.
    if place.ty(op.operands[0]).element != ElementType::I32 {
        return false;
    }
    let unsigned = place.bits(op.operands[0], ElementType::U32);
    let unsigned = flip_signs(place, unsigned);
    let reduced = TensorType::new(ElementType::U32, place.shape(op.results[0]));
    let reduced = place.add(op.kind.clone(), &[unsigned], reduced);
    let signed = flip_signs(place, reduced);
    place.end(OpKind::BitcastConvert, &[signed], op.results[0]);
    true
}

/// `x` with the other sign bit: the order of signed integers is that of unsigned ones then.
fn flip_signs(place: &mut Place<'_>, x: ValueId) -> ValueId {
    let ty = place.ty(x).clone();
    let sign = place.constant(Literal::scalar(1u32 << 31));
    let sign = place.broadcast(sign, &[], &ty.shape);
    place.add(OpKind::Binary(BinaryOp::Xor), &[x, sign], ty)
}
