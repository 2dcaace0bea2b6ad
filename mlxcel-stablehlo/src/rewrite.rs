//! Traversing modules and replacing composites.

use std::collections::HashSet;

use crate::builder::{Builder, State, Value};
use crate::error::{Error, ErrorKind, Result};
use crate::module::{Attribute, Block, Function, Module, Op, OpKind, ValueId};
use crate::types::TensorType;

impl Op {
    /// The function that a call or a composite refers to.
    pub fn callee(&self) -> Option<&str> {
        match &self.kind {
            OpKind::Composite { decomposition: name, .. } | OpKind::Call { function: name } => Some(name),
            _ => None,
        }
    }
}

impl Block {
    /// Calls `visit` with every operation of the block, and with those of nested regions after the operation
    /// that contains them.
    pub fn walk<'m>(&'m self, visit: &mut impl FnMut(&'m Op)) {
        for op in &self.ops {
            visit(op);
            for region in &op.regions {
                region.walk(visit);
            }
        }
    }
}

/// A composite of a module that is being rewritten.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Composite<'m, 'f> {
    /// Its name, such as `mlxcel.linear`.
    pub name: &'m str,
    /// Its operands, in the function that is being built.
    pub operands: &'m [Value<'f>],
    /// Its attributes.
    pub attributes: &'m [(String, Attribute)],
    /// Its decomposition, a function of the original module.
    pub decomposition: &'m Function,
}

impl Composite<'_, '_> {
    /// The attribute called `name`.
    pub fn attribute(&self, name: &str) -> Option<&Attribute> {
        self.attributes.iter().find(|(known, _)| known == name).map(|(_, value)| value)
    }
}

impl Module {
    /// The module with composites replaced. `rewrite` is called with each composite and a builder at its
    /// position, and returns the values that replace its results, or `None` to keep the composite.
    ///
    /// The module is rebuilt, and so checked again. `rewrite` does not see composites that it makes. Private
    /// functions that no public function reaches any more are removed.
    ///
    /// ```
    /// # use mlxcel_stablehlo::{ElementType, Module, TensorType};
    /// # fn main() -> mlxcel_stablehlo::Result<()> {
    /// let module = Module::of_function("demo", "main", |b| {
    ///     let x = b.argument("x", TensorType::new(ElementType::F32, [1, 8]))?;
    ///     let w = b.argument("w", TensorType::new(ElementType::F32, [4, 8]))?;
    ///     b.composite("my.linear", &[x, w], &[], |b, args| {
    ///         Ok(vec![b.linear(args[0], args[1], None, ElementType::F32)?])
    ///     })
    /// })?;
    /// let module = module.rewrite_composites(|composite, b| {
    ///     if composite.name != "my.linear" {
    ///         return Ok(None);
    ///     }
    ///     let results = composite.decomposition.result_types().cloned().collect();
    ///     b.custom_call("my.matvec", composite.operands, results, &[], false).map(Some)
    /// })?;
    /// assert!(module.to_string().contains("stablehlo.custom_call @my.matvec(%x, %w)"));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The errors of `rewrite`; replacements whose types differ from the results'; a module that does not
    /// [verify](Self::verify).
    pub fn rewrite_composites<F>(&self, mut rewrite: F) -> Result<Self>
    where
        F: for<'m, 'f> FnMut(&Composite<'m, 'f>, &mut Builder<'f>) -> Result<Option<Vec<Value<'f>>>>,
    {
        self.verify()?;
        let mut state = State::default();
        state.module.name.clone_from(&self.name);
        // New decompositions must not take the names of functions that are yet to be copied.
        state.names = self.functions.iter().map(|function| function.name.clone()).collect();

        let mut copied = HashSet::new();
        let mut pending: Vec<&Function> =
            self.functions.iter().filter(|function| function.public).rev().collect();
        while let Some(function) = pending.pop() {
            if !copied.insert(function.name.as_str()) {
                continue;
            }
            let built = state.build(|b| copy_function(self, function, b, &mut rewrite));
            let built = built.map_err(|error| error.within(&function.name))?;
            let copy = Function { name: function.name.clone(), public: function.public, ..built };
            copy.body.walk(&mut |op| pending.extend(op.callee().and_then(|name| self.function(name))));
            state.module.functions.push(copy);
        }
        Ok(callees_first(&state.module))
    }

    /// The module with every composite for whose name `which` returns true replaced by the operations of its
    /// decomposition, including composites inside other decompositions.
    ///
    /// # Errors
    /// A module that does not [verify](Self::verify).
    pub fn decompose_composites(&self, which: impl Fn(&str) -> bool) -> Result<Self> {
        self.rewrite_composites(|composite, b| decompose(self, &which, composite, b))
    }
}

/// Replaces composites, or keeps them.
type Rewrite<'r> =
    dyn for<'m, 'f> FnMut(&Composite<'m, 'f>, &mut Builder<'f>) -> Result<Option<Vec<Value<'f>>>> + 'r;

fn decompose<'f>(
    module: &Module,
    which: &dyn Fn(&str) -> bool,
    composite: &Composite<'_, 'f>,
    b: &mut Builder<'f>,
) -> Result<Option<Vec<Value<'f>>>> {
    if !which(composite.name) {
        return Ok(None);
    }
    let function = composite.decomposition;
    let mut copy = Copy::new(module, function);
    for (argument, &operand) in function.arguments.iter().zip(composite.operands) {
        copy.values[argument.value.index()] = Some(operand);
    }
    copy.block(&function.body, b, &mut |inner, b| decompose(module, which, inner, b)).map(Some)
}

fn copy_function<'f>(
    module: &Module,
    function: &Function,
    b: &mut Builder<'f>,
    rewrite: &mut Rewrite<'_>,
) -> Result<Vec<Value<'f>>> {
    let mut copy = Copy::new(module, function);
    for argument in &function.arguments {
        let value = b.argument(&argument.name, function.value_type(argument.value).clone())?;
        if let Some(result) = argument.aliases_result {
            b.alias(value, result)?;
        }
        copy.values[argument.value.index()] = Some(value);
    }
    copy.block(&function.body, b, rewrite)
}

/// A verified function on its way into another builder.
struct Copy<'m, 'f> {
    module: &'m Module,
    function: &'m Function,
    /// What each value has become.
    values: Vec<Option<Value<'f>>>,
}

impl<'m, 'f> Copy<'m, 'f> {
    fn new(module: &'m Module, function: &'m Function) -> Self {
        Self { module, function, values: vec![None; function.values.len()] }
    }

    fn mapped(&self, values: &[ValueId]) -> Result<Vec<Value<'f>>> {
        let missing = || Error::new(ErrorKind::Scope, "rewrite", "a value is used before it is defined");
        values.iter().map(|value| self.values[value.index()].ok_or_else(missing)).collect()
    }

    fn block(
        &mut self,
        block: &Block,
        b: &mut Builder<'f>,
        rewrite: &mut Rewrite<'_>,
    ) -> Result<Vec<Value<'f>>> {
        for op in &block.ops {
            let operands = self.mapped(&op.operands)?;
            let results = match self.replacement(op, &operands, b, rewrite)? {
                Some(results) => results,
                None => self.same(op, &operands, b, rewrite)?,
            };
            for (old, new) in op.results.iter().zip(results) {
                self.values[old.index()] = Some(new);
            }
        }
        self.mapped(&block.results)
    }

    /// The replacement of an operation by `rewrite`.
    fn replacement(
        &self,
        op: &Op,
        operands: &[Value<'f>],
        b: &mut Builder<'f>,
        rewrite: &mut Rewrite<'_>,
    ) -> Result<Option<Vec<Value<'f>>>> {
        let OpKind::Composite { name, decomposition, attributes } = &op.kind else { return Ok(None) };
        let Some(decomposition) = self.module.function(decomposition) else { return Ok(None) };
        let composite = Composite { name, operands, attributes, decomposition };
        let Some(results) = rewrite(&composite, b)? else { return Ok(None) };
        let wanted: Vec<&TensorType> = decomposition.result_types().collect();
        let given: Vec<&TensorType> = results.iter().map(|&result| b.ty(result)).collect();
        if given != wanted {
            let detail = format!("`{name}` is replaced by {given:?}, but its results are {wanted:?}");
            return Err(Error::new(ErrorKind::Shape, "composite", detail));
        }
        Ok(Some(results))
    }

    /// The operation as it was, over other values.
    fn same(
        &mut self,
        op: &Op,
        operands: &[Value<'f>],
        b: &mut Builder<'f>,
        rewrite: &mut Rewrite<'_>,
    ) -> Result<Vec<Value<'f>>> {
        let function = self.function;
        let types = |values: &[ValueId]| -> Vec<TensorType> {
            values.iter().map(|&value| function.value_type(value).clone()).collect()
        };
        let mut regions = Vec::with_capacity(op.regions.len());
        for region in &op.regions {
            let (copy, _) = b.region(op.kind.name(), &types(&region.arguments), |b, args| {
                for (old, &new) in region.arguments.iter().zip(args) {
                    self.values[old.index()] = Some(new);
                }
                self.block(region, b, rewrite)
            })?;
            regions.push(copy);
        }
        b.copy_op(op.kind.clone(), operands, types(&op.results), regions)
    }
}

/// The functions that public ones reach, each behind those that it refers to.
fn callees_first(module: &Module) -> Module {
    fn visit<'m>(
        module: &'m Module,
        function: &'m Function,
        seen: &mut HashSet<&'m str>,
        out: &mut Vec<Function>,
    ) {
        if !seen.insert(&function.name) {
            return;
        }
        let mut callees = Vec::new();
        function.body.walk(&mut |op| callees.extend(op.callee()));
        for callee in callees.into_iter().filter_map(|name| module.function(name)) {
            visit(module, callee, seen, out);
        }
        out.push(function.clone());
    }
    let (mut seen, mut functions) = (HashSet::new(), Vec::new());
    for function in module.functions.iter().filter(|function| function.public) {
        visit(module, function, &mut seen, &mut functions);
    }
    Module { name: module.name.clone(), functions }
}
