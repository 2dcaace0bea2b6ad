//! Tokenizer files with a value replaced by an odd one.

use super::*;

/// What values are replaced by.
fn oddities() -> Vec<Value> {
    let steps = [
        "NFC", "NFKD", "StripAccents", "Lowercase", "Nmt", "Whitespace", "WhitespaceSplit",
        "BertPreTokenizer", "UnicodeScripts", "Fuse", "ByteFallback",
    ];
    let odd = json!([
        null, 0, 1, -1, u64::MAX, 1e300, true, "", "a", "é", "▁", "\u{0}", "x".repeat(300), [], {}, ["a", "b"],
        {"String": "a"}, {"Regex": "a|"}, {"Regex": "(?=.)"},
        "Removed", "Isolated", "MergedWithNext", [0, 1, 2], "BPE", "Unigram", "WordPiece",
        {"type": "Replace", "pattern": {"Regex": ".?"}, "content": "ab"},
        {"type": "Split", "pattern": {"Regex": "h|"}, "behavior": "MergedWithPrevious", "invert": true},
        {"type": "Prepend", "prepend": "h"},
        {"type": "FixedLength", "length": 2},
        {"type": "CharDelimiterSplit", "delimiter": " "},
        {"type": "Punctuation", "behavior": "Contiguous"},
        {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        {"type": "Strip", "strip_left": true, "strip_right": true},
        {"type": "Strip", "content": "h", "start": 3, "stop": 3},
    ]);
    let steps = steps.map(|name| json!({"type": name}));
    odd.as_array().unwrap().iter().cloned().chain(steps).collect()
}

/// Goes to the `place`-th value of `json`, by a walk through all.
fn nth<'v>(json: &'v mut Value, place: &mut usize) -> Option<&'v mut Value> {
    if *place == 0 {
        return Some(json);
    }
    *place -= 1;
    match json {
        Value::Array(items) => items.iter_mut().find_map(|item| nth(item, place)),
        Value::Object(fields) => fields.values_mut().find_map(|value| nth(value, place)),
        _ => None,
    }
}

fn count(json: &Value) -> usize {
    1 + match json {
        Value::Array(items) => items.iter().map(count).sum(),
        Value::Object(fields) => fields.values().map(count).sum(),
        _ => 0,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Tokenizers with parts replaced: they are refused, or encode and decode without a panic.
    #[test]
    fn mutated_tokenizers_give_a_result_or_an_error(
        base in 1..5usize,
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<bool>()), 1..4),
    ) {
        let mut json = all()[base].clone();
        let odd = oddities();
        for (place, piece, in_steps) in damage {
            // Half of the damage goes to the steps: vocabularies have most of the values.
            let section = ["normalizer", "pre_tokenizer", "decoder", "post_processor", "added_tokens"][place.index(5)];
            let target = if in_steps && json.is_object() { &mut json[section] } else { &mut json };
            let mut place = place.index(count(target));
            if let Some(value) = nth(target, &mut place) {
                *value = odd[piece.index(odd.len())].clone();
            }
        }
        ends(&json);
    }
}
