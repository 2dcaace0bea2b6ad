//! Composites, calls and custom calls.

use super::{Builder, State, Value};
use crate::error::{Error, ErrorKind, Result};
use crate::infer;
use crate::module::{Attribute, Function, OpKind};
use crate::types::TensorType;
use crate::verify::{check_composite, check_custom_call};

impl<'f> Builder<'f> {
    /// A composite called `name`, defined by the operations that `decomposition` makes from arguments of the
    /// operands' types. It stays one operation, which an engine can replace; any other compiler sees the
    /// decomposition. Equal decompositions are stored once.
    ///
    /// # Errors
    /// The errors of the decomposition; an argument that it adds; a `name` that is not words separated by
    /// points, such as `mlxcel.linear`; a duplicate attribute.
    pub fn composite<F>(
        &mut self,
        name: &str,
        operands: &[Value<'f>],
        attributes: &[(String, Attribute)],
        decomposition: F,
    ) -> Result<Vec<Value<'f>>>
    where
        F: for<'d> FnOnce(&mut Builder<'d>, &[Value<'d>]) -> Result<Vec<Value<'d>>>,
    {
        check_composite(name, attributes)?;
        let types: Vec<TensorType> = self.operands("composite", operands)?.into_iter().cloned().collect();
        let function = self
            .state
            .build(|b| {
                let mut arguments = Vec::with_capacity(types.len());
                for (i, ty) in types.into_iter().enumerate() {
                    arguments.push(b.argument(format!("arg{i}"), ty)?);
                }
                let results = decomposition(b, &arguments)?;
                if b.arguments.len() != arguments.len() {
                    let detail = format!("the decomposition of `{name}` adds arguments of its own");
                    return Err(Error::new(ErrorKind::Structure, "composite", detail));
                }
                Ok(results)
            })
            .map_err(|error| error.within(name))?;
        let results = function.result_types().cloned().collect();
        let decomposition = self.state.share_decomposition(name, function);
        let kind =
            OpKind::Composite { name: name.to_owned(), decomposition, attributes: attributes.to_vec() };
        Ok(self.push(kind, operands, results, Vec::new()))
    }

    /// Calls a finished function of the module.
    ///
    /// # Errors
    /// An unknown function; operands that do not match its arguments.
    pub fn call(&mut self, function: &str, operands: &[Value<'f>]) -> Result<Vec<Value<'f>>> {
        let types = self.operands("call", operands)?;
        let callee = self.state.module.function(function).ok_or_else(|| {
            let detail = format!("there is no function `{function}`, at least not yet");
            Error::new(ErrorKind::Name, "call", detail)
        })?;
        let parameters: Vec<&TensorType> =
            callee.arguments.iter().map(|argument| callee.value_type(argument.value)).collect();
        infer::call("call", function, &types, &parameters)?;
        let results = callee.result_types().cloned().collect();
        Ok(self.push(OpKind::Call { function: function.to_owned() }, operands, results, Vec::new()))
    }

    /// An operation that only a particular compiler knows, by its `target` name. The caller gives the result
    /// types.
    ///
    /// # Errors
    /// An empty target; a duplicate attribute; result types too large for memory.
    pub fn custom_call(
        &mut self,
        target: &str,
        operands: &[Value<'f>],
        results: Vec<TensorType>,
        attributes: &[(String, Attribute)],
        has_side_effect: bool,
    ) -> Result<Vec<Value<'f>>> {
        const OP: &str = "custom_call";
        check_custom_call(target, attributes)?;
        self.operands(OP, operands)?;
        let results = results.into_iter().map(|ty| infer::sized(OP, ty)).collect::<Result<_>>()?;
        let kind = OpKind::CustomCall {
            target: target.to_owned(),
            attributes: attributes.to_vec(),
            has_side_effect,
        };
        Ok(self.push(kind, operands, results, Vec::new()))
    }
}

impl State {
    /// The name under which the module has `function` as a decomposition of the composite `name`.
    fn share_decomposition(&mut self, name: &str, mut function: Function) -> String {
        let functions = &mut self.module.functions;
        let known = self.decompositions.entry(name.to_owned()).or_default();
        let same = |other: &Function| {
            other.arguments == function.arguments
                && other.values == function.values
                && other.body == function.body
        };
        if let Some(other) = known.iter().map(|&index| &functions[index]).find(|&other| same(other)) {
            return other.name.clone();
        }
        let mut number = known.len();
        let unique = loop {
            let candidate = format!("{name}.{number}");
            if !self.names.contains(&candidate) {
                break candidate;
            }
            number += 1;
        };
        function.name.clone_from(&unique);
        self.names.insert(unique.clone());
        known.push(functions.len());
        functions.push(function);
        unique
    }
}
