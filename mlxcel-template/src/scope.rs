//! Scopes: where names are looked up, and where they are set.

use std::collections::HashMap;
use std::rc::Rc;

use super::error::{Result, fail};
use super::meter::{Charge, Meter};
use super::value::{Function, Value};

/// What a scope costs, and a name in it.
const COST: usize = 128;

/// All scopes of a rendering. A scope ends with its block, unless a macro was defined in it: what the macro
/// sees stays.
#[derive(Debug)]
pub(super) struct Scopes<'a> {
    scopes: Vec<Scope<'a>>,
    /// The innermost one.
    current: usize,
    charge: Charge,
}

#[derive(Debug)]
struct Scope<'a> {
    parent: Option<usize>,
    variables: HashMap<&'a str, Value<'a>>,
    /// Whether a macro sees it.
    kept: bool,
}

impl<'a> Scopes<'a> {
    pub(super) fn new(meter: &Rc<Meter>) -> Result<Self> {
        let root = Scope { parent: None, variables: HashMap::new(), kept: true };
        Ok(Self { scopes: vec![root], current: 0, charge: Charge::new(meter, COST)? })
    }

    pub(super) fn current(&self) -> usize {
        self.current
    }

    /// Begins a scope inside `parent`; gives the one to return to.
    pub(super) fn enter(&mut self, parent: usize) -> Result<usize> {
        self.charge.grow(COST)?;
        self.scopes.push(Scope { parent: Some(parent), variables: HashMap::new(), kept: false });
        Ok(std::mem::replace(&mut self.current, self.scopes.len() - 1))
    }

    /// Ends the current scope.
    pub(super) fn leave(&mut self, outer: usize) {
        if !self.scopes[self.current].kept {
            let variables = std::mem::take(&mut self.scopes[self.current].variables);
            self.charge.shrink(COST * variables.len());
            if self.current + 1 == self.scopes.len() {
                self.scopes.pop();
                self.charge.shrink(COST);
            }
        }
        self.current = outer;
    }

    /// Keeps the current scope, and those around it, for a macro.
    pub(super) fn keep(&mut self) -> usize {
        let mut next = Some(self.current);
        while let Some(scope) = next.map(|index| &mut self.scopes[index]).filter(|scope| !scope.kept) {
            scope.kept = true;
            next = scope.parent;
        }
        self.current
    }

    pub(super) fn set(&mut self, name: &'a str, value: Value<'a>) -> Result<()> {
        let variables = &mut self.scopes[self.current].variables;
        if variables.insert(name, value).is_none() {
            self.charge.grow(COST)?;
        }
        Ok(())
    }

    /// The value of a name; undefined if it has none.
    pub(super) fn get(&self, name: &str) -> Result<Value<'a>> {
        let mut next = Some(self.current);
        while let Some(index) = next {
            self.charge.meter().work(1)?;
            let scope = &self.scopes[index];
            if let Some(value) = scope.variables.get(name) {
                return Ok(value.clone());
            }
            next = scope.parent;
        }
        Ok(match name {
            "range" => Value::Function(Function::Range),
            "dict" => Value::Function(Function::Dict),
            "namespace" => Value::Function(Function::Namespace),
            "raise_exception" => Value::Function(Function::RaiseException),
            "strftime_now" => Value::Function(Function::StrftimeNow),
            "cycler" | "joiner" | "lipsum" => return fail!("the function '{name}' is not supported"),
            _ => Value::Undefined,
        })
    }
}
