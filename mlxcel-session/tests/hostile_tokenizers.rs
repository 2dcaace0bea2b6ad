//! Tokenizer files that are meant to do harm: each is refused, or works, without a panic, in bounded time and
//! memory.

mod oddities;

use std::cell::Cell;
use std::sync::Once;
use std::time::Duration;

use crate::support::{Scripted, added_token, cpu_time, tokenizer_file, tokenizer_of, vocabulary};
use mlxcel_session::{ErrorKind, Model, Options, Tokenizer};
use proptest::prelude::*;
use serde_json::{Value, json};

thread_local! {
    /// How many panics there were on this thread, whether they were caught or not.
    static PANICS: Cell<usize> = const { Cell::new(0) };
}

/// Counts panics from here on.
fn count_panics() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            PANICS.set(PANICS.get() + 1);
            usual(panic);
        }));
    });
}

fn open(json: &Value) -> mlxcel_session::Result<Tokenizer> {
    count_panics();
    tokenizer_of(&[("tokenizer.json", &json.to_string())])
}

/// Each is refused when it is opened, with a word of why.
fn refused(json: &Value, why: &str) {
    let error = open(json).err().unwrap_or_else(|| panic!("not refused: {why}"));
    let text = format!("{error}: {}", std::error::Error::source(&error).unwrap());
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(text.contains(why), "{text}");
    assert!(text.len() < 20_000 && !text.contains(char::is_control), "{text:?}");
    assert_eq!(PANICS.get(), 0);
}

/// It opens, and ends on texts and tokens of many kinds.
fn ends(json: &Value) {
    let start = cpu_time();
    if let Ok(tokenizer) = open(json) {
        for text in TEXTS {
            if let Ok(tokens) = tokenizer.encode(text, true) {
                let _ = tokenizer.decode(&tokens, false);
            }
        }
        let _ = tokenizer.encode(&"ab ".repeat(3000), false);
        for tokens in [&[][..], &[0], &[0, 1, 2, 3, 4, 5], &[u32::MAX], &[255, 256, 257]] {
            let _ = tokenizer.decode(tokens, false);
            let _ = tokenizer.decode(tokens, true);
        }
        assert_eq!(PANICS.get(), 0);
    }
    assert!(cpu_time() - start < Duration::from_secs(10), "{:?}", cpu_time() - start);
}

/// A tokenizer whose model is `model`.
fn of_model(model: &Value) -> Value {
    json!({"version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [added_token(0, "<unk>", true), added_token(1, "<s>", true)],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        "pre_tokenizer": null,
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": model})
}

fn bpe() -> Value {
    let words =
        ["<unk>", "<s>", "▁", "h", "e", "l", "o", "he", "ll", "hell", "hello", "▁hello", "a", "b", "ab"];
    of_model(&json!({"type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null,
        "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "ignore_merges": false, "vocab": vocabulary(words),
        "merges": ["h e", "l l", "he ll", "hell o", "▁ hello", "a b"]}))
}

fn unigram() -> Value {
    let mut json = of_model(&json!({"type": "Unigram", "unk_id": 0, "byte_fallback": false, "vocab": [
        ["<unk>", 0.0], ["<s>", 0.0], ["▁", -2.0], ["▁hello", -3.0], ["hell", -4.0], ["o", -4.5], ["a", -5.0], ["b", -5.0]]}));
    json["normalizer"] = json!({"type": "Sequence", "normalizers": [
        {"type": "NFKC"}, {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}]});
    json["pre_tokenizer"] =
        json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true});
    json["decoder"] =
        json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true});
    json
}

fn word_piece() -> Value {
    let mut json =
        of_model(&json!({"type": "WordPiece", "unk_token": "<unk>", "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100,
        "vocab": {"<unk>": 0, "<s>": 1, "hello": 2, "wor": 3, "##ld": 4, "a": 5, ",": 6, "##b": 7}}));
    json["normalizer"] = json!({"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
        "strip_accents": null, "lowercase": true});
    json["pre_tokenizer"] = json!({"type": "BertPreTokenizer"});
    json["post_processor"] = json!({"type": "BertProcessing", "sep": ["<unk>", 0], "cls": ["<s>", 1]});
    json["decoder"] = json!({"type": "WordPiece", "prefix": "##", "cleanup": true});
    json
}

fn word_level() -> Value {
    let mut json = of_model(&json!({"type": "WordLevel", "unk_token": "<unk>",
        "vocab": {"<unk>": 0, "<s>": 1, "hello": 2, "world": 3}}));
    json["normalizer"] = Value::Null;
    json["pre_tokenizer"] = json!({"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"},
        {"type": "Split", "pattern": {"Regex": ","}, "behavior": "Isolated", "invert": false},
        {"type": "Digits", "individual_digits": true}, {"type": "Punctuation", "behavior": "Isolated"}]});
    json["decoder"] = Value::Null;
    json
}

fn all() -> [Value; 5] {
    [tokenizer_file(), bpe(), unigram(), word_piece(), word_level()]
}

const TEXTS: [&str; 12] = [
    "hello world, hello",
    "  two  spaces ",
    "   \n\n\t ",
    "<s> special<unk>",
    "<unk>a <s> b</s>",
    "<0x41>",
    "é你😀\u{301}ﬁ\u{fdfa}",
    "",
    "a",
    "ab1 2,c\n\n",
    "Hello",
    "▁hello▁",
];

#[test]
fn encoding_and_decoding_match_the_tokenizers_crate() {
    for (index, json) in all().iter().enumerate() {
        let ours = open(json).unwrap();
        let theirs = tokenizers::Tokenizer::from_bytes(serde_json::to_vec(json).unwrap()).unwrap();
        for text in TEXTS {
            for special in [false, true] {
                let expected = theirs.encode_fast(text, special).unwrap();
                assert_eq!(ours.encode(text, special).unwrap(), expected.get_ids(), "{index} {text:?}");
                for skip in [false, true] {
                    let expected = theirs.decode(expected.get_ids(), skip).unwrap();
                    assert_eq!(
                        ours.decode(&ours.encode(text, special).unwrap(), skip).unwrap(),
                        expected,
                        "{index} {text:?}"
                    );
                }
            }
        }
        assert_eq!(ours.vocabulary_size(), theirs.get_vocab_size(true));
    }
}

#[test]
fn a_tokenizer_model_without_type_is_recognized() {
    for json in &mut all() {
        let expected = open(json).unwrap().encode("hello world", true).unwrap();
        json["model"].as_object_mut().unwrap().remove("type");
        assert_eq!(open(json).unwrap().encode("hello world", true).unwrap(), expected);
    }
}

/// `json` with one section replaced.
fn with(mut json: Value, section: &str, value: Value) -> Value {
    json[section] = value;
    json
}

fn with_model(mut json: Value, field: &str, value: Value) -> Value {
    json["model"][field] = value;
    json
}

#[test]
fn empty_patterns_are_rejected_and_patterns_without_match_are_harmless() {
    let replace = |pattern: Value| json!({"type": "Replace", "pattern": pattern, "content": "x"});
    refused(&with(bpe(), "normalizer", replace(json!({"String": ""}))), "a pattern is empty");
    refused(&with(bpe(), "decoder", replace(json!({"String": ""}))), "a pattern is empty");
    for expression in ["", "x*", "\\b", "(?=a)", "^", "$", "a*?", "(?<=l)"] {
        let json = with(bpe(), "normalizer", replace(json!({"Regex": expression})));
        ends(&json);
        assert!(open(&json).is_ok());
        ends(&with(bpe(), "decoder", replace(json!({"Regex": expression}))));
        let split = |invert: bool, behavior: &str| json!({"type": "Split", "pattern": {"Regex": expression}, "behavior": behavior, "invert": invert});
        for behavior in ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"] {
            ends(&with(bpe(), "pre_tokenizer", split(false, behavior)));
            ends(&with(bpe(), "pre_tokenizer", split(true, behavior)));
        }
    }
    let split = json!({"type": "Split", "pattern": {"String": ""}, "behavior": "Isolated", "invert": false});
    refused(&with(bpe(), "pre_tokenizer", split), "a pattern is empty");
    refused(&with(bpe(), "normalizer", replace(json!({"Regex": "(".repeat(10_000)}))), "not a tokenizer");
    refused(&with(bpe(), "normalizer", replace(json!({"Regex": "a".repeat(100_000)}))), "longer than");
    refused(
        &with(bpe(), "normalizer", replace(json!({"Regex": "(?:a{1000}){1000}{1000}"}))),
        "not a tokenizer",
    );
}

#[test]
fn invalid_charsmaps_are_rejected_without_allocation() {
    // The last announces a trie of 4 GiB.
    for text in
        ["", "AAAA", "AAAAAA==", "not Base64!", "BAAAAAAAAAA=", "BAAAAP///38=", "/P///w==", "/////w=="]
    {
        let charsmap = json!({"type": "Precompiled", "precompiled_charsmap": text});
        refused(&with(unigram(), "normalizer", charsmap), "charsmap");
    }
    refused(&with(unigram(), "normalizer", json!({"type": "Precompiled"})), "precompiled_charsmap");
    refused(
        &with(unigram(), "normalizer", json!({"type": "Precompiled", "precompiled_charsmap": [1]})),
        "precompiled_charsmap",
    );
}

#[test]
fn empty_pieces_and_unbounded_words_are_rejected() {
    refused(&with(bpe(), "pre_tokenizer", json!({"type": "FixedLength", "length": 0})), "fixed length");
    ends(&with(bpe(), "pre_tokenizer", json!({"type": "FixedLength", "length": u64::MAX})));
    refused(
        &with_model(word_piece(), "max_input_chars_per_word", json!(1_000_000_000)),
        "words of 1000000000",
    );
    let mut long = unigram();
    long["model"]["vocab"].as_array_mut().unwrap().push(json!(["a".repeat(1000), -1.0]));
    refused(&long, "a token of 1000 bytes");
    refused(&with_model(unigram(), "vocab", json!([])), "a token is empty, or there is none");
    refused(&with_model(unigram(), "vocab", json!([["", 0.0]])), "a token is empty");
    refused(&with_model(unigram(), "unk_id", json!(99)), "not a tokenizer");
    refused(&with_model(bpe(), "vocab", json!({"a": u32::MAX})), "an id of a token is too large");
}

#[test]
fn special_tokens_are_added_around_a_text() {
    let template = |single: Value, tokens: Value| {
        with(
            bpe(),
            "post_processor",
            json!({"type": "TemplateProcessing", "single": single, "pair": [], "special_tokens": tokens}),
        )
    };
    let a = json!({"Sequence": {"id": "A", "type_id": 0}});
    let special = json!({"SpecialToken": {"id": "<x>", "type_id": 0}});
    refused(&template(json!([special, a]), json!({})), "a token without ids");
    refused(&template(json!([a, a]), json!({})), "twice");
    refused(&template(json!([{"Sequence": {"id": "B", "type_id": 0}}]), json!({})), "another");
    refused(&template(json!([]), json!({})), "no place");
    refused(
        &template(json!([special, a]), json!({"<x>": {"id": "<x>", "ids": vec![1; 1000], "tokens": []}})),
        "more than 256",
    );
    let start = cpu_time();
    let many = json!({"<x>": {"id": "<x>", "ids": vec![1; 20_000], "tokens": []}});
    refused(&template(vec![special.clone(); 20_000].into(), many), "more than 256");
    assert!(cpu_time() - start < Duration::from_secs(2), "{:?}", cpu_time() - start);
    refused(
        &with(bpe(), "post_processor", json!({"type": "BertProcessing", "sep": [], "cls": []})),
        "not a number",
    );
    let unequal =
        template(json!([special, a]), json!({"<x>": {"id": "<x>", "ids": [1, 2], "tokens": ["x"]}}));
    ends(&unequal);
    assert_eq!(open(&unequal).unwrap().encode("a", true).unwrap()[..2], [1, 2]);
}

#[test]
fn affixes_and_merges_outside_of_the_vocabulary_are_rejected() {
    refused(&with_model(bpe(), "continuing_subword_prefix", json!("x".repeat(30))), "a merge makes no token");
    refused(&with_model(bpe(), "continuing_subword_prefix", json!("é")), "a merge makes no token");
    refused(&with_model(bpe(), "continuing_subword_prefix", json!("x".repeat(100_000))), "longer than 64");
    refused(&with_model(bpe(), "end_of_word_suffix", json!("x".repeat(100_000))), "longer than 64");
    refused(
        &with_model(word_piece(), "continuing_subword_prefix", json!("x".repeat(100_000))),
        "longer than 64",
    );
    refused(&with_model(bpe(), "merges", json!(["hello hello"])), "a merge makes no token");
    refused(&with_model(bpe(), "merges", json!(["h zzz"])), "not a tokenizer");
    refused(&with_model(bpe(), "merges", json!(["h"])), "not a tokenizer");
    refused(&with_model(bpe(), "merges", json!([["h"]])), "not a tokenizer");
    refused(&with_model(bpe(), "merges", json!([["h", "e", "l"]])), "not a tokenizer");
    ends(&with_model(bpe(), "unk_token", json!("nowhere")));
    ends(&with_model(bpe(), "end_of_word_suffix", json!("</w>")));
}

#[test]
fn deep_or_numerous_tokenizer_steps_are_rejected() {
    for (section, list, step) in [
        ("normalizer", "normalizers", json!({"type": "NFC"})),
        ("pre_tokenizer", "pretokenizers", json!({"type": "WhitespaceSplit"})),
        ("decoder", "decoders", json!({"type": "Fuse"})),
        ("post_processor", "processors", json!({"type": "ByteLevel", "trim_offsets": true})),
    ] {
        let deep = (0..40).fold(step.clone(), |inner, _| json!({"type": "Sequence", list: [inner]}));
        refused(&with(bpe(), section, deep), "nested too deep");
        let many = json!({"type": "Sequence", list: vec![step; 1000]});
        refused(&with(bpe(), section, many), "more than 256");
        refused(&with(bpe(), section, json!({"type": "Nobody's\u{1b}[2J"})), "is not known");
        refused(&with(bpe(), section, json!({"type": "Sequence"})), "has no");
        refused(&with(bpe(), section, json!([])), "no string 'type'");
        refused(&with(bpe(), section, json!(vec![json!([]); 2 << 20])), "longer than");
    }
}

#[test]
fn repeated_replacements_are_bounded() {
    let replace = |pattern: &str, content: &str| json!({"type": "Replace", "pattern": {"String": pattern}, "content": content});
    let many = |section: &str, list: &str| {
        with(bpe(), section, json!({"type": "Sequence", list: vec![replace("a", "aaaa"); 20]}))
    };
    refused(&many("normalizer", "normalizers"), "grow");
    refused(&many("decoder", "decoders"), "grow");
    let mut added = with(bpe(), "normalizer", replace("a", &"a".repeat(10_000)));
    added["added_tokens"] = (0..100)
        .map(|number| json!({"id": 300 + number, "content": format!("{}{number}", "a".repeat(1000)), "normalized": true}))
        .collect();
    refused(&added, "the added tokens grow too long");
    let mut token = bpe();
    token["model"]["vocab"]["x".repeat(5000)] = json!(999);
    refused(&token, "a token of 5000 bytes");
    let long = with(bpe(), "normalizer", replace("a", &"a".repeat(1 << 20)));
    refused(&long, "grow");
    refused(
        &with(bpe(), "normalizer", json!({"type": "Prepend", "prepend": "a".repeat(1 << 20)})),
        "a prefix",
    );
    let levels = json!({"type": "Sequence", "pretokenizers": vec![json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": false}); 30]});
    refused(&with(bpe(), "pre_tokenizer", levels), "grow");
    // What may grow a thousandfold takes short texts alone.
    let tokenizer = open(&with(bpe(), "normalizer", replace("a", &"a".repeat(10_000)))).unwrap();
    let error = tokenizer.encode(&"a".repeat(100_000), false).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::CapacityExceeded);
    assert_eq!(tokenizer.encode("a", false).unwrap().len(), 10_000);
}

#[test]
fn decoders_may_strip_more_than_a_token() {
    for stop in [1, 2, 100, u64::MAX] {
        ends(&with(bpe(), "decoder", json!({"type": "Strip", "content": "a", "start": stop, "stop": stop})));
    }
    for decoder in [
        json!({"type": "BPEDecoder", "suffix": ""}),
        json!({"type": "BPEDecoder", "suffix": "a"}),
        json!({"type": "WordPiece", "prefix": "", "cleanup": true}),
        json!({"type": "CTC", "pad_token": "", "word_delimiter_token": "", "cleanup": true}),
        json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true}),
        json!({"type": "Metaspace", "replacement": "h", "prepend_scheme": "first", "split": false}),
    ] {
        ends(&with(bpe(), "decoder", decoder));
    }
}

#[test]
fn a_prompt_that_cannot_fit_is_rejected_without_encoding() {
    let model = Scripted::oracle().model();
    let context = model.capabilities().context;
    let long = "once upon a time ".repeat(2 << 20);
    let start = cpu_time();
    let error = model.generate(&long, &Options::default()).err().unwrap();
    assert_eq!(
        (error.kind(), error.context("context")),
        (ErrorKind::CapacityExceeded, Some(&*context.to_string()))
    );
    assert_eq!(error.context("bytes"), Some(&*long.len().to_string()));
    let error =
        model.chat(&[mlxcel_session::Message::user(long.clone())], &Options::default()).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::CapacityExceeded);
    let mut conversation = model.conversation().unwrap();
    assert_eq!(
        conversation.say(&long, &Options::default()).err().unwrap().kind(),
        ErrorKind::CapacityExceeded
    );
    assert!(conversation.messages().is_empty());
    assert!(cpu_time() - start < Duration::from_secs(5), "{:?}", cpu_time() - start);
    let error = model.tokenizer().unwrap().encode(&long, false).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::CapacityExceeded);
    let _: &Model = &model;
}
