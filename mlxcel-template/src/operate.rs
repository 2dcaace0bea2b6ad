//! Operators.

use super::ast::{Binary, Comparison, Expr, Kind, Unary};
use super::error::{Result, TemplateError, fail};
use super::evaluate::Evaluator;
use super::marked::refuse_marked;
use super::numbers;
use super::print::write_str;
use super::value::Value;

impl<'a> Evaluator<'a> {
    pub(super) fn value(&mut self, expr: &'a Expr) -> Result<Value<'a>> {
        self.deeper(|this| this.compute(expr))
    }

    fn compute(&mut self, expr: &'a Expr) -> Result<Value<'a>> {
        match &expr.kind {
            Kind::None => Ok(Value::None),
            Kind::Bool(value) => Ok(Value::Bool(*value)),
            Kind::Int(value) => Ok(Value::Int(*value)),
            Kind::Float(value) => Ok(Value::Float(*value)),
            Kind::Text(text) => Ok(Value::text(text)),
            Kind::Name(name) => self.scopes.get(name),
            Kind::List(items) => self.items(items, false),
            Kind::Tuple(items) => self.items(items, true),
            Kind::Dict(entries) => self.dict(entries),
            Kind::Unary(operator, value) => self.unary(*operator, value),
            Kind::Binary(operator, pair) => {
                let (left, right) = (self.value(&pair.0)?, self.value(&pair.1)?);
                self.at(expr.line);
                self.binary(*operator, &left, &right)
                    .map_err(|fault| name_undefined(fault, &[(&pair.0, &left), (&pair.1, &right)]))
            }
            Kind::And(pair) => {
                let left = self.value(&pair.0)?;
                if left.is_true() { self.value(&pair.1) } else { Ok(left) }
            }
            Kind::Or(pair) => {
                let left = self.value(&pair.0)?;
                if left.is_true() { Ok(left) } else { self.value(&pair.1) }
            }
            Kind::Compare(first, others) => self.comparison(first, others),
            Kind::Concat(parts) => {
                let mut text = self.builder()?;
                for part in parts {
                    write_str(&mut text, &self.value(part)?)?;
                }
                Ok(text.finish())
            }
            Kind::Choice(pair, otherwise) => {
                if self.value(&pair.0)?.is_true() {
                    self.value(&pair.1)
                } else {
                    otherwise.as_ref().map_or(Ok(Value::Undefined), |otherwise| self.value(otherwise))
                }
            }
            Kind::Attribute(object, name) => {
                let value = self.value(object)?;
                self.at(expr.line);
                self.attribute(&value, name).map_err(|fault| name_undefined(fault, &[(object, &value)]))
            }
            Kind::Item(pair) => {
                let (value, key) = (self.value(&pair.0)?, self.value(&pair.1)?);
                self.at(expr.line);
                self.item(&value, &key).map_err(|fault| name_undefined(fault, &[(&pair.0, &value)]))
            }
            Kind::Slice(value, parts) => self.slice_of(value, parts),
            Kind::Call(..) => self.call_with(expr, None),
            Kind::Filter(value, filter) => {
                let value = self.value(value)?;
                self.filter(value, filter)
            }
            Kind::Test(value, name, arguments, negated) => {
                let value = self.value(value)?;
                let arguments = self.arguments(arguments)?;
                self.at(expr.line);
                Ok(Value::Bool(self.test(name, &value, &arguments)? != *negated))
            }
        }
    }

    fn items(&mut self, items: &'a [Expr], tuple: bool) -> Result<Value<'a>> {
        let mut list = self.list()?;
        for item in items {
            list.push(self.value(item)?)?;
        }
        Ok(list.into_seq(tuple))
    }

    fn dict(&mut self, entries: &'a [(Expr, Expr)]) -> Result<Value<'a>> {
        let mut dict = super::DictBuilder::new(&self.meter)?;
        for (key, value) in entries {
            let key = self.value(key)?;
            dict.set(key, self.value(value)?)?;
        }
        Ok(dict.finish())
    }

    fn slice_of(&mut self, value: &'a Expr, parts: &'a [Option<Expr>; 3]) -> Result<Value<'a>> {
        let value = self.value(value)?;
        let mut bounds = [None; 3];
        for (bound, part) in bounds.iter_mut().zip(parts) {
            if let Some(part) = part {
                *bound = match self.value(part)? {
                    Value::None => None,
                    value => Some(value.as_int().ok_or_else(|| {
                        TemplateError::new(format!("{} cannot bound a slice", value.type_name()))
                    })?),
                };
            }
        }
        let is_marked = matches!(&value, Value::Text(text) if text.is_marked());
        self.keep_mark(is_marked, self.slice(&value, bounds)?)
    }

    fn unary(&mut self, operator: Unary, value: &'a Expr) -> Result<Value<'a>> {
        let value = self.value(value)?;
        match operator {
            Unary::Not => Ok(Value::Bool(!value.is_true())),
            Unary::Plus => match value {
                Value::Float(_) => Ok(value),
                _ => self.binary(Binary::Add, &Value::Int(0), &value),
            },
            Unary::Minus => match value {
                Value::Float(value) => Ok(Value::Float(-value)),
                _ => self.binary(Binary::Subtract, &Value::Int(0), &value),
            },
        }
    }

    /// A chain of comparisons: each value is compared with the next.
    fn comparison(&mut self, first: &'a Expr, others: &'a [(Comparison, Expr)]) -> Result<Value<'a>> {
        let mut left = self.value(first)?;
        for (comparison, right) in others {
            let right = self.value(right)?;
            if !self.compare(*comparison, &left, &right)? {
                return Ok(Value::Bool(false));
            }
            left = right;
        }
        Ok(Value::Bool(true))
    }

    pub(super) fn compare(
        &self,
        comparison: Comparison,
        left: &Value<'a>,
        right: &Value<'a>,
    ) -> Result<bool> {
        let meter = &self.meter;
        let is_nan = |value: &Value<'_>| matches!(value, Value::Float(value) if value.is_nan());
        let ordered = !is_nan(left) && !is_nan(right);
        Ok(match comparison {
            Comparison::Equal => left.equals(right, meter)?,
            Comparison::Unequal => !left.equals(right, meter)?,
            Comparison::Less => left.order(right, meter)?.is_lt() && ordered,
            Comparison::LessOrEqual => left.order(right, meter)?.is_le() && ordered,
            Comparison::Greater => left.order(right, meter)?.is_gt() && ordered,
            Comparison::GreaterOrEqual => left.order(right, meter)?.is_ge() && ordered,
            Comparison::In => self.contains(right, left)?,
            Comparison::NotIn => !self.contains(right, left)?,
        })
    }

    /// Python's `item in container`.
    pub(super) fn contains(&self, container: &Value<'a>, item: &Value<'a>) -> Result<bool> {
        match container {
            Value::Text(text) => match item.as_text() {
                Some(part) => {
                    self.meter.read(text.len() + part.len())?;
                    Ok(text.contains(part))
                }
                None => fail!("{} cannot be in a string", item.type_name()),
            },
            Value::Dict(dict) => Ok(dict.get(item, &self.meter)?.is_some()),
            Value::Seq(seq) => {
                for held in &seq.items {
                    if held.equals(item, &self.meter)? {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
            Value::Undefined => Ok(false),
            _ => fail!("nothing is in {}", container.type_name()),
        }
    }

    pub(super) fn binary(
        &mut self,
        operator: Binary,
        left: &Value<'a>,
        right: &Value<'a>,
    ) -> Result<Value<'a>> {
        match (operator, left, right) {
            (Binary::Add, Value::Text(a), Value::Text(b)) if a.is_marked() || b.is_marked() => {
                self.add_marked(a, b)
            }
            (Binary::Add, Value::Text(a), Value::Text(b)) => {
                let mut text = self.builder()?;
                text.push_text(a)?;
                text.push_text(b)?;
                Ok(text.finish())
            }
            (Binary::Add, Value::Seq(a), Value::Seq(b)) if a.tuple == b.tuple => {
                let mut list = self.list()?;
                list.extend(&a.items)?;
                list.extend(&b.items)?;
                Ok(list.into_seq(a.tuple))
            }
            (Binary::Multiply, Value::Text(text), count) | (Binary::Multiply, count, Value::Text(text)) => {
                let mut out = self.builder()?;
                out.repeat(text, times(count)?)?;
                self.keep_mark(text.is_marked(), out.finish())
            }
            (Binary::Multiply, Value::Seq(seq), count) | (Binary::Multiply, count, Value::Seq(seq)) => {
                let mut list = self.list()?;
                let count = if seq.items.is_empty() { 0 } else { times(count)? };
                for _ in 0..count {
                    list.extend(&seq.items)?;
                }
                Ok(list.into_seq(seq.tuple))
            }
            (Binary::Remainder, Value::Text(format), _) => {
                refuse_marked("%", format)?;
                match right {
                    Value::Seq(seq) if seq.tuple => self.printf(format, &seq.items, true),
                    // Python takes what has items for fields by name, which need not all be used.
                    Value::Seq(_) | Value::Dict(_) => self.printf(format, std::slice::from_ref(right), false),
                    _ => self.printf(format, std::slice::from_ref(right), true),
                }
            }
            _ => numbers::binary(operator, left, right),
        }
    }
}

/// How often a text or a list is repeated.
fn times(count: &Value<'_>) -> Result<usize> {
    match count.as_int() {
        Some(count) => Ok(usize::try_from(count.max(0)).unwrap_or(usize::MAX)),
        None => fail!("nothing can be repeated {} times", count.type_name()),
    }
}

/// A fault that is due to a value that is undefined says which one.
pub(super) fn name_undefined(fault: TemplateError, operands: &[(&Expr, &Value<'_>)]) -> TemplateError {
    let undefined = operands.iter().find(|(_, value)| value.is_undefined());
    match undefined.and_then(|(expr, _)| Some((expr.line, path(expr)?))) {
        Some((line, path)) => TemplateError::at(line, format!("'{path}' is undefined")),
        None => fault,
    }
}

/// How an expression is written that is a name, or an attribute of one.
fn path(expr: &Expr) -> Option<String> {
    match &expr.kind {
        Kind::Name(name) => Some(name.clone()),
        Kind::Attribute(object, name) => Some(format!("{}.{name}", path(object)?)),
        Kind::Item(pair) => match &pair.1.kind {
            Kind::Text(key) => Some(format!("{}['{key}']", path(&pair.0)?)),
            Kind::Int(index) => Some(format!("{}[{index}]", path(&pair.0)?)),
            _ => None,
        },
        _ => None,
    }
}
