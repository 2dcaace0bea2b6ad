//! Filters of lists.

use std::cmp::Ordering;

use super::arguments::Values;
use super::ast::Binary;
use super::error::{Result, fail};
use super::evaluate::Evaluator;
use super::value::Value;

impl<'a> Evaluator<'a> {
    pub(super) fn list_filter(
        &mut self,
        name: &str,
        value: Value<'a>,
        values: &Values<'a>,
    ) -> Result<Value<'a>> {
        match name {
            "first" | "last" => {
                let [] = values.take(name, [])?;
                let items = self.iterate(&value)?;
                let item = if name == "first" { items.items.first() } else { items.items.last() };
                Ok(item.cloned().unwrap_or(Value::Undefined))
            }
            "list" => {
                let [] = values.take(name, [])?;
                let mut list = self.list()?;
                list.extend(&self.iterate(&value)?.items)?;
                Ok(list.finish())
            }
            "join" => {
                let [separator, attribute] = values.take(name, ["d", "attribute"])?;
                let items = self.projected(&value, &attribute)?;
                let separator = self.text_of(&separator)?;
                self.join(&separator, &items)
            }
            "reverse" => {
                let [] = values.take(name, [])?;
                self.reversed(&value)
            }
            "items" | "dictsort" => self.pairs(name, &value, values),
            // They take none, and whatever else is false, for an empty list.
            "map" | "select" | "reject" | "selectattr" | "rejectattr" if !value.is_true() => {
                Ok(self.list()?.finish())
            }
            "map" => self.map(&value, values),
            "select" | "reject" | "selectattr" | "rejectattr" => self.choose(name, &value, values),
            "sort" => {
                let [reverse, sensitive, attribute] =
                    values.take(name, ["reverse", "case_sensitive", "attribute"])?;
                let items = self.iterate(&value)?;
                let keys = self.sort_keys(&items.items, &attribute, sensitive.is_true())?;
                self.in_order(&items.items, &keys, reverse.is_true())
            }
            "unique" => {
                let [sensitive, attribute] = values.take(name, ["case_sensitive", "attribute"])?;
                let items = self.iterate(&value)?;
                let keys = self.keys(&items.items, &attribute, sensitive.is_true())?;
                let mut list = self.list()?;
                for (index, (item, key)) in items.items.iter().zip(&keys).enumerate() {
                    let mut seen = false;
                    for earlier in &keys[..index] {
                        seen |= earlier.equals(key, &self.meter)?;
                    }
                    if !seen {
                        list.push(item.clone())?;
                    }
                }
                Ok(list.finish())
            }
            "min" | "max" => {
                let [sensitive, attribute] = values.take(name, ["case_sensitive", "attribute"])?;
                let items = self.iterate(&value)?;
                let keys = self.keys(&items.items, &attribute, sensitive.is_true())?;
                let wanted = if name == "min" { Ordering::Less } else { Ordering::Greater };
                let mut best = None;
                for index in 0..keys.len() {
                    let better = match best {
                        None => true,
                        Some(best) => keys[index].order(&keys[best], &self.meter)? == wanted,
                    };
                    best = if better { Some(index) } else { best };
                }
                Ok(best.map_or(Value::Undefined, |index: usize| items.items[index].clone()))
            }
            "sum" => {
                let [attribute, start] = values.take(name, ["attribute", "start"])?;
                let mut sum = if start.is_undefined() { Value::Int(0) } else { start };
                for item in self.projected(&value, &attribute)? {
                    sum = self.binary(Binary::Add, &sum, &item)?;
                }
                Ok(sum)
            }
            "batch" | "slice" => self.parts(name, &value, values),
            _ => fail!("there is no filter '{name}'"),
        }
    }

    fn reversed(&self, value: &Value<'a>) -> Result<Value<'a>> {
        if let Value::Text(text) = value {
            let mut out = self.builder()?;
            // Pieces are few, characters many.
            let pieces: Vec<_> = text.pieces(0..text.len()).collect();
            for (piece, origin) in pieces.into_iter().rev() {
                for character in piece.chars().rev() {
                    out.push_char(character, origin)?;
                }
            }
            return Ok(out.finish());
        }
        let mut list = self.list()?;
        for item in self.iterate(value)?.items.iter().rev() {
            list.push(item.clone())?;
        }
        Ok(list.finish())
    }

    /// The entries of a dictionary, in its order or sorted.
    fn pairs(&self, name: &str, value: &Value<'a>, values: &Values<'a>) -> Result<Value<'a>> {
        let mut pairs = self.list()?;
        let mut keys = self.list()?;
        let [sensitive, by, reverse] = values.take(name, ["case_sensitive", "by", "reverse"])?;
        let by_value = match by.text_or("key")? {
            "key" => false,
            "value" => true,
            _ => return fail!("'dictsort' sorts by key or value"),
        };
        match value {
            Value::Dict(dict) => {
                for (key, value) in &dict.entries {
                    pairs.push(self.pair(key.clone(), value.clone())?)?;
                    keys.push(self.folded(if by_value { value } else { key }, sensitive.is_true())?)?;
                }
            }
            Value::Undefined if name == "items" => {}
            _ => return fail!("'{name}' does not take {}", value.type_name()),
        }
        if name == "items" {
            return Ok(pairs.finish());
        }
        self.in_order(pairs.items(), keys.items(), reverse.is_true())
    }

    /// The items, or an attribute of each.
    fn projected(&self, value: &Value<'a>, attribute: &Value<'a>) -> Result<Vec<Value<'a>>> {
        let items = self.iterate(value)?;
        self.meter.work(items.items.len())?;
        match attribute.given() {
            None => Ok(items.items.clone()),
            Some(attribute) => items.items.iter().map(|item| self.path(item, attribute)).collect(),
        }
    }

    /// An attribute of an attribute, with points between their names.
    fn path(&self, item: &Value<'a>, attribute: &Value<'a>) -> Result<Value<'a>> {
        let Some(path) = attribute.as_text() else { return self.item(item, attribute) };
        self.meter.read(path.len())?;
        let mut value = item.clone();
        for name in path.split('.') {
            value = match (name.parse::<u32>(), &value) {
                (Ok(index), _) => self.item(&value, &Value::Int(index.into()))?,
                // An item goes before a method of the same name.
                (_, Value::Dict(dict)) => dict.get_text(name, &self.meter)?.unwrap_or(Value::Undefined),
                _ => self.attribute(&value, name)?,
            };
        }
        Ok(value)
    }

    /// What items are compared by.
    fn keys(
        &self,
        items: &[Value<'a>],
        attribute: &Value<'a>,
        case_sensitive: bool,
    ) -> Result<Vec<Value<'a>>> {
        let key = |item: &Value<'a>| match attribute.given() {
            None => self.folded(item, case_sensitive),
            Some(attribute) => self.folded(&self.path(item, attribute)?, case_sensitive),
        };
        items.iter().map(key).collect()
    }

    /// What items are sorted by: lists of one or several attributes, of which Python compares the first that
    /// differs.
    fn sort_keys(
        &self,
        items: &[Value<'a>],
        attribute: &Value<'a>,
        case_sensitive: bool,
    ) -> Result<Vec<Value<'a>>> {
        let mut paths = self.list()?;
        match attribute.given() {
            None => {}
            Some(Value::Text(text)) => {
                let mut start = 0;
                for path in text.split(',') {
                    paths.push(self.part(text, start..start + path.len())?)?;
                    start += path.len() + 1;
                }
            }
            Some(attribute) => paths.push(attribute.clone())?,
        }
        let paths = paths.items();
        let key = |item: &Value<'a>| {
            let mut several = self.list()?;
            if paths.is_empty() {
                several.push(self.folded(item, case_sensitive)?)?;
            }
            for path in paths.iter() {
                several.push(self.folded(&self.path(item, path)?, case_sensitive)?)?;
            }
            Ok(several.finish())
        };
        items.iter().map(key).collect()
    }

    fn folded(&self, value: &Value<'a>, case_sensitive: bool) -> Result<Value<'a>> {
        match value {
            Value::Text(text) if !case_sensitive => self.lower(text),
            _ => Ok(value.clone()),
        }
    }

    /// Items in the order of their keys; equal ones keep theirs.
    fn in_order(&self, items: &[Value<'a>], keys: &[Value<'a>], reverse: bool) -> Result<Value<'a>> {
        // Comparing may fail, and values need not have a total order: the standard library's sorting may
        // panic on both.
        let mut order: Vec<usize> = (0..items.len()).collect();
        let mut merged = order.clone();
        let mut width = 1;
        while width < order.len() {
            for start in (0..order.len()).step_by(2 * width) {
                let middle = (start + width).min(order.len());
                let end = (start + 2 * width).min(order.len());
                let (mut left, mut right) = (start, middle);
                for slot in &mut merged[start..end] {
                    let takes_left = left < middle
                        && (right == end || {
                            let ordering = keys[order[left]].order(&keys[order[right]], &self.meter)?;
                            if reverse { ordering.is_ge() } else { ordering.is_le() }
                        });
                    let from = if takes_left { &mut left } else { &mut right };
                    *slot = order[*from];
                    *from += 1;
                }
            }
            std::mem::swap(&mut order, &mut merged);
            width *= 2;
        }
        let mut list = self.list()?;
        for index in order {
            list.push(items[index].clone())?;
        }
        Ok(list.finish())
    }

    /// `map('filter', …)` or `map(attribute=…)`
    fn map(&mut self, value: &Value<'a>, values: &Values<'a>) -> Result<Value<'a>> {
        let items = self.iterate(value)?;
        let mut list = self.list()?;
        if values.positional.is_empty() {
            let [attribute, default] = values.take("map", ["attribute", "default"])?;
            for item in &items.items {
                let found = match attribute {
                    Value::None => item.clone(),
                    _ => self.path(item, &attribute)?,
                };
                let default = default.given().filter(|_| found.is_undefined());
                list.push(default.cloned().unwrap_or(found))?;
            }
            return Ok(list.finish());
        }
        let (filter, rest) = called(values)?;
        for item in &items.items {
            let mapped = self.deeper(|this| this.filter_by_name(&filter, item.clone(), &rest))?;
            list.push(mapped)?;
        }
        Ok(list.finish())
    }

    /// The items that meet a test, or do not, or whose attribute does.
    fn choose(&mut self, name: &str, value: &Value<'a>, values: &Values<'a>) -> Result<Value<'a>> {
        let items = self.iterate(value)?;
        let mut values = values.clone();
        let attribute = if name.ends_with("attr") {
            if values.positional.is_empty() {
                return fail!("'{name}' takes the name of an attribute");
            }
            Some(values.positional.remove(0))
        } else {
            None
        };
        let test = if values.positional.is_empty() { None } else { Some(called(&values)?) };
        let mut list = self.list()?;
        for item in &items.items {
            let subject = match &attribute {
                Some(attribute) => self.path(item, attribute)?,
                None => item.clone(),
            };
            let holds = match &test {
                Some((test, rest)) => self.deeper(|this| this.test(test, &subject, rest))?,
                None => subject.is_true(),
            };
            if holds == name.starts_with("select") {
                list.push(item.clone())?;
            }
        }
        Ok(list.finish())
    }

    /// `batch(size)`, lists of `size` items, or `slice(count)`, `count` lists.
    fn parts(&self, name: &str, value: &Value<'a>, values: &Values<'a>) -> Result<Value<'a>> {
        let [size, fill] = values.take(name, ["size", "fill_with"])?;
        let size = size.count_or(0)?;
        if size == 0 {
            return fail!("'{name}' takes a number from 1 on");
        }
        let items = self.iterate(value)?;
        let items = &items.items;
        let fill = fill.given();
        let mut parts = self.list()?;
        if name == "batch" {
            for chunk in items.chunks(size) {
                let mut part = self.list()?;
                part.extend(chunk)?;
                if let Some(fill) = fill {
                    for _ in chunk.len()..size {
                        part.push(fill.clone())?;
                    }
                }
                parts.push(part.finish())?;
            }
            return Ok(parts.finish());
        }
        let (each, longer) = (items.len() / size, items.len() % size);
        let mut start = 0;
        for index in 0..size {
            let end = start + each + usize::from(index < longer);
            let mut part = self.list()?;
            part.extend(&items[start..end])?;
            if let Some(fill) = fill.filter(|_| index >= longer) {
                part.push(fill.clone())?;
            }
            parts.push(part.finish())?;
            start = end;
        }
        Ok(parts.finish())
    }
}

/// The name of a filter or test that is the first argument, and its own arguments.
fn called<'a>(values: &Values<'a>) -> Result<(String, Values<'a>)> {
    let name = values.positional[0].text_or("")?.to_owned();
    Ok((name, Values { positional: values.positional[1..].to_vec(), named: values.named.clone() }))
}
