//! Running statements.

use std::rc::Rc;

use super::ast::{Expr, Filter, For, Macro, Statement, StatementKind, Target};
use super::error::{Result, fail};
use super::meter::{Charge, ListBuilder, Meter, TextBuilder};
use super::origin::{Origin, Origins};
use super::print::write_str;
use super::scope::Scopes;
use super::value::{Seq, Value};

/// How deep blocks, expressions and calls may be nested in one another while they run. Each level takes up to
/// about a kilobyte of stack.
const MOST_DEEP: usize = 300;

/// What runs next after a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    Next,
    Break,
    Continue,
}

/// A running template.
pub(super) struct Evaluator<'a> {
    pub(super) meter: Rc<Meter>,
    pub(super) scopes: Scopes<'a>,
    /// Macros that were defined, with the scope that they see.
    pub(super) macros: Vec<(&'a Macro, usize)>,
    /// Names and values of each namespace.
    pub(super) namespaces: Vec<Vec<(&'a str, Value<'a>)>>,
    pub(super) loops: Vec<LoopState<'a>>,
    out: TextBuilder,
    deep: usize,
    line: u32,
    /// What macros and namespaces hold.
    pub(super) kept: Charge,
    /// What `strftime_now` says; defaults to the time of the call.
    pub(super) now: Option<&'a jiff::Zoned>,
}

pub(super) struct LoopState<'a> {
    block: &'a For,
    scope: usize,
    /// How many calls of `loop` it is within.
    pub(super) depth: usize,
    pub(super) items: Rc<Seq<'a>>,
    pub(super) index: usize,
    /// What `loop.changed` was called with last.
    pub(super) changed: Option<Vec<Value<'a>>>,
}

impl<'a> Evaluator<'a> {
    pub(super) fn new(meter: &Rc<Meter>, now: Option<&'a jiff::Zoned>) -> Result<Self> {
        Ok(Self {
            meter: Rc::clone(meter),
            scopes: Scopes::new(meter)?,
            macros: Vec::new(),
            namespaces: Vec::new(),
            loops: Vec::new(),
            out: TextBuilder::new(meter)?,
            deep: 0,
            line: 0,
            kept: Charge::new(meter, 0)?,
            now,
        })
    }

    /// Runs the template; gives what it wrote, and where each part of that comes from.
    pub(super) fn run(mut self, statements: &'a [Statement]) -> Result<(String, Origins)> {
        self.statements(statements).map_err(|fault| fault.or_at(self.line))?;
        Ok(self.out.into_parts())
    }

    /// Runs `work` one level deeper.
    pub(super) fn deeper<T>(&mut self, work: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        self.meter.work(1)?;
        if self.deep == MOST_DEEP {
            return fail!("calls and blocks are nested too deep");
        }
        self.deep += 1;
        let result = work(self);
        self.deep -= 1;
        result
    }

    /// Records the current line, for errors without one.
    pub(super) fn at(&mut self, line: u32) {
        self.line = line;
    }

    pub(super) fn builder(&self) -> Result<TextBuilder> {
        TextBuilder::new(&self.meter)
    }

    pub(super) fn list(&self) -> Result<ListBuilder<'a>> {
        ListBuilder::new(&self.meter)
    }

    pub(super) fn statements(&mut self, statements: &'a [Statement]) -> Result<Flow> {
        for statement in statements {
            self.line = statement.line;
            match self.statement(&statement.kind)? {
                Flow::Next => {}
                flow => return Ok(flow),
            }
        }
        Ok(Flow::Next)
    }

    fn statement(&mut self, statement: &'a StatementKind) -> Result<Flow> {
        match statement {
            StatementKind::Data(text) => self.out.push_as(text, Origin::Template)?,
            StatementKind::Output(value) => {
                let value = self.value(value)?;
                write_str(&mut self.out, &value)?;
            }
            StatementKind::If(branches, otherwise) => return self.branch(branches, otherwise),
            StatementKind::For(block) => {
                return self.deeper(|this| {
                    let iterable = this.value(&block.iterable)?;
                    this.run_loop(block, &iterable, 0)
                });
            }
            StatementKind::Set(target, value) => {
                let value = self.value(value)?;
                self.assign(target, value)?;
            }
            StatementKind::SetBlock(target, filters, body) => {
                let value = self.filtered(filters, body)?;
                self.assign(target, value)?;
            }
            StatementKind::Macro(definition) => {
                let value = self.define_macro(definition)?;
                self.scopes.set(&definition.name, value)?;
            }
            StatementKind::Call(call, body) => {
                let caller = self.define_macro(body)?;
                let value = self.deeper(|this| this.call_with(call, Some(caller)))?;
                write_str(&mut self.out, &value)?;
            }
            StatementKind::Filter(filters, body) => {
                let value = self.filtered(filters, body)?;
                write_str(&mut self.out, &value)?;
            }
            StatementKind::With(assignments, body) => {
                return self.deeper(|this| this.with(assignments, body));
            }
            StatementKind::Hide(names) => {
                for name in names {
                    self.scopes.set(name, Value::Undefined)?;
                }
            }
            StatementKind::Break => return Ok(Flow::Break),
            StatementKind::Continue => return Ok(Flow::Continue),
        }
        Ok(Flow::Next)
    }

    fn branch(&mut self, branches: &'a [(Expr, Vec<Statement>)], otherwise: &'a [Statement]) -> Result<Flow> {
        for (condition, body) in branches {
            if self.value(condition)?.is_true() {
                return self.deeper(|this| this.statements(body));
            }
        }
        self.deeper(|this| this.statements(otherwise))
    }

    fn with(&mut self, assignments: &'a [(Target, Expr)], body: &'a [Statement]) -> Result<Flow> {
        let mut values = Vec::with_capacity(assignments.len());
        for (_, value) in assignments {
            values.push(self.value(value)?);
        }
        self.scoped(|this| {
            for ((target, _), value) in assignments.iter().zip(values) {
                this.assign(target, value)?;
            }
            this.statements(body)
        })
    }

    /// Runs `work` in a scope of its own.
    fn scoped<T>(&mut self, work: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let outer = self.scopes.enter(self.scopes.current())?;
        let result = work(self)?;
        self.scopes.leave(outer);
        Ok(result)
    }

    /// What filters make of what `body` writes.
    fn filtered(&mut self, filters: &'a [Filter], body: &'a [Statement]) -> Result<Value<'a>> {
        let value = self.deeper(|this| this.scoped(|this| this.capture(body)))?;
        filters.iter().try_fold(value, |value, filter| self.filter(value, filter))
    }

    /// What `body` writes.
    pub(super) fn capture(&mut self, body: &'a [Statement]) -> Result<Value<'a>> {
        self.captured(|this| this.statements(body))
    }

    fn captured(&mut self, write: impl FnOnce(&mut Self) -> Result<Flow>) -> Result<Value<'a>> {
        let inner = self.builder()?;
        let outer = std::mem::replace(&mut self.out, inner);
        write(self)?;
        Ok(std::mem::replace(&mut self.out, outer).finish())
    }

    fn define_macro(&mut self, definition: &'a Macro) -> Result<Value<'a>> {
        self.kept.grow(64)?;
        self.macros.push((definition, self.scopes.keep()));
        Ok(Value::Macro(self.macros.len() - 1))
    }

    /// `loop(iterable)`: what the body of a recursive loop writes for the items of the next level.
    pub(super) fn call_loop(&mut self, index: usize, iterable: &Value<'a>) -> Result<Value<'a>> {
        let Some(&LoopState { block, scope, depth, .. }) = self.loops.get(index) else {
            return fail!("the loop has ended");
        };
        if !block.recursive {
            return fail!("'loop' can be called in a loop marked 'recursive' only");
        }
        self.deeper(|this| {
            let outer = this.scopes.enter(scope)?;
            let text = this.captured(|this| this.run_loop(block, iterable, depth + 1))?;
            this.scopes.leave(outer);
            Ok(text)
        })
    }

    fn run_loop(&mut self, block: &'a For, iterable: &Value<'a>, depth: usize) -> Result<Flow> {
        let items = self.items_of_loop(block, iterable)?;
        let index = self.loops.len();
        let mut completes = false;
        let scope = self.scopes.current();
        self.loops.push(LoopState { block, scope, depth, items: Rc::clone(&items), index: 0, changed: None });
        for (position, item) in items.items.iter().enumerate() {
            self.meter.work(1)?;
            self.loops[index].index = position;
            let flow = self.scoped(|this| {
                this.scopes.set("loop", Value::Loop(index))?;
                this.assign(&block.target, item.clone())?;
                this.statements(&block.body)
            })?;
            completes |= flow == Flow::Next;
            if flow == Flow::Break {
                break;
            }
        }
        self.loops.truncate(index);
        // In Jinja, `else` also runs if every iteration was left early.
        if completes {
            return Ok(Flow::Next);
        }
        self.scoped(|this| this.statements(&block.otherwise))
    }

    /// What a loop goes through: all items, or those that meet its condition.
    fn items_of_loop(&mut self, block: &'a For, iterable: &Value<'a>) -> Result<Rc<Seq<'a>>> {
        let items = self.iterate(iterable)?;
        let Some(condition) = &block.condition else { return Ok(items) };
        let mut chosen = self.list()?;
        for item in &items.items {
            let meets = self.scoped(|this| {
                this.assign(&block.target, item.clone())?;
                Ok(this.value(condition)?.is_true())
            })?;
            if meets {
                chosen.push(item.clone())?;
            }
        }
        self.iterate(&chosen.finish())
    }

    pub(super) fn assign(&mut self, target: &'a Target, value: Value<'a>) -> Result<()> {
        match target {
            Target::Name(name) => self.scopes.set(name, value),
            Target::Attribute(name, attribute) => {
                let Value::Namespace(index) = self.scopes.get(name)? else {
                    return fail!("'{name}' is not a namespace");
                };
                self.set_in_namespace(index, attribute, value)
            }
            Target::Tuple(targets) => {
                let items = self.iterate(&value)?;
                if items.items.len() != targets.len() {
                    return fail!("{} values do not go to {} names", items.items.len(), targets.len());
                }
                for (target, item) in targets.iter().zip(&items.items) {
                    self.assign(target, item.clone())?;
                }
                Ok(())
            }
        }
    }

    pub(super) fn set_in_namespace(&mut self, index: usize, name: &'a str, value: Value<'a>) -> Result<()> {
        if name.starts_with('_') {
            return fail!("a namespace takes no attribute that begins with an underscore, such as '{name}'");
        }
        let held = &mut self.namespaces[index];
        self.meter.work(1 + held.len() / 4)?;
        if let Some((_, old)) = held.iter_mut().find(|(held, _)| *held == name) {
            *old = value;
            return Ok(());
        }
        self.kept.grow(128)?;
        held.push((name, value));
        Ok(())
    }
}
