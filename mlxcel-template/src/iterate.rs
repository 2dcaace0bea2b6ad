//! Iteration, items and attributes of values.

use std::rc::Rc;

use super::error::{Result, fail};
use super::evaluate::Evaluator;
use super::meter::Charge;
use super::methods;
use super::value::{Seq, Text, Value};

impl<'a> Evaluator<'a> {
    /// What going through a value gives: the items of a list, the keys of a dictionary, the characters of a
    /// text.
    pub(super) fn iterate(&self, value: &Value<'a>) -> Result<Rc<Seq<'a>>> {
        if let Value::Seq(seq) = value {
            return Ok(Rc::clone(seq));
        }
        let mut list = self.list()?;
        match value {
            Value::Undefined => {}
            Value::Dict(dict) => {
                for (key, _) in &dict.entries {
                    list.push(key.clone())?;
                }
            }
            Value::Text(text) => {
                for (at, character) in text.char_indices() {
                    list.push(self.part(text, at..at + character.len_utf8())?)?;
                }
            }
            _ => return fail!("nothing can go through {}", value.type_name()),
        }
        match list.finish() {
            Value::Seq(seq) => Ok(seq),
            _ => fail!("a list is no list"),
        }
    }

    pub(super) fn part(&self, text: &Text<'a>, range: std::ops::Range<usize>) -> Result<Value<'a>> {
        match text {
            Text::Borrowed(text, origin) => Ok(Value::text_from(&text[range], *origin)),
            Text::Owned(_) => {
                let mut part = self.builder()?;
                part.push_part(text, range)?;
                Ok(part.finish())
            }
        }
    }

    /// `value.name`: an attribute, else an item.
    pub(super) fn attribute(&self, value: &Value<'a>, name: &str) -> Result<Value<'a>> {
        match value {
            Value::Namespace(index) => {
                let held = &self.namespaces[*index];
                self.meter.work(1 + held.len() / 4)?;
                let value = held.iter().find(|(held, _)| *held == name).map(|(_, value)| value.clone());
                Ok(value.unwrap_or(Value::Undefined))
            }
            Value::Loop(index) => self.loop_attribute(*index, name),
            Value::Macro(index) if name == "name" => {
                let definition = self.macros.get(*index);
                Ok(definition.map_or(Value::Undefined, |(definition, _)| Value::text(&definition.name)))
            }
            Value::Undefined => fail!("undefined has no attribute '{name}'"),
            _ if methods::exists(value, name) => Ok(Value::Method),
            Value::Dict(dict) => Ok(dict.get_text(name, &self.meter)?.unwrap_or(Value::Undefined)),
            _ => Ok(Value::Undefined),
        }
    }

    /// `value[key]`: an item, else an attribute.
    pub(super) fn item(&self, value: &Value<'a>, key: &Value<'a>) -> Result<Value<'a>> {
        match (value, key.as_int()) {
            (Value::Dict(dict), _) => {
                if let Some(value) = dict.get(key, &self.meter)? {
                    return Ok(value);
                }
            }
            (Value::Seq(seq), Some(index)) => {
                let item = position(index, seq.items.len()).map(|index| seq.items[index].clone());
                return Ok(item.unwrap_or(Value::Undefined));
            }
            (Value::Text(text), Some(index)) => {
                return self.keep_mark(text.is_marked(), self.character(text, index)?);
            }
            _ => {}
        }
        match key {
            Value::Text(name) => self.attribute(value, name),
            _ if value.is_undefined() => fail!("undefined has no items"),
            _ => Ok(Value::Undefined),
        }
    }

    fn character(&self, text: &Text<'a>, index: i128) -> Result<Value<'a>> {
        self.meter.read(text.len())?;
        if text.is_ascii() {
            return match position(index, text.len()) {
                Some(at) => self.part(text, at..at + 1),
                None => Ok(Value::Undefined),
            };
        }
        self.meter.read(4 * text.len())?;
        let found = position(index, text.chars().count()).and_then(|index| text.char_indices().nth(index));
        match found {
            Some((at, character)) => self.part(text, at..at + character.len_utf8()),
            None => Ok(Value::Undefined),
        }
    }

    /// `value[from:to:step]`.
    pub(super) fn slice(&self, value: &Value<'a>, parts: [Option<i128>; 3]) -> Result<Value<'a>> {
        let step = parts[2].unwrap_or(1);
        if step == 0 {
            return fail!("a slice's step is zero");
        }
        match value {
            Value::Seq(seq) => {
                let mut list = self.list()?;
                for index in indices(seq.items.len(), parts[0], parts[1], step) {
                    list.push(seq.items[index].clone())?;
                }
                Ok(list.into_seq(seq.tuple))
            }
            Value::Text(text) => {
                self.meter.read(4 * text.len())?;
                // Where each character begins, and where the last one ends.
                let ascii = text.is_ascii();
                let _held = Charge::new(&self.meter, if ascii { 0 } else { 8 * text.len() })?;
                let starts: Vec<usize> =
                    if ascii { Vec::new() } else { text.char_indices().map(|(at, _)| at).collect() };
                let length = if ascii { text.len() } else { starts.len() };
                let start = |index: usize| {
                    if ascii { index } else { starts.get(index).copied().unwrap_or(text.len()) }
                };
                let mut chosen = indices(length, parts[0], parts[1], step).peekable();
                if step == 1 {
                    let Some(&first) = chosen.peek() else { return Ok(Value::text("")) };
                    let count = chosen.count();
                    return self.part(text, start(first)..start(first + count));
                }
                let mut out = self.builder()?;
                for index in chosen {
                    out.push_part(text, start(index)..start(index + 1))?;
                }
                Ok(out.finish())
            }
            _ => fail!("{} cannot be sliced", value.type_name()),
        }
    }

    fn loop_attribute(&self, index: usize, name: &str) -> Result<Value<'a>> {
        // It may have ended, where a namespace kept it.
        let Some(state) = self.loops.get(index) else { return Ok(Value::Undefined) };
        let (at, length) = (state.index, state.items.items.len());
        let int = |value: usize| Value::Int(value as i128);
        Ok(match name {
            "index" => int(at + 1),
            "index0" => int(at),
            "revindex" => int(length - at),
            "revindex0" => int(length - at - 1),
            "first" => Value::Bool(at == 0),
            "last" => Value::Bool(at + 1 == length),
            "length" => int(length),
            // Loops within loops do not count here: only recursive ones do.
            "depth" => int(state.depth + 1),
            "depth0" => int(state.depth),
            "previtem" => at.checked_sub(1).map_or(Value::Undefined, |at| state.items.items[at].clone()),
            "nextitem" => state.items.items.get(at + 1).cloned().unwrap_or(Value::Undefined),
            "cycle" | "changed" => Value::Method,
            _ => Value::Undefined,
        })
    }
}

/// Where `index` is in `length` items; a negative one counts from the end.
pub(super) fn position(index: i128, length: usize) -> Option<usize> {
    let index = if index < 0 { index.checked_add(length as i128)? } else { index };
    usize::try_from(index).ok().filter(|&index| index < length)
}

/// The indices of a slice, as Python computes them.
fn indices(length: usize, from: Option<i128>, to: Option<i128>, step: i128) -> impl Iterator<Item = usize> {
    let length = length as i128;
    let (least, most) = if step < 0 { (-1, length - 1) } else { (0, length) };
    let clip =
        |bound: i128| (if bound < 0 { bound.saturating_add(length) } else { bound }).clamp(least, most);
    let (first, last) = if step < 0 { (most, least) } else { (least, most) };
    let from = from.map_or(first, clip);
    let to = to.map_or(last, clip);
    let mut next = Some(from);
    std::iter::from_fn(move || {
        let index = next.filter(|&index| if step < 0 { index > to } else { index < to })?;
        next = index.checked_add(step);
        usize::try_from(index).ok()
    })
}
