//! A decoder's weights as arguments of its programs, dense and packed.

use std::collections::HashMap;

use mlxcel_models::{Decoder, Linear, Part, WeightId};
use mlxcel_stablehlo::{Builder, ElementType, Result, TensorType, Value};

use crate::layers;
use crate::packed::{
    PackedWeight, operand_parts, packed_embedding, packed_expert_linear, packed_linear, reorder,
};

/// The weights of a decoder in the function that is being written.
pub(crate) struct Weights<'a, 'f> {
    decoder: &'a Decoder,
    /// The argument that is a weight, or a part of a packed one.
    arguments: HashMap<(WeightId, Option<Part>), Value<'f>>,
    /// The type of what goes into products with dense weights.
    operand: ElementType,
}

/// A weight's arguments: its values, or what it is packed into and the order of its columns, where that is
/// not the inputs'.
enum Stored<'f> {
    Dense(Value<'f>),
    Packed(PackedWeight<'f>, Option<Value<'f>>),
}

impl<'a, 'f> Weights<'a, 'f> {
    /// The weights of `decoder`, of which there are no arguments yet.
    pub(crate) fn new(decoder: &'a Decoder, operand: ElementType) -> Self {
        Self { decoder, arguments: HashMap::new(), operand }
    }

    /// Adds the argument that is a weight, or a part of one.
    pub(crate) fn add(&mut self, weight: WeightId, part: Option<Part>, value: Value<'f>) {
        self.arguments.insert((weight, part), value);
    }

    fn argument(&self, id: WeightId, part: Option<Part>) -> Result<Value<'f>> {
        self.arguments.get(&(id, part)).copied().ok_or_else(|| {
            let message = format!("{} lacks arguments", self.decoder.weight(id));
            mlxcel_stablehlo::Error::new(mlxcel_stablehlo::ErrorKind::Name, "weight", message)
        })
    }

    fn stored(&self, id: WeightId) -> Result<Stored<'f>> {
        let Some(packing) = self.decoder.weight(id).packing() else {
            return self.argument(id, None).map(Stored::Dense);
        };
        let parts = operand_parts(&packing).map(|part| self.argument(id, Some(part)));
        let packed = PackedWeight { packing, parts: parts.collect::<Result<_>>()? };
        let order = packing.ordered.then(|| self.argument(id, Some(Part::Order))).transpose()?;
        Ok(Stored::Packed(packed, order))
    }

    /// The tensor of a weight that is not packed, such as that of a norm.
    pub(crate) fn dense(&self, id: WeightId) -> Result<Value<'f>> {
        match self.stored(id)? {
            Stored::Dense(values) => Ok(values),
            Stored::Packed(..) => {
                let message = format!("{} must not be packed", self.decoder.weight(id));
                Err(mlxcel_stablehlo::Error::new(mlxcel_stablehlo::ErrorKind::Element, "weight", message))
            }
        }
    }

    /// The values of a small weight, such as a bias, in float32.
    pub(crate) fn vector(&self, b: &mut Builder<'f>, id: WeightId) -> Result<Value<'f>> {
        let values = self.dense(id)?;
        b.convert(values, ElementType::F32)
    }

    /// The type in which a product with a weight wants its operand: rounding it before a packed weight would
    /// round what an engine turns into fixed point once more.
    pub(crate) fn operand_of(&self, id: WeightId) -> ElementType {
        if self.decoder.weight(id).packed.is_some() { ElementType::F32 } else { self.operand }
    }

    /// `x` times a weight, plus a bias, in float32; `x` is rounded to [`operand_of`](Self::operand_of) the
    /// weight.
    pub(crate) fn linear(&self, b: &mut Builder<'f>, x: Value<'f>, linear: &Linear) -> Result<Value<'f>> {
        let Linear { weight, bias, inputs: _, outputs: _ } = *linear;
        let x = b.convert(x, self.operand_of(weight))?;
        let bias = bias.map(|bias| self.dense(bias)).transpose()?;
        match self.stored(weight)? {
            Stored::Packed(packed, order) => {
                let x = order.map_or(Ok(x), |order| reorder(b, x, order))?;
                packed_linear(b, x, &packed, bias, ElementType::F32)
            }
            Stored::Dense(values) => layers::linear(b, x, values, bias, ElementType::F32),
        }
    }

    /// Blocks of rows (`[blocks, rows, inputs]`) times the matrices of their experts, likewise.
    pub(crate) fn expert_linear(
        &self,
        b: &mut Builder<'f>,
        x: Value<'f>,
        experts: Value<'f>,
        linear: &Linear,
    ) -> Result<Value<'f>> {
        let Linear { weight, bias, inputs: _, outputs: _ } = *linear;
        let x = b.convert(x, self.operand_of(weight))?;
        let bias = bias.map(|bias| self.dense(bias)).transpose()?;
        match self.stored(weight)? {
            Stored::Packed(packed, None) => {
                packed_expert_linear(b, x, &packed, experts, bias, ElementType::F32)
            }
            Stored::Packed(_, Some(_)) => Err(self.no_order(weight)),
            Stored::Dense(values) => layers::expert_linear(b, x, values, experts, bias, ElementType::F32),
        }
    }

    /// The matrices of heads (`[heads, rows, columns]`), unpacked, and the type in which their products want
    /// the other operand.
    pub(crate) fn matrices(&self, b: &mut Builder<'f>, id: WeightId) -> Result<(Value<'f>, ElementType)> {
        match self.stored(id)? {
            Stored::Dense(values) => {
                let element = b.ty(values).element;
                // A product has operands of one type.
                let common = if element == self.operand { element } else { ElementType::F32 };
                Ok((b.convert(values, common)?, common))
            }
            Stored::Packed(mut packed, None) => {
                let shape = self.decoder.weight(id).shape.clone();
                let rows = shape.iter().rev().skip(1).product();
                for part in &mut packed.parts {
                    let width = b.shape(*part).last().copied().unwrap_or(1);
                    *part = b.reshape(*part, &[rows, width])?;
                }
                let every = b.iota(TensorType::new(ElementType::I32, [rows]), 0)?;
                let values = packed_embedding(b, &packed, every)?;
                Ok((b.reshape(values, &shape)?, ElementType::F32))
            }
            Stored::Packed(_, Some(_)) => Err(self.no_order(id)),
        }
    }

    /// The rows of a table for `ids`, in float32.
    pub(crate) fn embedding(
        &self,
        b: &mut Builder<'f>,
        table: WeightId,
        ids: Value<'f>,
    ) -> Result<Value<'f>> {
        match self.stored(table)? {
            Stored::Packed(packed, None) => packed_embedding(b, &packed, ids),
            Stored::Packed(_, Some(_)) => Err(self.no_order(table)),
            Stored::Dense(values) => layers::embedding(b, values, ids),
        }
    }

    /// The error for columns in another order where only products can take them.
    fn no_order(&self, id: WeightId) -> mlxcel_stablehlo::Error {
        let message =
            format!("the columns of {} must be in the order of its inputs", self.decoder.weight(id));
        mlxcel_stablehlo::Error::new(mlxcel_stablehlo::ErrorKind::Structure, "weight", message)
    }
}
