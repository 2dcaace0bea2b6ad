//! New operations in the place of one.

use std::collections::HashMap;

use mlxcel_stablehlo::{ElementType, Function, Literal, Op, OpKind, TensorType, ValueId};

/// Where operations of a function are written.
pub(super) struct Place<'a> {
    pub(super) function: &'a mut Function,
    pub(super) ops: Vec<Op>,
    /// Scalar constants that are indices.
    indices: HashMap<ValueId, usize>,
}

impl<'a> Place<'a> {
    pub(super) fn new(function: &'a mut Function, ops: usize) -> Self {
        Self { function, ops: Vec::with_capacity(ops), indices: HashMap::new() }
    }

    /// Takes over an operation that stays.
    pub(super) fn keep(&mut self, op: Op) {
        if let OpKind::Constant(literal) = &op.kind
            && *literal.ty() == TensorType::scalar(ElementType::I32)
            && let Ok(bytes) = literal.bytes().try_into()
            && let Ok(index) = usize::try_from(i32::from_ne_bytes(bytes))
        {
            self.indices.insert(op.results[0], index);
        }
        self.ops.push(op);
    }

    /// The number of an index that is a constant of this block.
    pub(super) fn index(&self, value: ValueId) -> Option<usize> {
        self.indices.get(&value).copied()
    }

    /// The operation of this block that computes `value`.
    pub(super) fn producer(&self, value: ValueId) -> Option<&Op> {
        self.ops.iter().rev().find(|op| op.results.contains(&value))
    }

    pub(super) fn ty(&self, value: ValueId) -> &TensorType {
        self.function.value_type(value)
    }

    pub(super) fn shape(&self, value: ValueId) -> Vec<usize> {
        self.ty(value).shape.clone()
    }

    /// Writes an operation with a new result of this type.
    pub(super) fn add(&mut self, kind: OpKind, operands: &[ValueId], ty: TensorType) -> ValueId {
        let result = self.function.add_value(ty);
        self.end(kind, operands, result);
        result
    }

    /// Writes an operation with the `result` of the one that was in this place.
    pub(super) fn end(&mut self, kind: OpKind, operands: &[ValueId], result: ValueId) {
        self.ops.push(Op { kind, operands: operands.to_vec(), results: vec![result], regions: Vec::new() });
    }

    /// `x` in an element type and shape that `kind` gives it.
    pub(super) fn reshape(&mut self, x: ValueId, shape: impl Into<Vec<usize>>) -> ValueId {
        let ty = TensorType::new(self.ty(x).element, shape);
        self.add(OpKind::Reshape, &[x], ty)
    }

    pub(super) fn constant(&mut self, literal: Literal) -> ValueId {
        let ty = literal.ty().clone();
        self.add(OpKind::Constant(literal), &[], ty)
    }

    /// `x`, whose dimensions are these of `shape`, repeated in all others and where its own size is one.
    pub(super) fn broadcast(&mut self, x: ValueId, dimensions: &[usize], shape: &[usize]) -> ValueId {
        let ty = TensorType::new(self.ty(x).element, shape);
        self.add(OpKind::BroadcastInDim { dimensions: dimensions.to_vec() }, &[x], ty)
    }

    /// The bits of `x` as elements of the same width.
    pub(super) fn bits(&mut self, x: ValueId, element: ElementType) -> ValueId {
        let ty = TensorType::new(element, self.shape(x));
        self.add(OpKind::BitcastConvert, &[x], ty)
    }
}
