//! Budgets of a rendering: work, memory and depth, and the only ways to make a text or a list.

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;

use super::error::{Result, fail};
use super::origin::{Origin, Origins};
use super::value::{Dict, Seq, Text, Value};

/// How much a rendering may do: about half a second on one core, and far above any template that is in use.
const WORK: u64 = 10_000_000;

/// How many bytes of values a rendering may hold at a time, beside four times the size of what it was given.
const MEMORY: usize = 64 << 20;

/// How many lists and dictionaries may be nested in one another.
pub(super) const MOST_NESTED: u16 = 130;

/// What a value costs in a list: itself, and its part of the list's spare room.
const SLOT: usize = 2 * size_of::<Value<'static>>();

/// What one rendering may still do and hold.
#[derive(Debug)]
pub(super) struct Meter {
    work: Cell<u64>,
    memory: Cell<usize>,
}

impl Meter {
    /// The budgets of a rendering with `input` bytes of input.
    pub(super) fn new(input: usize) -> Rc<Self> {
        let memory = MEMORY.saturating_add(input.saturating_mul(4));
        let work = WORK.saturating_add(input as u64);
        Rc::new(Self { work: Cell::new(work), memory: Cell::new(memory) })
    }

    /// Accounts for `steps` of work: one is about what it takes to look up a name.
    pub(super) fn work(&self, steps: usize) -> Result<()> {
        match self.work.get().checked_sub(steps as u64) {
            Some(left) => {
                self.work.set(left);
                Ok(())
            }
            None => {
                self.work.set(0);
                fail!("the template takes too many steps")
            }
        }
    }

    /// Accounts for going through `length` bytes.
    pub(super) fn read(&self, length: usize) -> Result<()> {
        self.work(1 + length / 16)
    }

    fn take(&self, bytes: usize) -> Result<()> {
        match self.memory.get().checked_sub(bytes) {
            Some(left) => {
                self.memory.set(left);
                Ok(())
            }
            None => fail!("the template takes too much memory"),
        }
    }
}

/// Memory that a value holds; it goes back to the budget when the value is dropped.
#[derive(Debug)]
pub(super) struct Charge {
    meter: Rc<Meter>,
    bytes: usize,
}

impl Charge {
    pub(super) fn new(meter: &Rc<Meter>, bytes: usize) -> Result<Self> {
        meter.take(bytes)?;
        Ok(Self { meter: Rc::clone(meter), bytes })
    }

    /// Accounts for `bytes` more, and for the work of writing them.
    pub(super) fn grow(&mut self, bytes: usize) -> Result<()> {
        self.meter.take(bytes)?;
        self.bytes += bytes;
        self.meter.read(bytes)
    }

    pub(super) fn meter(&self) -> &Meter {
        &self.meter
    }

    /// Gives `bytes` back.
    pub(super) fn shrink(&mut self, bytes: usize) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        self.meter.memory.set(self.meter.memory.get() + bytes);
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.meter.memory.set(self.meter.memory.get() + self.bytes);
    }
}

/// A text in the making: each piece is accounted for before it is written, and says where it comes from.
pub(super) struct TextBuilder {
    text: String,
    origins: Origins,
    charge: Charge,
}

impl TextBuilder {
    pub(super) fn new(meter: &Rc<Meter>) -> Result<Self> {
        Ok(Self {
            text: String::new(),
            origins: Origins::default(),
            charge: Charge::new(meter, size_of::<String>() + size_of::<Charge>())?,
        })
    }

    /// Writes what is written here in the source.
    pub(super) fn push(&mut self, text: &'static str) -> Result<()> {
        self.push_as(text, Origin::Template)
    }

    /// Writes `text`, which comes from `origin`.
    pub(super) fn push_as(&mut self, text: &str, origin: Origin) -> Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        let part = if self.origins.begins_part(origin) { size_of::<(usize, Origin)>() } else { 0 };
        // A growing string, or list, has up to as much room again.
        self.charge.grow(2 * (text.len() + part))?;
        self.text.push_str(text);
        self.origins.push(self.text.len(), origin);
        Ok(())
    }

    /// Writes a character that comes from `origin`.
    pub(super) fn push_char(&mut self, character: char, origin: Origin) -> Result<()> {
        self.push_as(character.encode_utf8(&mut [0; 4]), origin)
    }

    /// Writes a text, whose parts keep their origins.
    pub(super) fn push_text(&mut self, text: &Text<'_>) -> Result<()> {
        self.push_part(text, 0..text.len())
    }

    /// Writes a part of a text.
    pub(super) fn push_part(&mut self, text: &Text<'_>, range: Range<usize>) -> Result<()> {
        text.pieces(range).try_for_each(|(piece, origin)| self.push_as(piece, origin))
    }

    /// Writes `text` `count` times.
    pub(super) fn repeat(&mut self, text: &Text<'_>, count: usize) -> Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        // What does not fit is refused before any of it is written.
        let bytes = text.len().saturating_mul(count).saturating_mul(2);
        drop(Charge::new(&self.charge.meter, bytes)?);
        (0..count).try_for_each(|_| self.push_text(text))
    }

    pub(super) fn finish<'a>(self) -> Value<'a> {
        Value::Text(self.into_text())
    }

    /// The text, marked as safe.
    pub(super) fn finish_marked<'a>(self) -> Value<'a> {
        Value::Text(Text::owned(self.text, self.origins, true, self.charge))
    }

    pub(super) fn into_text<'a>(self) -> Text<'a> {
        Text::owned(self.text, self.origins, false, self.charge)
    }

    pub(super) fn into_parts(self) -> (String, Origins) {
        (self.text, self.origins)
    }
}

/// A list in the making.
pub(super) struct ListBuilder<'a> {
    items: Vec<Value<'a>>,
    charge: Charge,
    depth: u16,
}

impl<'a> ListBuilder<'a> {
    pub(super) fn new(meter: &Rc<Meter>) -> Result<Self> {
        Ok(Self { items: Vec::new(), charge: Charge::new(meter, size_of::<Seq<'a>>())?, depth: 0 })
    }

    pub(super) fn push(&mut self, value: Value<'a>) -> Result<()> {
        self.charge.grow(SLOT)?;
        self.depth = deeper(self.depth, &value)?;
        self.items.push(value);
        Ok(())
    }

    pub(super) fn extend(&mut self, values: &[Value<'a>]) -> Result<()> {
        values.iter().try_for_each(|value| self.push(value.clone()))
    }

    pub(super) fn items(&mut self) -> &mut Vec<Value<'a>> {
        &mut self.items
    }

    pub(super) fn finish(self) -> Value<'a> {
        self.into_seq(false)
    }

    pub(super) fn into_seq(self, tuple: bool) -> Value<'a> {
        Value::Seq(Rc::new(Seq { items: self.items, tuple, depth: self.depth + 1, charge: self.charge }))
    }
}

/// A dictionary in the making.
pub(super) struct DictBuilder<'a> {
    entries: Vec<(Value<'a>, Value<'a>)>,
    charge: Charge,
    depth: u16,
}

impl<'a> DictBuilder<'a> {
    pub(super) fn new(meter: &Rc<Meter>) -> Result<Self> {
        Ok(Self { entries: Vec::new(), charge: Charge::new(meter, size_of::<Dict<'a>>())?, depth: 0 })
    }

    /// Adds an entry whose key is not there yet.
    pub(super) fn push(&mut self, key: Value<'a>, value: Value<'a>) -> Result<()> {
        self.charge.grow(2 * SLOT)?;
        self.depth = deeper(deeper(self.depth, &value)?, &key)?;
        self.entries.push((key, value));
        Ok(())
    }

    pub(super) fn set(&mut self, key: Value<'a>, value: Value<'a>) -> Result<()> {
        self.charge.meter.work(1 + self.entries.len() / 4)?;
        self.depth = deeper(self.depth, &value)?;
        for (held, old) in &mut self.entries {
            if held.equals(&key, &self.charge.meter)? {
                *old = value;
                return Ok(());
            }
        }
        self.push(key, value)
    }

    pub(super) fn finish(self) -> Value<'a> {
        Value::Dict(Rc::new(Dict { entries: self.entries, depth: self.depth + 1, charge: self.charge }))
    }
}

/// The depth of a container of depth `depth` after adding `value`.
fn deeper(depth: u16, value: &Value<'_>) -> Result<u16> {
    let depth = depth.max(value.depth());
    if depth >= MOST_NESTED {
        return fail!("lists and dictionaries are nested too deep");
    }
    Ok(depth)
}
