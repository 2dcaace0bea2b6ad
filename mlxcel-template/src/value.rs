//! The values of a template: Python's, immutable, and of bounded depth.

use std::cmp::Ordering;
use std::ops::{Deref, Range};
use std::rc::Rc;

use super::error::{Result, fail};
use super::meter::{Charge, DictBuilder, ListBuilder, Meter};
use super::origin::{Origin, Origins};

/// A value. Strings and containers are shared and track their part of the budget.
#[derive(Clone, Debug)]
pub(super) enum Value<'a> {
    Undefined,
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(Text<'a>),
    Seq(Rc<Seq<'a>>),
    Dict(Rc<Dict<'a>>),
    /// The one value that changes; an index into the evaluator's, so that a self-referential value is not a
    /// reference cycle.
    Namespace(usize),
    /// An index into the evaluator's macros.
    Macro(usize),
    /// The variable `loop`, by the loop's index.
    Loop(usize),
    Function(Function),
    /// A method that is named and not called.
    Method,
}

/// The functions that every template can call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Function {
    Range,
    Dict,
    Namespace,
    RaiseException,
    StrftimeNow,
}

/// A text: one of the template or the messages, or one that the rendering made.
#[derive(Clone, Debug)]
pub(super) enum Text<'a> {
    Borrowed(&'a str, Origin),
    Owned(Rc<OwnedText>),
}

#[derive(Debug)]
pub(super) struct OwnedText {
    text: String,
    origins: Origins,
    is_marked: bool,
    #[expect(dead_code, reason = "held until the text is dropped")]
    charge: Charge,
}

impl Text<'_> {
    pub(super) fn owned(text: String, origins: Origins, is_marked: bool, charge: Charge) -> Self {
        Self::Owned(Rc::new(OwnedText { text, origins, is_marked, charge }))
    }

    pub(super) fn is_marked(&self) -> bool {
        matches!(self, Self::Owned(owned) if owned.is_marked)
    }

    /// The pieces of a part of it, each of one origin.
    pub(super) fn pieces(&self, range: Range<usize>) -> impl Iterator<Item = (&str, Origin)> {
        let (whole, parts) = match self {
            Self::Borrowed(_, origin) => (Some((range, *origin)), None),
            Self::Owned(owned) => (None, Some(owned.origins.parts(range))),
        };
        whole.into_iter().chain(parts.into_iter().flatten()).map(|(part, origin)| (&self[part], origin))
    }

    /// Its characters, and where each comes from.
    pub(super) fn characters(&self) -> impl Iterator<Item = (char, Origin)> {
        self.pieces(0..self.len())
            .flat_map(|(piece, origin)| piece.chars().map(move |character| (character, origin)))
    }

    /// The least trusted origin of its parts.
    pub(super) fn origin(&self) -> Origin {
        self.pieces(0..self.len()).map(|(_, origin)| origin).max().unwrap_or(Origin::Template)
    }
}

impl Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        match self {
            Self::Borrowed(text, _) => text,
            Self::Owned(owned) => &owned.text,
        }
    }
}

/// A list or a tuple.
#[derive(Debug)]
pub(super) struct Seq<'a> {
    pub(super) items: Vec<Value<'a>>,
    pub(super) tuple: bool,
    pub(super) depth: u16,
    #[expect(dead_code, reason = "held until the list is dropped")]
    pub(super) charge: Charge,
}

/// A dictionary, in the order in which its keys were first set.
#[derive(Debug)]
pub(super) struct Dict<'a> {
    pub(super) entries: Vec<(Value<'a>, Value<'a>)>,
    pub(super) depth: u16,
    #[expect(dead_code, reason = "held until the dictionary is dropped")]
    pub(super) charge: Charge,
}

impl<'a> Dict<'a> {
    pub(super) fn get(&self, key: &Value<'a>, meter: &Meter) -> Result<Option<Value<'a>>> {
        for (held, value) in &self.entries {
            if held.equals(key, meter)? {
                return Ok(Some(value.clone()));
            }
        }
        Ok(None)
    }

    /// The value of the key that is `name`.
    pub(super) fn get_text(&self, name: &str, meter: &Meter) -> Result<Option<Value<'a>>> {
        for (held, value) in &self.entries {
            meter.work(1)?;
            let Some(held) = held.as_text().filter(|held| held.len() == name.len()) else { continue };
            meter.read(name.len())?;
            if held == name {
                return Ok(Some(value.clone()));
            }
        }
        Ok(None)
    }
}

impl<'a> Value<'a> {
    /// A text of the template.
    pub(super) fn text(text: &'a str) -> Self {
        Self::text_from(text, Origin::Template)
    }

    /// A text that comes from `origin`.
    pub(super) fn text_from(text: &'a str, origin: Origin) -> Self {
        Self::Text(Text::Borrowed(text, origin))
    }

    /// A JSON value, whose texts come from `origin`.
    pub(super) fn from_json(
        json: &'a serde_json::Value,
        origin: Origin,
        meter: &Rc<Meter>,
        depth: u16,
    ) -> Result<Self> {
        use serde_json::Value as Json;
        if depth > super::meter::MOST_NESTED {
            return fail!("messages or variables are nested too deep");
        }
        Ok(match json {
            Json::Null => Self::None,
            Json::Bool(value) => Self::Bool(*value),
            Json::Number(number) => match (number.as_i64(), number.as_u64()) {
                (Some(value), _) => Self::Int(value.into()),
                (_, Some(value)) => Self::Int(value.into()),
                _ => Self::Float(number.as_f64().unwrap_or(f64::NAN)),
            },
            Json::String(text) => Self::text_from(text, origin),
            Json::Array(array) => {
                let mut list = ListBuilder::new(meter)?;
                for item in array {
                    list.push(Self::from_json(item, origin, meter, depth + 1)?)?;
                }
                list.finish()
            }
            Json::Object(object) => {
                let mut dict = DictBuilder::new(meter)?;
                for (key, value) in object {
                    let value = Self::from_json(value, origin, meter, depth + 1)?;
                    dict.push(Self::text_from(key, origin), value)?;
                }
                dict.finish()
            }
        })
    }

    /// How many containers are nested in it.
    pub(super) fn depth(&self) -> u16 {
        match self {
            Self::Seq(seq) => seq.depth,
            Self::Dict(dict) => dict.depth,
            _ => 0,
        }
    }

    pub(super) fn is_undefined(&self) -> bool {
        matches!(self, Self::Undefined)
    }

    /// Python's truth of a value.
    pub(super) fn is_true(&self) -> bool {
        match self {
            Self::Undefined | Self::None => false,
            Self::Bool(value) => *value,
            Self::Int(value) => *value != 0,
            Self::Float(value) => *value != 0.0,
            Self::Text(text) => !text.is_empty(),
            Self::Seq(seq) => !seq.items.is_empty(),
            Self::Dict(dict) => !dict.entries.is_empty(),
            _ => true,
        }
    }

    /// What Python calls its type, for messages.
    pub(super) fn type_name(&self) -> &'static str {
        match self {
            Self::Undefined => "undefined",
            Self::None => "None",
            Self::Bool(_) => "a bool",
            Self::Int(_) => "an int",
            Self::Float(_) => "a float",
            Self::Text(_) => "a string",
            Self::Seq(seq) => ["a list", "a tuple"][usize::from(seq.tuple)],
            Self::Dict(_) => "a dict",
            Self::Namespace(_) => "a namespace",
            Self::Loop(_) => "a loop",
            Self::Macro(_) | Self::Function(_) | Self::Method => "a function",
        }
    }

    /// The number of an int or a bool.
    pub(super) fn as_int(&self) -> Option<i128> {
        match *self {
            Self::Bool(value) => Some(value.into()),
            Self::Int(value) => Some(value),
            _ => None,
        }
    }

    /// The number of an int, a bool or a float.
    pub(super) fn as_float(&self) -> Option<f64> {
        match *self {
            Self::Float(value) => Some(value),
            _ => self.as_int().map(|value| value as f64),
        }
    }

    pub(super) fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Python's `==`.
    pub(super) fn equals(&self, other: &Value<'_>, meter: &Meter) -> Result<bool> {
        meter.work(1)?;
        Ok(match (self, other) {
            (Self::Undefined, Value::Undefined) | (Self::None, Value::None) => true,
            (Self::Text(a), Value::Text(b)) => {
                if a.len() == b.len() {
                    meter.read(a.len())?;
                }
                **a == **b
            }
            (Self::Seq(a), Value::Seq(b)) => {
                if a.tuple != b.tuple || a.items.len() != b.items.len() {
                    return Ok(false);
                }
                for (a, b) in a.items.iter().zip(&b.items) {
                    if !a.equals(b, meter)? {
                        return Ok(false);
                    }
                }
                true
            }
            (Self::Dict(a), Value::Dict(b)) => {
                if a.entries.len() != b.entries.len() {
                    return Ok(false);
                }
                for (key, value) in &a.entries {
                    let mut same = false;
                    for (held, other) in &b.entries {
                        if key.equals(held, meter)? {
                            same = value.equals(other, meter)?;
                            break;
                        }
                    }
                    if !same {
                        return Ok(false);
                    }
                }
                true
            }
            (Self::Namespace(a), Value::Namespace(b)) | (Self::Macro(a), Value::Macro(b)) => a == b,
            (Self::Function(a), Value::Function(b)) => a == b,
            _ => self.order_of_numbers(other).is_some_and(|order| order == Some(Ordering::Equal)),
        })
    }

    /// Python's order of two values, where they have one.
    pub(super) fn order(&self, other: &Value<'_>, meter: &Meter) -> Result<Ordering> {
        meter.work(1)?;
        match (self, other) {
            (Self::Text(a), Value::Text(b)) => {
                meter.read(a.len().min(b.len()))?;
                // The order of UTF-8 is that of code points.
                return Ok((**a).cmp(b));
            }
            (Self::Seq(a), Value::Seq(b)) if a.tuple == b.tuple => {
                for (a, b) in a.items.iter().zip(&b.items) {
                    // Equal items need not have an order.
                    if !a.equals(b, meter)? {
                        return a.order(b, meter);
                    }
                }
                return Ok(a.items.len().cmp(&b.items.len()));
            }
            _ => {}
        }
        match self.order_of_numbers(other) {
            Some(order) => Ok(order.unwrap_or(Ordering::Less)),
            None => {
                let (a, b) = (self.type_name(), other.type_name());
                fail!("{a} and {b} have no order")
            }
        }
    }

    /// The exact order of two numbers, which one that is not a number does not have.
    fn order_of_numbers(&self, other: &Value<'_>) -> Option<Option<Ordering>> {
        let exact = |int: i128, float: f64| {
            // What lies within is an integer of 128 bits, and a fraction.
            if float.abs() < 1.7e38 {
                let order = int.cmp(&(float as i128));
                Some(order.then_with(|| 0f64.total_cmp(&(float.fract() + 0.0))))
            } else {
                0f64.partial_cmp(&float)
            }
        };
        Some(match (self.as_int(), other.as_int()) {
            (Some(a), Some(b)) => Some(a.cmp(&b)),
            (Some(a), None) => exact(a, other.as_float()?),
            (None, Some(b)) => exact(b, self.as_float()?).map(Ordering::reverse),
            (None, None) => self.as_float()?.partial_cmp(&other.as_float()?),
        })
    }
}
