//! Operations with regions: loops and sorting.

use super::{Builder, Value};
use crate::error::Result;
use crate::infer;
use crate::module::OpKind;
use crate::types::TensorType;

impl<'f> Builder<'f> {
    /// Runs `body` while `condition` holds, over values that start as `initial`. Both are entered with the carried values
    /// and may read values from outside; `condition` returns one truth value, `body` the values to carry on.
    ///
    /// # Errors
    /// Those of the closures; a condition that is not one truth value; a body that returns other types than it was
    /// entered with.
    pub fn while_loop<C, B>(&mut self, initial: &[Value<'f>], condition: C, body: B) -> Result<Vec<Value<'f>>>
    where
        C: FnOnce(&mut Self, &[Value<'f>]) -> Result<Value<'f>>,
        B: FnOnce(&mut Self, &[Value<'f>]) -> Result<Vec<Value<'f>>>,
    {
        const OP: &str = "while";
        let carried: Vec<TensorType> = self.operands(OP, initial)?.into_iter().cloned().collect();
        let (condition, truth) = self.region(OP, &carried, |b, args| Ok(vec![condition(b, args)?]))?;
        let (body, next) = self.region(OP, &carried, body)?;
        let types = infer::while_loop(&refs(&carried), &refs(&truth), &refs(&next))?;
        Ok(self.push(OpKind::While, initial, types, vec![condition, body]))
    }

    /// Sorts `operands`, all of one shape, along `dimension`. `comparator` is entered with two scalars for each operand
    /// (`[a0, b0, a1, b1, …]`) and says whether the a's come before the b's. `stable` keeps the order of equals.
    ///
    /// # Errors
    /// Those of the comparator; no operand, different shapes, a missing dimension; a comparator that does not return one
    /// truth value.
    pub fn sort<C>(
        &mut self,
        operands: &[Value<'f>],
        dimension: usize,
        stable: bool,
        comparator: C,
    ) -> Result<Vec<Value<'f>>>
    where
        C: FnOnce(&mut Self, &[Value<'f>]) -> Result<Value<'f>>,
    {
        const OP: &str = "sort";
        let types: Vec<TensorType> = self.operands(OP, operands)?.into_iter().cloned().collect();
        infer::sort_operands(&refs(&types), dimension)?;
        let pairs: Vec<TensorType> =
            types.iter().flat_map(|ty| [(); 2].map(|()| TensorType::scalar(ty.element))).collect();
        let (comparator, truth) = self.region(OP, &pairs, |b, args| Ok(vec![comparator(b, args)?]))?;
        let results = infer::sort(&refs(&types), dimension, &refs(&truth))?;
        Ok(self.push(OpKind::Sort { dimension, stable }, operands, results, vec![comparator]))
    }
}

fn refs(types: &[TensorType]) -> Vec<&TensorType> {
    types.iter().collect()
}
