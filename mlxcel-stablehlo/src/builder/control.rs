//! Operations with regions: loops.

use super::{Builder, Value};
use crate::error::Result;
use crate::infer;
use crate::module::OpKind;
use crate::types::TensorType;

impl<'f> Builder<'f> {
    /// Runs `body` while `condition` holds, over loop-carried values that start as `initial`. Both receive
    /// the carried values and can read values from outside. `condition` returns one boolean, `body` the
    /// next carried values.
    ///
    /// # Errors
    /// The errors of the closures; a condition that does not return one boolean; a body whose result types
    /// differ from its argument types.
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
}

fn refs(types: &[TensorType]) -> Vec<&TensorType> {
    types.iter().collect()
}
