//! Verification of whole modules, for those assembled or changed by hand.

use std::collections::{HashMap, HashSet};

use crate::error::{Error, ErrorKind, Result};
use crate::infer;
use crate::module::{Attribute, Block, Function, Module, Op, OpKind, ValueId};
use crate::types::TensorType;

impl Module {
    /// Checks the module as if it were built again: the types of every operation, that each value is defined
    /// once and before its use, that every callee exists with the right signature, and that no function
    /// calls itself.
    ///
    /// Modules from [`ModuleBuilder`](crate::ModuleBuilder) and rewrites always pass; this is for modules
    /// changed by hand.
    ///
    /// # Errors
    /// The first violation.
    pub fn verify(&self) -> Result<()> {
        let mut names = HashSet::new();
        for function in &self.functions {
            if function.name.is_empty() || !names.insert(function.name.as_str()) {
                let detail = format!("the name `{}` is empty or taken", function.name);
                return Err(Error::new(ErrorKind::Name, "func", detail));
            }
            verify_function(self, function).map_err(|error| error.within(&function.name))?;
        }
        let mut state = HashMap::new();
        self.functions.iter().try_for_each(|function| acyclic(self, function, &mut state))
    }
}

fn structure(op: &str, detail: impl Into<String>) -> Error {
    Error::new(ErrorKind::Structure, op, detail)
}

/// Depth first: a function that is met again while its callees are visited (`false`) calls itself.
fn acyclic<'m>(module: &'m Module, function: &'m Function, state: &mut HashMap<&'m str, bool>) -> Result<()> {
    match state.get(function.name.as_str()) {
        Some(true) => return Ok(()),
        Some(false) => return Err(structure("call", format!("`{}` calls itself", function.name))),
        None => {}
    }
    state.insert(&function.name, false);
    let mut callees = Vec::new();
    function.body.walk(&mut |op| callees.extend(op.callee()));
    for callee in callees.into_iter().filter_map(|name| module.function(name)) {
        acyclic(module, callee, state)?;
    }
    state.insert(&function.name, true);
    Ok(())
}

/// A function under verification, and the values that can be seen at this place.
struct Checker<'m> {
    module: &'m Module,
    function: &'m Function,
    defined: HashSet<ValueId>,
    visible: HashSet<ValueId>,
}

fn verify_function(module: &Module, function: &Function) -> Result<()> {
    let mut checker = Checker { module, function, defined: HashSet::new(), visible: HashSet::new() };
    for argument in &function.arguments {
        checker.define("argument", argument.value)?;
        infer::sized("argument", function.value_type(argument.value).clone())?;
    }
    if !function.body.arguments.is_empty() {
        return Err(structure("func", "a function's body has no arguments of its own"));
    }
    checker.block(&function.body)?;
    aliases(function)
}

impl<'m> Checker<'m> {
    fn define(&mut self, op: &str, value: ValueId) -> Result<()> {
        if value.index() >= self.function.values.len() {
            return Err(structure(op, format!("{value:?} has no type")));
        }
        if !self.defined.insert(value) {
            return Err(structure(op, format!("{value:?} is defined twice")));
        }
        self.visible.insert(value);
        Ok(())
    }

    /// The types of values that must be visible.
    fn types(&self, op: &str, values: &[ValueId]) -> Result<Vec<&'m TensorType>> {
        let one = |value: &ValueId| {
            if !self.visible.contains(value) {
                let detail = format!("{value:?} is used where it is not defined");
                return Err(Error::new(ErrorKind::Scope, op, detail));
            }
            Ok(self.function.value_type(*value))
        };
        values.iter().map(one).collect()
    }

    /// Checks a block and leaves what it defines visible; answers the types of its results.
    fn block(&mut self, block: &'m Block) -> Result<Vec<&'m TensorType>> {
        block.ops.iter().try_for_each(|op| self.op(op))?;
        self.types("return", &block.results)
    }

    fn op(&mut self, op: &'m Op) -> Result<()> {
        let name = op.kind.name();
        let operands = self.types(name, &op.operands)?;
        let regions = match op.kind {
            OpKind::While => self.regions(op, &[&operands, &operands])?,
            _ => self.regions(op, &[])?,
        };
        for &result in &op.results {
            self.define(name, result)?;
        }
        let results = self.types(name, &op.results)?;
        infer::verify(&op.kind, &operands, &results)?;
        match &op.kind {
            OpKind::CustomCall { target, attributes, .. } => check_custom_call(target, attributes),
            OpKind::While => infer::while_loop(&operands, &regions[0], &regions[1]).map(drop),
            _ => self.callee(op, &operands, &results),
        }
    }

    /// Checks the regions of an operation, which are entered with values of `entries`; answers the types that
    /// they return.
    fn regions(&mut self, op: &'m Op, entries: &[&[&TensorType]]) -> Result<Vec<Vec<&'m TensorType>>> {
        let name = op.kind.name();
        if op.regions.len() != entries.len() {
            let detail = format!("{} regions are needed, not {}", entries.len(), op.regions.len());
            return Err(structure(name, detail));
        }
        let mut results = Vec::with_capacity(entries.len());
        for (region, &entry) in op.regions.iter().zip(entries) {
            let outside = self.visible.clone();
            for &argument in &region.arguments {
                self.define(name, argument)?;
            }
            if self.types(name, &region.arguments)? != entry {
                return Err(structure(name, "the arguments of a region are not what it is entered with"));
            }
            results.push(self.block(region)?);
            self.visible = outside;
        }
        Ok(results)
    }

    /// Checks what an operation refers to by name.
    fn callee(&self, op: &Op, operands: &[&TensorType], results: &[&TensorType]) -> Result<()> {
        let Some(name) = op.callee() else { return Ok(()) };
        if let OpKind::Composite { name, attributes, .. } = &op.kind {
            check_composite(name, attributes)?;
        }
        let kind = op.kind.name();
        let Some(callee) = self.module.function(name) else {
            return Err(Error::new(ErrorKind::Name, kind, format!("there is no function `{name}`")));
        };
        let parameter = |value: ValueId| callee.values.get(value.index());
        let parameters: Option<Vec<&TensorType>> =
            callee.arguments.iter().map(|argument| parameter(argument.value)).collect();
        let returned: Option<Vec<&TensorType>> =
            callee.body.results.iter().map(|&value| parameter(value)).collect();
        infer::call(kind, name, operands, &parameters.unwrap_or_default())?;
        if returned.as_deref() != Some(results) {
            return Err(structure(kind, format!("the results are not those of the function `{name}`")));
        }
        Ok(())
    }
}

/// Each result that an argument shares storage with is there, has its type, and is shared once.
pub(crate) fn aliases(function: &Function) -> Result<()> {
    let mut shared = Vec::new();
    for argument in &function.arguments {
        let Some(result) = argument.aliases_result else { continue };
        let (name, ty) = (&argument.name, function.value_type(argument.value));
        let Some(&value) = function.body.results.get(result) else {
            let count = function.body.results.len();
            let detail =
                format!("argument `{name}` shares storage with result {result}, but there are {count}");
            return Err(structure("alias", detail));
        };
        let other = function.value_type(value);
        if other != ty {
            let detail = format!(
                "argument `{name}` is {ty}, but result {result}, which shares its storage, is {other}"
            );
            return Err(structure("alias", detail));
        }
        if shared.contains(&result) {
            let detail = format!("result {result} shares storage with two arguments, one of them `{name}`");
            return Err(structure("alias", detail));
        }
        shared.push(result);
    }
    Ok(())
}

/// A composite's name has a namespace: `[a-zA-Z][a-zA-Z0-9_]*` and then, each behind a point,
/// `[a-zA-Z0-9_$]+`.
pub(crate) fn check_composite(name: &str, attributes: &[(String, Attribute)]) -> Result<()> {
    let word = |word: &str| {
        !word.is_empty() && word.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'_' || c == b'$')
    };
    let (namespace, rest) = name.split_once('.').unwrap_or_default();
    let namespaced = word(namespace) && namespace.starts_with(|c: char| c.is_ascii_alphabetic());
    if !namespaced || namespace.contains('$') || !rest.split('.').all(word) {
        let detail = format!("the name `{name}` must be words separated by dots");
        return Err(Error::new(ErrorKind::Name, "composite", detail));
    }
    check_attributes("composite", attributes)
}

pub(crate) fn check_custom_call(target: &str, attributes: &[(String, Attribute)]) -> Result<()> {
    if target.is_empty() {
        return Err(Error::new(ErrorKind::Name, "custom_call", "the target has no name"));
    }
    check_attributes("custom_call", attributes)
}

fn check_attributes(op: &str, attributes: &[(String, Attribute)]) -> Result<()> {
    for (i, (name, _)) in attributes.iter().enumerate() {
        if name.is_empty() || attributes[..i].iter().any(|(other, _)| other == name) {
            let detail = format!("the attribute name `{name}` is empty or given twice");
            return Err(Error::new(ErrorKind::Name, op, detail));
        }
    }
    Ok(())
}
