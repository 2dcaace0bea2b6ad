//! Changes of JSON values.

use fastrand::Rng;
use serde_json::{Map, Number, Value, json};

use super::{bytes, choose, interesting, rounds};

/// Changes values of the JSON text `base`; text that is not JSON is changed by bytes.
pub(super) fn mutate(base: &[u8], other: &[u8], rng: &mut Rng) -> Vec<u8> {
    let Ok(mut value) = serde_json::from_slice::<Value>(base) else { return bytes::mutate(base, other, rng) };
    let other = serde_json::from_slice(other).unwrap_or(Value::Null);
    change(&mut value, &other, rng);
    let mut text = value.to_string();
    if rng.u8(..32) == 0 {
        // A field twice, which no value can hold.
        if let Some(fields) = text.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')) {
            text = format!("{{{fields},{fields}}}");
        }
    }
    text.into_bytes()
}

pub(super) fn change(value: &mut Value, other: &Value, rng: &mut Rng) {
    for _ in 0..rounds(rng) {
        change_one(value, other, rng);
    }
}

fn change_one(root: &mut Value, other: &Value, rng: &mut Rng) {
    // A walk from the root reaches the few fields at the top as often as the many of a long list.
    let reached = if rng.bool() { walk(root, rng) } else { nth(root, rng) };
    match (rng.u8(..12), reached) {
        (0..=2, value) => *value = odd(rng),
        (3 | 4, value) => *value = part(other, rng).clone(),
        (5, Value::Object(fields)) => {
            if let Some(key) = key(fields, rng) {
                fields.remove(&key);
            }
        }
        (6, Value::Object(fields)) => {
            if let Some(key) = key(fields, rng) {
                let value = fields.remove(&key).unwrap_or_default();
                let new = match part(other, rng) {
                    Value::Object(others) if !others.is_empty() => self::key(others, rng).unwrap_or(key),
                    _ => format!("{key}{key}"),
                };
                fields.insert(new, value);
            }
        }
        (7, Value::Object(fields)) => {
            if let Value::Object(others) = part(other, rng)
                && let Some(key) = key(others, rng)
            {
                fields.insert(key.clone(), others.get(&key).cloned().unwrap_or_default());
            }
        }
        (5 | 6, Value::Array(items)) if !items.is_empty() => drop(items.remove(rng.usize(..items.len()))),
        (7 | 8, Value::Array(items)) if !items.is_empty() => {
            let item = items[rng.usize(..items.len())].clone();
            let times = 1 << rng.u8(..6);
            items.extend(std::iter::repeat_n(item, times));
        }
        (9, Value::Array(items)) => rng.shuffle(items),
        (5..=9, Value::Number(number)) => *number = other_number(number, rng),
        (5..=9, Value::String(text)) => *text = other_text(text, rng),
        (5..=9, Value::Bool(truth)) => *truth = !*truth,
        (10, value) => {
            let times = 1 << rng.u8(..8).min(rng.u8(..8));
            let name = choose(&["a", "type", "normalizers", "decoders", "text_config"], rng);
            for _ in 0..times {
                let inner = value.take();
                *value = match name {
                    Some(name) if rng.bool() => json!({ (*name): inner }),
                    _ => json!([inner]),
                };
            }
        }
        (_, value) => *value = odd(rng),
    }
}

/// A value on a random path from `value` down.
fn walk<'v>(value: &'v mut Value, rng: &mut Rng) -> &'v mut Value {
    let length = length(value);
    if length == 0 || rng.u8(..4) == 0 {
        return value;
    }
    walk(child_mut(value, rng.usize(..length)), rng)
}

/// Any value within `value`, each as likely as any other.
fn nth<'v>(value: &'v mut Value, rng: &mut Rng) -> &'v mut Value {
    let mut place = rng.usize(..count(value));
    let mut at = value;
    while place > 0 {
        place -= 1;
        let mut child = 0;
        while place >= count(child_of(at, child)) {
            place -= count(child_of(at, child));
            child += 1;
        }
        at = child_mut(at, child);
    }
    at
}

fn child_mut(value: &mut Value, place: usize) -> &mut Value {
    let child = match value {
        Value::Array(items) => items.get_mut(place),
        Value::Object(fields) => fields.values_mut().nth(place),
        _ => None,
    };
    // The place is within the length.
    child.unwrap_or_else(|| unreachable!())
}

fn child_of(value: &Value, place: usize) -> &Value {
    const NULL: &Value = &Value::Null;
    match value {
        Value::Array(items) => items.get(place).unwrap_or(NULL),
        Value::Object(fields) => fields.values().nth(place).unwrap_or(NULL),
        _ => NULL,
    }
}

fn length(value: &Value) -> usize {
    match value {
        Value::Array(items) => items.len(),
        Value::Object(fields) => fields.len(),
        _ => 0,
    }
}

fn count(value: &Value) -> usize {
    1 + (0..length(value)).map(|place| count(child_of(value, place))).sum::<usize>()
}

/// A value within `value`.
fn part<'v>(value: &'v Value, rng: &mut Rng) -> &'v Value {
    let length = length(value);
    if length == 0 || rng.u8(..4) == 0 { value } else { part(child_of(value, rng.usize(..length)), rng) }
}

fn key(fields: &Map<String, Value>, rng: &mut Rng) -> Option<String> {
    fields.keys().nth(rng.usize(..fields.len().max(1))).cloned()
}

fn other_number(number: &Number, rng: &mut Rng) -> Number {
    let whole = number.as_i64();
    let changed = match (rng.u8(..6), whole) {
        (0, Some(whole)) => whole.checked_add(rng.i64(-2..=2)).map(Number::from),
        (1, Some(whole)) => whole.checked_mul(1 << rng.u8(..8)).map(Number::from),
        (2, Some(whole)) => Some(Number::from(whole >> rng.u8(..4))),
        (3, _) => Number::from_f64(number.as_f64().unwrap_or_default() * 1.5),
        _ => None,
    };
    changed.unwrap_or_else(|| whole_number(rng))
}

fn whole_number(rng: &mut Rng) -> Number {
    let number = interesting(rng);
    let whole = i64::try_from(number).map(Number::from).or_else(|_| u64::try_from(number).map(Number::from));
    whole.ok().or_else(|| Number::from_f64(number as f64)).unwrap_or_else(|| 0.into())
}

fn other_text(text: &str, rng: &mut Rng) -> String {
    let chars: Vec<char> = text.chars().collect();
    let cut: String = chars.iter().take(rng.usize(..=chars.len())).collect();
    match rng.u8(..5) {
        0 => cut,
        1 => text.repeat(1 << rng.u8(..8)),
        2 => format!("{cut}{}", choose(&TEXTS, rng).copied().unwrap_or_default()),
        3 => text.to_uppercase(),
        _ => choose(&TEXTS, rng).copied().unwrap_or_default().to_owned(),
    }
}

/// Texts that something may trip over.
const TEXTS: [&str; 24] = [
    "", " ", "a", "é", "▁", "\u{0}", "\u{1b}[2J", "\u{fdfa}", "😀", "\u{301}", "..", "../../etc/passwd",
    "/dev/zero", "C:\\x", "-1", "NaN", "BPE", "Unigram", "float32", "linear", "llama", "(?=.)|a*", "{{ 1 }}",
    "<s>",
];

/// A value that few expect.
fn odd(rng: &mut Rng) -> Value {
    match rng.u8(..12) {
        0 => Value::Null,
        1 => json!(rng.bool()),
        2..=4 => Value::Number(whole_number(rng)),
        5 => {
            choose(&[0.0, -0.0, 0.5, 1e-300, 1e300, -1.5, 1e38, 4e38], rng).map_or(Value::Null, |x| json!(x))
        }
        6 => json!([]),
        7 => json!({}),
        8 => json!([whole_number(rng), whole_number(rng)]),
        9 => json!("x".repeat(1 << rng.u8(..14))),
        _ => json!(choose(&TEXTS, rng)),
    }
}
