//! Names that a block sets for itself: what is nested in it does not see a variable of that name from outside, not
//! even before the name is set.
//!
//! This is how Jinja compiles templates (`jinja2.idtracking`): whether a name belongs to a block follows from the
//! first place in the block that mentions it, other than in nested blocks. If that place sets it, is in no branch of
//! an `if`, and no block around mentions the name, it belongs to the block, and is undefined until then.

use std::collections::{HashMap, HashSet};

use super::ast::{Expr, Filter, Kind, Macro, Statement, StatementKind, Target};

/// Inserts a [`StatementKind::Hide`] at the start of each block with such names that blocks within it mention
/// earlier.
pub(super) fn hide(statements: &mut Vec<Statement>) {
    let mut walk = Walk { count: 0, blocks: vec![Block::default()] };
    walk.block([], |walk| walk.statements(statements, false));
    let mut hidden = HashMap::<usize, Vec<String>>::new();
    for (block, name) in walk.blocks.pop().unwrap_or_default().hidden {
        hidden.entry(block).or_default().push(name.to_owned());
    }
    if !hidden.is_empty() {
        insert(statements, &mut hidden, &mut 0);
    }
}

/// Inserts the names of a block, which is number `next`, and of those within it.
fn insert(statements: &mut Vec<Statement>, hidden: &mut HashMap<usize, Vec<String>>, next: &mut usize) {
    let names = hidden.remove(next);
    *next += 1;
    insert_within(statements, hidden, next);
    if let Some(names) = names {
        let line = statements.first().map_or(0, |statement| statement.line);
        statements.insert(0, Statement { line, kind: StatementKind::Hide(names) });
    }
}

fn insert_within(statements: &mut [Statement], hidden: &mut HashMap<usize, Vec<String>>, next: &mut usize) {
    for statement in statements {
        match &mut statement.kind {
            StatementKind::If(branches, otherwise) => {
                branches.iter_mut().for_each(|(_, body)| insert_within(body, hidden, next));
                insert_within(otherwise, hidden, next);
            }
            StatementKind::For(block) => {
                // The condition.
                *next += 1;
                insert(&mut block.body, hidden, next);
                insert(&mut block.otherwise, hidden, next);
            }
            StatementKind::With(_, body)
            | StatementKind::SetBlock(_, _, body)
            | StatementKind::Filter(_, body) => insert(body, hidden, next),
            StatementKind::Macro(definition) | StatementKind::Call(_, definition) => {
                insert(&mut definition.body, hidden, next);
            }
            _ => {}
        }
    }
}

/// A block as far as it was walked.
#[derive(Default)]
struct Block<'a> {
    number: usize,
    /// Names that it mentions.
    own: HashSet<&'a str>,
    /// Names that blocks within it mention.
    nested: HashSet<&'a str>,
    /// Names of its own and of blocks within it, with the number of the block.
    hidden: Vec<(usize, &'a str)>,
}

/// The blocks around the current place of a walk, which is last.
struct Walk<'a> {
    count: usize,
    blocks: Vec<Block<'a>>,
}

impl<'a> Walk<'a> {
    /// Walks a block, in which `names` have values when it begins.
    fn block(&mut self, names: impl IntoIterator<Item = &'a str>, walk: impl FnOnce(&mut Self)) {
        let own = names.into_iter().collect();
        self.blocks.push(Block { number: self.count, own, ..Block::default() });
        self.count += 1;
        walk(self);
        let Some(mut block) = self.blocks.pop() else { return };
        block.hidden.retain(|(number, name)| *number == block.number || !block.own.contains(name));
        if let Some(outer) = self.blocks.last_mut() {
            outer.hidden.append(&mut block.hidden);
            for mut names in [block.own, block.nested] {
                // The smaller set goes into the larger one.
                if names.len() > outer.nested.len() {
                    std::mem::swap(&mut names, &mut outer.nested);
                }
                outer.nested.extend(names);
            }
        }
    }

    fn statements(&mut self, statements: &'a [Statement], in_branch: bool) {
        for Statement { kind, .. } in statements {
            match kind {
                StatementKind::Output(value) => self.expression(value),
                StatementKind::If(branches, otherwise) => {
                    for (condition, body) in branches {
                        self.expression(condition);
                        self.statements(body, true);
                    }
                    self.statements(otherwise, true);
                }
                StatementKind::For(block) => {
                    self.expression(&block.iterable);
                    let names = || targets(&block.target).into_iter().chain(["loop"]);
                    self.block(names(), |walk| {
                        block.condition.iter().for_each(|condition| walk.expression(condition));
                    });
                    self.block(names(), |walk| walk.statements(&block.body, false));
                    self.block([], |walk| walk.statements(&block.otherwise, false));
                }
                StatementKind::Set(target, value) => {
                    self.expression(value);
                    self.set(target, in_branch);
                }
                StatementKind::SetBlock(target, filters, body) => {
                    self.filters(filters);
                    self.block([], |walk| walk.statements(body, false));
                    self.set(target, in_branch);
                }
                StatementKind::Macro(definition) => {
                    self.definition(definition);
                    self.name(&definition.name, in_branch);
                }
                StatementKind::Call(call, body) => {
                    self.expression(call);
                    self.definition(body);
                }
                StatementKind::Filter(filters, body) => {
                    self.filters(filters);
                    self.block([], |walk| walk.statements(body, false));
                }
                StatementKind::With(assignments, body) => {
                    assignments.iter().for_each(|(_, value)| self.expression(value));
                    let names = assignments.iter().flat_map(|(target, _)| targets(target));
                    self.block(names, |walk| walk.statements(body, false));
                }
                StatementKind::Data(_)
                | StatementKind::Hide(_)
                | StatementKind::Break
                | StatementKind::Continue => {}
            }
        }
    }

    fn definition(&mut self, definition: &'a Macro) {
        let names = definition.parameters.iter().map(|(name, _)| name.as_str());
        self.block(names.chain(["caller", "varargs", "kwargs"]), |walk| {
            let defaults = definition.parameters.iter().flat_map(|(_, default)| default);
            defaults.for_each(|default| walk.expression(default));
            walk.statements(&definition.body, false);
        });
    }

    fn set(&mut self, target: &'a Target, in_branch: bool) {
        match target {
            Target::Name(name) => self.name(name, in_branch),
            Target::Attribute(namespace, _) => self.mention(namespace),
            Target::Tuple(several) => several.iter().for_each(|target| self.set(target, in_branch)),
        }
    }

    /// A place that sets `name`.
    fn name(&mut self, name: &'a str, in_branch: bool) {
        let Some(block) = self.blocks.last_mut() else { return };
        if block.own.insert(name) && !in_branch && block.nested.contains(name) {
            block.hidden.push((block.number, name));
        }
    }

    fn mention(&mut self, name: &'a str) {
        self.blocks.last_mut().map(|block| block.own.insert(name));
    }

    fn expression(&mut self, expr: &'a Expr) {
        match &expr.kind {
            Kind::Name(name) => self.mention(name),
            kind => kind.parts(&mut |part| self.expression(part)),
        }
    }

    fn filters(&mut self, filters: &'a [Filter]) {
        filters.iter().for_each(|filter| filter.arguments.parts(&mut |value| self.expression(value)));
    }
}

/// The names that are assigned to.
fn targets(target: &Target) -> Vec<&str> {
    match target {
        Target::Name(name) => vec![name],
        Target::Attribute(..) => Vec::new(),
        Target::Tuple(several) => several.iter().flat_map(targets).collect(),
    }
}
