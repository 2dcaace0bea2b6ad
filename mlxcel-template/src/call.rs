//! Calling functions, methods and macros.

use mlxcel_core::Stopwatch;

use super::arguments::Values;
use super::ast::{Arguments, Expr, Kind, Macro};
use super::error::{Result, TemplateError, fail};
use super::evaluate::Evaluator;
use super::meter::DictBuilder;
use super::operate::name_undefined;
use super::value::{Function, Text, Value};

/// How many numbers `range` gives at most, as in transformers' Jinja.
const MOST_RANGE: i128 = 100_000;

/// What the body of a call block is called by.
const CALLER: &str = "caller";

/// How long the format of a date may be.
const MOST_FORMAT: usize = 256;

impl<'a> Evaluator<'a> {
    pub(super) fn arguments(&mut self, arguments: &'a Arguments) -> Result<Values<'a>> {
        let mut values = Values::default();
        for value in &arguments.positional {
            values.positional.push(self.value(value)?);
        }
        for (name, value) in &arguments.named {
            values.named.push((name, self.value(value)?));
        }
        Ok(values)
    }

    /// Computes a call; a call block hands over its body as `caller`.
    pub(super) fn call_with(&mut self, expr: &'a Expr, caller: Option<Value<'a>>) -> Result<Value<'a>> {
        let Kind::Call(callee, arguments) = &expr.kind else {
            return Err(TemplateError::at(expr.line, "this is not a call"));
        };
        if let Kind::Attribute(inner, name) = &callee.kind {
            let object = self.value(inner)?;
            self.at(expr.line);
            let callee =
                self.attribute(&object, name).map_err(|fault| name_undefined(fault, &[(inner, &object)]))?;
            if matches!(callee, Value::Method) {
                let values = self.arguments(arguments)?;
                self.at(expr.line);
                if caller.is_some() {
                    return Err(not_a_macro(name));
                }
                return match object {
                    Value::Loop(index) => self.loop_method(index, name, values),
                    _ => self.method(&object, name, &values),
                };
            }
            return self.call(&callee, name, arguments, caller, expr.line);
        }
        let value = self.value(callee)?;
        let name = match &callee.kind {
            Kind::Name(name) => name.as_str(),
            _ => "this",
        };
        self.call(&value, name, arguments, caller, expr.line)
    }

    fn call(
        &mut self,
        callee: &Value<'a>,
        name: &str,
        arguments: &'a Arguments,
        caller: Option<Value<'a>>,
        line: u32,
    ) -> Result<Value<'a>> {
        let values = self.arguments(arguments)?;
        self.at(line);
        match *callee {
            Value::Macro(index) => self.call_macro(index, values, caller),
            Value::Function(_) | Value::Method | Value::Loop(_) if caller.is_some() => Err(not_a_macro(name)),
            Value::Function(function) => self.function(function, &values),
            Value::Loop(index) if !values.positional.is_empty() => {
                let [iterable] = values.take(name, ["iterable"])?;
                self.call_loop(index, &iterable)
            }
            Value::Undefined => Err(TemplateError::at(line, format!("'{name}' is undefined"))),
            _ => Err(TemplateError::at(line, format!("'{name}' cannot be called"))),
        }
    }

    fn call_macro(
        &mut self,
        index: usize,
        mut values: Values<'a>,
        caller: Option<Value<'a>>,
    ) -> Result<Value<'a>> {
        let (definition, scope) = self.macros[index];
        // It is an argument by name, if the macro does not read it itself.
        values.named.extend(caller.map(|caller| (CALLER, caller)));
        let takes_caller = definition.takes_more.2;
        let is_parameter = definition.parameters.iter().any(|(name, _)| name == CALLER);
        let at = values.named.iter().position(|(name, _)| *name == CALLER);
        let caller = at.filter(|_| takes_caller && !is_parameter).map(|at| values.named.swap_remove(at).1);
        self.deeper(|this| {
            let outer = this.scopes.enter(scope)?;
            this.bind(definition, values)?;
            if takes_caller && !is_parameter {
                this.scopes.set(CALLER, caller.unwrap_or(Value::Undefined))?;
            }
            let text = this.capture(&definition.body)?;
            this.scopes.leave(outer);
            Ok(text)
        })
    }

    /// Gives parameters their values. Arguments without a parameter are `varargs` and `kwargs`.
    fn bind(&mut self, definition: &'a Macro, values: Values<'a>) -> Result<()> {
        let mut positional = values.positional.into_iter();
        let mut named = values.named;
        for (name, default) in &definition.parameters {
            let by_name =
                named.iter().position(|(given, _)| given == name).map(|index| named.swap_remove(index).1);
            let value = match (positional.next(), by_name, default) {
                (Some(_), Some(_), _) => return fail!("the macro is given '{name}' twice"),
                (Some(value), None, _) | (None, Some(value), _) => value,
                (None, None, Some(default)) => self.value(default)?,
                (None, None, None) => Value::Undefined,
            };
            self.scopes.set(name, value)?;
        }
        let (takes_varargs, takes_kwargs, _) = definition.takes_more;
        let mut rest = self.list()?;
        for value in positional {
            if !takes_varargs {
                return fail!("the macro '{}' is given too many arguments", definition.name);
            }
            rest.push(value)?;
        }
        let mut named_rest = DictBuilder::new(&self.meter)?;
        for (name, value) in named {
            if !takes_kwargs {
                let macro_name = &definition.name;
                return fail!("the macro '{macro_name}' does not take the argument '{name}'");
            }
            named_rest.set(Value::text(name), value)?;
        }
        if takes_varargs {
            self.scopes.set("varargs", rest.into_seq(true))?;
        }
        if takes_kwargs {
            self.scopes.set("kwargs", named_rest.finish())?;
        }
        Ok(())
    }

    fn function(&mut self, function: Function, values: &Values<'a>) -> Result<Value<'a>> {
        match function {
            Function::Range => {
                let [first, second, step] = values.take("range", ["start", "stop", "step"])?;
                if first.is_undefined() || values.positional.iter().any(Value::is_undefined) {
                    return fail!("'range' takes ints");
                }
                let (from, to) = match second {
                    Value::Undefined => (0, first.int_or(0)?),
                    _ => (first.int_or(0)?, second.int_or(0)?),
                };
                self.range(from, to, step.int_or(1)?)
            }
            Function::Dict => {
                let mut dict = DictBuilder::new(&self.meter)?;
                for (key, value) in self.entries("dict", values)? {
                    dict.set(key, value)?;
                }
                Ok(dict.finish())
            }
            Function::Namespace => {
                self.kept.grow(64)?;
                self.namespaces.push(Vec::new());
                let index = self.namespaces.len() - 1;
                for (name, value) in self.entries("namespace", values)? {
                    let Value::Text(Text::Borrowed(name, _)) = name else {
                        return fail!("'namespace' takes names that are written out");
                    };
                    self.set_in_namespace(index, name, value)?;
                }
                Ok(Value::Namespace(index))
            }
            Function::RaiseException => {
                let [message] = values.take("raise_exception", ["message"])?;
                Err(TemplateError::new(&*self.text_of(&message)?))
            }
            Function::StrftimeNow => {
                let [format] = values.take("strftime_now", ["format"])?;
                let format = self.text_of(&format)?;
                let mut text = self.builder()?;
                text.push_as(&self.formatted_now(&format)?, format.origin())?;
                Ok(text.finish())
            }
        }
    }

    /// What `dict` or `namespace` is called with: a dictionary or a list of pairs, and entries by name.
    fn entries(&self, callee: &str, values: &Values<'a>) -> Result<Vec<(Value<'a>, Value<'a>)>> {
        let fault = || {
            TemplateError::new(format!(
                "'{callee}' takes a dictionary or a list of pairs, and arguments with names"
            ))
        };
        let mut entries = Vec::new();
        match values.positional.as_slice() {
            [] => {}
            [Value::Dict(dict)] => {
                self.meter.work(dict.entries.len())?;
                entries.extend(dict.entries.iter().cloned());
            }
            [Value::Seq(pairs)] => {
                self.meter.work(pairs.items.len())?;
                for pair in &pairs.items {
                    match self.iterate(pair)?.items.as_slice() {
                        [key, value] => entries.push((key.clone(), value.clone())),
                        _ => return Err(fault()),
                    }
                }
            }
            _ => return Err(fault()),
        }
        entries.extend(values.named.iter().map(|(name, value)| (Value::text(name), value.clone())));
        Ok(entries)
    }

    fn range(&self, from: i128, to: i128, step: i128) -> Result<Value<'a>> {
        if step == 0 {
            return fail!("the step of a range is zero");
        }
        let mut list = self.list()?;
        let mut next = from;
        let mut count = 0;
        while if step > 0 { next < to } else { next > to } {
            if count == MOST_RANGE {
                return fail!("a range has more than {MOST_RANGE} numbers");
            }
            list.push(Value::Int(next))?;
            count += 1;
            let Some(after) = next.checked_add(step) else { break };
            next = after;
        }
        Ok(list.finish())
    }

    /// The local time, by the format letters of C and Python.
    fn formatted_now(&self, format: &str) -> Result<String> {
        if format.len() > MOST_FORMAT {
            return fail!("the format of a date is too long");
        }
        let now = match self.now {
            Some(now) => now,
            None if !Stopwatch::HAS_CLOCK => {
                return fail!(
                    "the template asks for the date, and this platform has no clock: set the date in ChatOptions"
                );
            }
            None => &jiff::Zoned::now(),
        };
        jiff::fmt::strtime::format(in_locale_c(format), now)
            .map_err(|error| TemplateError::new(format!("strftime_now does not know this format: {error}")))
    }

    fn loop_method(&mut self, index: usize, name: &str, values: Values<'a>) -> Result<Value<'a>> {
        let Some(state) = self.loops.get_mut(index) else { return fail!("the loop has ended") };
        if name == "cycle" {
            let values = values.positional;
            let at = state.index.checked_rem(values.len());
            return at
                .map(|at| values[at].clone())
                .ok_or_else(|| TemplateError::new("'cycle' is given nothing"));
        }
        let before = state.changed.replace(values.positional.clone());
        let Some(before) = before.filter(|before| before.len() == values.positional.len()) else {
            return Ok(Value::Bool(true));
        };
        for (old, new) in before.iter().zip(&values.positional) {
            if !old.equals(new, &self.meter)? {
                return Ok(Value::Bool(true));
            }
        }
        Ok(Value::Bool(false))
    }
}

fn not_a_macro(name: &str) -> TemplateError {
    TemplateError::new(format!("a call block calls a macro, which '{name}' is not"))
}

/// The format with what it leaves to the locale written out, as in Python's. The time has no zone there.
fn in_locale_c(format: &str) -> String {
    let mut out = String::new();
    let mut characters = format.chars();
    while let Some(character) = characters.next() {
        let directive = if character == '%' { characters.next() } else { None };
        match directive {
            Some('c') => out.push_str("%a %b %e %H:%M:%S %Y"),
            Some('x') => out.push_str("%m/%d/%y"),
            Some('z' | 'Z') => {}
            Some(directive) => out.extend([character, directive]),
            None => out.push(character),
        }
    }
    out
}
