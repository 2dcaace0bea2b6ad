//! Validates JSON schemas before they are compiled.

use std::collections::{HashMap, HashSet};

use mlxcel_core::{Error, ErrorKind, Result};
use serde_json::Value;

/// The most values that a schema may have, and the most bytes of their texts.
const MOST_VALUES: usize = 50_000;
const MOST_BYTES: usize = 1 << 20;
/// How deep its values may lie in one another.
const DEEPEST: usize = 100;
/// How many schemas may have to be merged into one, with all the alternatives of each.
const MOST_MERGED: u64 = 20_000;
/// How deep schemas that are merged, and references to them, may lie in one another.
const DEEPEST_MERGED: usize = 200;
/// How deep the schema and the targets of all its references may lie in one another: where each refers to the
/// next one, the compiler's recursion goes down through all of them.
const DEEPEST_FOLLOWED: usize = 4_000;

/// Refuses a schema that is too large, too deep, or that grows beyond bounds where its parts are merged.
pub(crate) fn check(schema: &Value) -> Result<()> {
    let (mut values, mut bytes) = (0, 0);
    let (mut factors, mut merges) = (Vec::new(), false);
    let mut open = vec![(schema, 1)];
    while let Some((value, depth)) = open.pop() {
        values += 1;
        if depth > DEEPEST {
            return Err(too("nested too deeply", "deepest", DEEPEST));
        }
        match value {
            Value::Array(list) => open.extend(list.iter().map(|value| (value, depth + 1))),
            Value::Object(map) => {
                if map.contains_key("x-guidance") {
                    let reason = "the field x-guidance is not supported";
                    return Err(Error::new(ErrorKind::Unsupported, "compile grammar", reason));
                }
                factors.extend(map.get("multipleOf").and_then(Value::as_f64));
                merges |= MERGING.iter().any(|keyword| map.contains_key(*keyword));
                bytes += map.keys().map(String::len).sum::<usize>();
                open.extend(map.values().map(|value| (value, depth + 1)));
            }
            Value::String(text) => bytes += text.len(),
            _ => {}
        }
        if values > MOST_VALUES {
            return Err(too("too large", "most_values", MOST_VALUES));
        }
        if bytes > MOST_BYTES {
            return Err(too("too large", "most_bytes", MOST_BYTES));
        }
    }
    if !can_count(&factors, merges) {
        let reason = "the JSON schema's `multipleOf` together are too large, or have too many digits";
        return Err(super::too_complex(reason));
    }
    if References::of(schema).depth(schema) > DEEPEST_FOLLOWED {
        return Err(too("nested too deeply through its references", "deepest_followed", DEEPEST_FOLLOWED));
    }
    let mut cost = Cost { root: schema, known: HashMap::new() };
    if cost.anywhere(schema) > MOST_MERGED {
        let limit = usize::try_from(MOST_MERGED).unwrap_or(usize::MAX);
        return Err(too("merged from too many parts by allOf, anyOf, oneOf and $ref", "most_merged", limit));
    }
    Ok(())
}

/// Whether the compiler can count with factors of `multipleOf`, in units of their last decimal place: it has
/// 32 bits and appends digits to remainders. Where it `merges` schemas it multiplies factors, and what others
/// were multiplied to.
fn can_count(factors: &[f64], merges: bool) -> bool {
    // A factor has the shortest decimal number that is read as it.
    let texts: Vec<String> = factors.iter().map(|factor| factor.abs().to_string()).collect();
    let decimals = |text: &String| text.split_once('.').map_or(0, |(_, decimals)| decimals.len());
    let most = texts.iter().map(decimals).max().unwrap_or_default();
    // A remainder, with another digit at the first place.
    let next = |factor: u32, places: usize| {
        let digit = 10_u32.checked_pow(u32::try_from(places).ok()?)?.checked_mul(9)?;
        factor.checked_mul(10)?.checked_add(digit)
    };
    let mut multiple = 1_u32;
    for text in &texts {
        // Those that are merged have the same unit.
        let places = if merges { most } else { decimals(text) };
        let zeros = "0".repeat(places - decimals(text));
        let factor = format!("{}{zeros}", text.replace('.', "")).parse::<u32>().ok();
        let Some(factor) = factor.filter(|&factor| next(factor, places).is_some()) else { return false };
        // Nothing but zero is a multiple of zero.
        if !merges || factor == 0 || factor == multiple {
            continue;
        }
        let product = multiple.checked_mul(factor / greatest_common_divisor(multiple, factor));
        match product {
            Some(product) if multiple == 1 || product <= u32::from(u16::MAX) => multiple = product,
            _ => return false,
        }
    }
    true
}

fn greatest_common_divisor(mut one: u32, mut other: u32) -> u32 {
    while other > 0 {
        (one, other) = (other, one % other);
    }
    one
}

/// Keywords that merge schemas.
const MERGING: [&str; 6] = ["allOf", "anyOf", "oneOf", "$ref", "$dynamicRef", "if"];

fn too(how: &str, limit: &'static str, most: usize) -> Error {
    super::too_complex(format!("the JSON schema is {how}")).with_context(limit, most)
}

/// What a schema refers to.
#[derive(Default)]
struct References<'s> {
    targets: HashSet<&'s str>,
    /// Names of parts of the schema: a reference may lead to another target in each of them.
    ids: HashSet<&'s str>,
    /// How deep each value is.
    depths: HashMap<*const Value, usize>,
}

impl<'s> References<'s> {
    fn of(schema: &'s Value) -> Self {
        let is_draft_4 = schema["$schema"].as_str().is_some_and(|draft| draft.contains("draft-04"));
        let mut this = Self::default();
        this.add(schema, if is_draft_4 { "id" } else { "$id" });
        // The name of the whole schema does not change where references lead.
        if let Some(id) = schema["$id"].as_str().or(schema["id"].as_str()) {
            this.ids.remove(id);
        }
        this
    }

    /// Adds `value` and returns its depth. It recurses as deep as values may lie in one another.
    fn add(&mut self, value: &'s Value, id: &str) -> usize {
        let below = match value {
            Value::Array(list) => list.iter().map(|value| self.add(value, id)).max(),
            Value::Object(map) => {
                let text = |field| map.get(field).and_then(Value::as_str);
                self.targets.extend(["$ref", "$dynamicRef"].into_iter().filter_map(text));
                self.ids.extend(text(id));
                map.values().map(|value| self.add(value, id)).max()
            }
            _ => None,
        };
        let depth = 1 + below.unwrap_or_default();
        self.depths.insert(std::ptr::from_ref(value), depth);
        depth
    }

    /// How far a recursion into `root` goes down at most, if it follows each reference once.
    fn depth(&self, root: &Value) -> usize {
        let depth_of = |value: &Value| self.depths.get(&std::ptr::from_ref(value)).copied();
        let whole = depth_of(root).unwrap_or(DEEPEST);
        let depth_at = |target: &&str| {
            let pointer = target.strip_prefix('#').filter(|_| self.ids.is_empty());
            let value = pointer.and_then(|pointer| root.pointer(pointer));
            1 + value.and_then(depth_of).unwrap_or(whole)
        };
        let targets: usize = self.targets.iter().map(depth_at).sum();
        whole.saturating_add(targets.saturating_mul(1 + self.ids.len()))
    }
}

/// What merging a schema with others takes.
#[derive(Clone, Copy)]
struct Merge {
    /// How many schemas become of it.
    schemas: u64,
    /// How deep merged schemas and references lie in one another.
    depth: usize,
}

impl Merge {
    /// That of a schema with nothing to merge.
    const NONE: Self = Self { schemas: 1, depth: 0 };
    /// That of a schema that is refused, whatever it is a part of.
    const ENDLESS: Self = Self { schemas: u64::MAX, depth: DEEPEST_MERGED };
}

/// Estimates how many schemas become of one where `allOf`, and references beside other fields, are merged.
///
/// Its recursion is bounded: a chain of references is as long as a schema has definitions.
struct Cost<'s> {
    root: &'s Value,
    /// The cost of the targets of references; none while it is being found.
    known: HashMap<&'s str, Option<Merge>>,
}

impl<'s> Cost<'s> {
    /// The largest cost among `schema` and all that lies in it.
    fn anywhere(&mut self, schema: &'s Value) -> u64 {
        let mut most = 0;
        let mut open = vec![schema];
        while let Some(value) = open.pop() {
            most = most.max(self.of(value, 0).schemas);
            match value {
                Value::Array(list) => open.extend(list),
                Value::Object(map) => open.extend(map.values()),
                _ => {}
            }
        }
        most
    }

    /// That of `schema` where it is merged with others, `depth` levels below where that began.
    fn of(&mut self, schema: &'s Value, depth: usize) -> Merge {
        let Some(map) = schema.as_object() else { return Merge::NONE };
        if depth >= DEEPEST_MERGED {
            return Merge::ENDLESS;
        }
        let mut all = Merge::NONE;
        for (field, value) in map {
            let parts: Vec<Merge> = match (field.as_str(), value) {
                ("allOf" | "anyOf" | "oneOf", Value::Array(list)) => {
                    list.iter().map(|part| self.of(part, depth + 1)).collect()
                }
                ("$ref" | "$dynamicRef", Value::String(target)) => vec![self.of_target(target, depth + 1)],
                _ => continue,
            };
            let schemas = parts.iter().map(|part| part.schemas);
            let factor = match field.as_str() {
                "allOf" => schemas.fold(1, u64::saturating_mul).saturating_add(parts.len() as u64),
                _ => schemas.fold(0, u64::saturating_add),
            };
            all.schemas = all.schemas.saturating_mul(factor.max(1));
            all.depth = parts.iter().map(|part| part.depth + 1).fold(all.depth, usize::max);
        }
        // Targets that are known already are not followed again, but their depth counts all the same.
        if all.depth >= DEEPEST_MERGED { Merge::ENDLESS } else { all }
    }

    fn of_target(&mut self, target: &'s str, depth: usize) -> Merge {
        if let Some(known) = self.known.get(target) {
            // One within itself is not merged without end: that is refused, or a definition.
            return known.unwrap_or(Merge::NONE);
        }
        let Some(schema) = target.strip_prefix('#').and_then(|pointer| self.root.pointer(pointer)) else {
            return Merge::NONE;
        };
        self.known.insert(target, None);
        let mut cost = self.of(schema, depth);
        cost.schemas = cost.schemas.saturating_add(1);
        self.known.insert(target, Some(cost));
        cost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_that_overflow_the_compilers_numbers_are_rejected() {
        for (factors, merges, can) in [
            (&[][..], true, true),
            (&[0.01, 5.0, 25.0, 60.0], true, true),
            (&[1e6, 1e6], true, true),
            (&[999_983.0, 999_979.0], false, true),
            (&[999_983.0, 999_979.0], true, false),
            (&[4e8], false, true),
            (&[5e8], false, false),
            (&[1e300], false, false),
            (&[1e-20], false, false),
            (&[0.0, 3.0], true, true),
        ] {
            assert_eq!(can_count(factors, merges), can, "{factors:?} {merges}");
        }
    }
}
