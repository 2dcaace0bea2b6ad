//! Tokenizer, chat template and detokenizer on real files: the bundled model's, and hand-made ones of other
//! kinds.

use std::fs;
use std::path::Path;

use crate::support::{added_token, oracle, storyteller, tokenizer_of, vocabulary};
use mlxcel_session::{ChatOptions, Detokenizer, ErrorKind, Message, TokenId, Tokenizer};
use proptest::prelude::*;

#[test]
fn oracle_prompts_encode_to_the_same_ids() {
    let tokenizer = Tokenizer::open(storyteller()).unwrap();
    assert_eq!(tokenizer.vocabulary_size(), 729);
    assert_eq!(tokenizer.special_token_id("eos_token"), Some(1));
    let mut seen = (0, 0);
    for case in oracle() {
        if let Some(messages) = &case.messages {
            seen.0 += 1;
            assert_eq!(tokenizer.encode_chat(messages, &ChatOptions::default()).unwrap(), case.prompt);
        }
        if let Some(text) = &case.text {
            seen.1 += 1;
            assert_eq!(tokenizer.encode(text, true).unwrap(), case.prompt);
        }
        let generated = case.greedy.strip_suffix(&[1]).unwrap_or(&case.greedy);
        assert_eq!(tokenizer.decode(generated, false).unwrap(), case.completion);
    }
    assert!(seen.0 >= 4 && seen.1 >= 2, "the oracle has both kinds of prompts");
}

/// The pieces that a detokenizer gives for `tokens`.
fn pieces(mut detokenizer: Detokenizer, tokens: &[TokenId]) -> Vec<String> {
    let mut pieces: Vec<String> =
        tokens.iter().filter_map(|&token| detokenizer.push(token).unwrap()).collect();
    pieces.extend(detokenizer.finish().unwrap());
    pieces
}

proptest! {
    #[test]
    fn streamed_pieces_concatenate_to_the_text(
        tokens in prop::collection::vec(0..729u32, 0..60),
        skip in any::<bool>(),
    ) {
        let tokenizer = Tokenizer::open(storyteller()).unwrap();
        let text = tokenizer.decode(&tokens, skip).unwrap();
        let pieces = pieces(Detokenizer::new(tokenizer, skip), &tokens);
        prop_assert!(pieces.iter().all(|piece| !piece.is_empty()));
        prop_assert_eq!(pieces.concat(), text);
    }

    #[test]
    fn no_piece_splits_a_character(text in "[a-z éß你😀👩‍👩‍👧\u{301}]{0,40}") {
        for tokenizer in [Tokenizer::open(storyteller()).unwrap(), sentencepiece()] {
            let tokens = tokenizer.encode(&text, false).unwrap();
            let pieces = pieces(Detokenizer::new(tokenizer.clone(), false), &tokens);
            prop_assert!(pieces.iter().all(|piece| !piece.contains('\u{FFFD}')), "{:?}", pieces);
            prop_assert_eq!(pieces.concat(), tokenizer.decode(&tokens, false).unwrap());
        }
    }
}

proptest! {
    #[test]
    fn token_bytes_concatenate_to_the_text(tokens in prop::collection::vec(0..729u32, 0..40), text in "\\PC{0,30}") {
        let bytes = Tokenizer::open(storyteller()).unwrap();
        let concatenated = |tokenizer: &Tokenizer, tokens: &[TokenId]| -> Vec<u8> {
            tokens.iter().flat_map(|&token| tokenizer.token_bytes(token).unwrap()).collect()
        };
        let decoded = bytes.decode(&tokens, false).unwrap();
        let joined = concatenated(&bytes, &tokens);
        prop_assert_eq!(String::from_utf8_lossy(&joined), decoded);
        for tokenizer in [bytes, sentencepiece()] {
            let tokens = tokenizer.encode(&text, false).unwrap();
            let decoded = tokenizer.decode(&tokens, false).unwrap();
            let joined = String::from_utf8(concatenated(&tokenizer, &tokens)).unwrap();
            // What begins a text loses its space there.
            prop_assert!(joined == decoded || joined.strip_prefix(' ') == Some(&decoded), "{:?} {:?}", joined, decoded);
        }
    }
}

#[test]
fn ids_and_token_texts_round_trip() {
    for tokenizer in [Tokenizer::open(storyteller()).unwrap(), sentencepiece()] {
        for id in 0..u32::try_from(tokenizer.vocabulary_size()).unwrap() {
            let token = tokenizer.token(id).unwrap();
            assert_eq!(tokenizer.token_id(&token), Some(id));
            assert!(!tokenizer.token_bytes(id).unwrap().is_empty());
        }
        let beyond = u32::try_from(tokenizer.vocabulary_size()).unwrap();
        assert_eq!((tokenizer.token(beyond), tokenizer.token_bytes(beyond)), (None, None));
    }
}

/// A tokenizer of the kind that SentencePiece models have: spaces are a part of words and of the text's
/// beginning, which decoding takes off again; what is not in the vocabulary is bytes.
fn sentencepiece() -> Tokenizer {
    let vocabulary = vocabulary(["<unk>", "<s>", "</s>", "▁", "▁there", "▁was", "a", "b"]);
    let json = serde_json::json!({
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0},
        "padding": null,
        "added_tokens": [added_token(0, "<unk>", true), added_token(1, "<s>", true), added_token(2, "</s>", true)],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        ]},
        "pre_tokenizer": null,
        "post_processor": null,
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ]},
        "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "ignore_merges": false,
            "vocab": vocabulary, "merges": []},
    });
    tokenizer_of(&[("tokenizer.json", &json.to_string())]).unwrap()
}

#[test]
fn tokens_are_found_behind_gaps_between_ids() {
    let json = serde_json::json!({"version": "1.0", "added_tokens": [], "normalizer": null,
        "pre_tokenizer": null, "post_processor": null, "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "ab": 9}, "unk_token": "a"}});
    let tokenizer = tokenizer_of(&[("tokenizer.json", &json.to_string())]).unwrap();
    assert_eq!(tokenizer.tokens_containing("b"), [1, 9]);
}

#[test]
fn truncation_settings_of_tokenizer_json_are_ignored() {
    let tokenizer = sentencepiece();
    assert_eq!(
        tokenizer.decode(&tokenizer.encode("ab ab ab ab", false).unwrap(), false).unwrap(),
        "ab ab ab ab"
    );
}

#[test]
fn word_spaces_are_kept_between_pieces_and_after_a_prompt() {
    let tokenizer = sentencepiece();
    assert_eq!(pieces(Detokenizer::new(tokenizer.clone(), true), &[4, 5, 4]), ["there", " was", " there"]);
    let after = Detokenizer::after(tokenizer.clone(), true, &[1, 4]).unwrap();
    assert_eq!(pieces(after, &[5, 4]), [" was", " there"]);
    // A special token that is not shown does not make a beginning.
    assert_eq!(pieces(Detokenizer::new(tokenizer, true), &[4, 2, 5]), ["there", " was"]);
}

#[test]
fn endless_invalid_utf8_is_emitted_and_not_buffered() {
    let tokenizer = sentencepiece();
    let byte = tokenizer.token_id("<0x80>").unwrap();
    let mut detokenizer = Detokenizer::new(tokenizer, false);
    let shown: usize =
        (0..1000).filter_map(|_| detokenizer.push(byte).unwrap()).map(|p| p.chars().count()).sum();
    assert!(shown >= 512, "{shown}");
}

#[test]
fn tokens_without_text_do_not_split_the_next_character() {
    let tokenizer = Tokenizer::open(storyteller()).unwrap();
    let character = tokenizer.encode("é", false).unwrap();
    assert!(character.len() > 1);
    for silent in 250..=260 {
        let tokens = [&vec![0; silent][..], &character].concat();
        assert_eq!(pieces(Detokenizer::new(tokenizer.clone(), true), &tokens), ["é"], "{silent}");
    }
}

/// A copy of the bundled tokenizer, with `file` replaced.
fn with_file(file: &str, content: &[u8]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        fs::copy(storyteller().join(name), folder.path().join(name)).unwrap();
    }
    fs::write(folder.path().join(file), content).unwrap();
    folder
}

fn prompt_of(folder: &Path) -> String {
    let tokenizer = Tokenizer::open(folder).unwrap();
    tokenizer.render_chat(&[Message::user("Hi")], &ChatOptions::default()).unwrap()
}

#[test]
fn chat_templates_are_found_in_every_known_file() {
    let config = br#"{"bos_token": {"content": "<|begin|>"}, "chat_template": "{{ bos_token }}{{ messages[0].content }}"}"#;
    for (file, content, expected) in [
        ("chat_template.jinja", &b"own {{ messages[0].content }}"[..], "own Hi"),
        ("tokenizer_config.json", config, "<|begin|>Hi"),
        ("chat_template.json", br#"{"chat_template": "older"}"#, "older"),
    ] {
        assert_eq!(prompt_of(with_file(file, content).path()), expected);
    }
    let named = br#"{"chat_template": [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]}"#;
    let named = with_file("tokenizer_config.json", named);
    assert_eq!(prompt_of(named.path()), "plain");
    let hi = [Message::user("Hi")];
    let tools = ChatOptions::default().with_variable("tools", serde_json::json!([{}]));
    let tokenizer = Tokenizer::open(named.path()).unwrap();
    assert_eq!(tokenizer.render_chat(&hi, &tools).unwrap(), "tools");
    let other = tools.clone().with_template_name("default");
    assert_eq!(tokenizer.render_chat(&hi, &other).unwrap(), "plain");
    let unknown = tokenizer.render_chat(&hi, &other.with_template_name("rag")).unwrap_err();
    assert_eq!(
        (unknown.kind(), unknown.context("templates")),
        (ErrorKind::NotFound, Some("tool_use, default"))
    );
    let folder = with_file("chat_template.jinja", b"own");
    fs::create_dir(folder.path().join("additional_chat_templates")).unwrap();
    for name in ["rag.jinja", "tool_use.jinja", "README.md"] {
        fs::write(folder.path().join("additional_chat_templates").join(name), name).unwrap();
    }
    let tokenizer = Tokenizer::open(folder.path()).unwrap();
    let names: Vec<_> = tokenizer.chat_template().unwrap().names().collect();
    assert_eq!(names, ["default", "rag", "tool_use"]);
    assert_eq!(tokenizer.render_chat(&hi, &tools).unwrap(), "tool_use.jinja");
    let rag = ChatOptions::default().with_template_name("rag");
    assert_eq!(tokenizer.render_chat(&hi, &rag).unwrap(), "rag.jinja");
}

#[test]
fn special_tokens_come_from_the_older_map_where_the_config_has_none() {
    let folder =
        with_file("tokenizer_config.json", br#"{"chat_template": "{{ bos_token }}{{ eos_token }}"}"#);
    let map = br#"{"bos_token": "<|begin|>", "eos_token": {"content": "<|end|>"}}"#;
    fs::write(folder.path().join("special_tokens_map.json"), map).unwrap();
    assert_eq!(prompt_of(folder.path()), "<|begin|><|end|>");
}

#[test]
fn invalid_files_are_corrupt_and_named() {
    for (file, content) in [
        ("tokenizer.json", &b"{\"model\": "[..]),
        ("tokenizer.json", b"{}"),
        ("tokenizer.json", b"\xff"),
        ("tokenizer_config.json", b"[]"),
        ("tokenizer_config.json", br#"{"chat_template": 3}"#),
        ("special_tokens_map.json", b"nothing"),
        ("chat_template.jinja", b"{% for %}"),
        ("chat_template.jinja", b"\xff"),
        ("chat_template.json", br#"{"chat_template": [{"name": "default"}]}"#),
    ] {
        let error = Tokenizer::open(with_file(file, content).path()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{file}: {error}");
        assert!(error.context("path").unwrap().ends_with(file), "{error}");
    }
}

#[test]
fn truncated_tokenizers_are_errors_not_panics() {
    let whole = fs::read(storyteller().join("tokenizer.json")).unwrap();
    for length in (0..whole.len()).step_by(997) {
        let error = Tokenizer::open(with_file("tokenizer.json", &whole[..length]).path()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
    }
}

#[test]
fn missing_tokenizer_files_are_named() {
    let empty = tempfile::tempdir().unwrap();
    let error = Tokenizer::open(empty.path()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains("tokenizer.json"), "{error}");
    let without_template = with_file("tokenizer_config.json", b"{}");
    let tokenizer = Tokenizer::open(without_template.path()).unwrap();
    let error = tokenizer.encode_chat(&[Message::user("Hi")], &ChatOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
}

const WORLD: &str = "rwkv_vocab_v20230424.txt";

#[test]
fn rwkv_world_cuts_texts_as_its_own_tokenizer() {
    let vocabulary = include_str!("fixtures/rwkv-world/rwkv_vocab_v20230424.txt");
    let settings = r#"{"tokenizer_class": "RwkvTokenizer", "bos_token": "<|rwkv_tokenizer_end_of_text|>", "eos_token": "\n\n",
        "chat_template": "{{ bos_token }}{% for m in messages %}User: {{ m.content }}{{ eos_token }}{% endfor %}Assistant:"}"#;
    let tokenizer = tokenizer_of(&[(WORLD, vocabulary), ("tokenizer_config.json", settings)]).unwrap();
    let cases: Vec<serde_json::Value> =
        serde_json::from_str(include_str!("fixtures/rwkv-world/expected.json")).unwrap();
    for case in &cases {
        let text = case["text"].as_str().unwrap();
        let tokens: Vec<u32> = serde_json::from_value(case["tokens"].clone()).unwrap();
        assert_eq!(tokenizer.encode(text, true).unwrap(), tokens, "{text:?}");
        assert_eq!(tokenizer.decode(&tokens, true).unwrap(), text);
        let bytes: Vec<u8> = tokens.iter().flat_map(|&id| tokenizer.token_bytes(id).unwrap()).collect();
        assert_eq!(bytes, text.as_bytes());
    }
    assert_eq!(tokenizer.vocabulary_size(), 65_514);
    // The end of a text is a control token; a blank line is none, whatever the settings say.
    assert_eq!((tokenizer.special_token_id("eos_token"), tokenizer.token_id("\n\n")), (Some(0), Some(261)));
    assert!(tokenizer.is_special(0) && !tokenizer.is_special(261));
    assert_eq!(tokenizer.decode(&[0, 261, 0], true).unwrap(), "\n\n");
    let end = "<|rwkv_tokenizer_end_of_text|>";
    assert_eq!(tokenizer.encode(end, false).unwrap(), [0]);
    let chat = tokenizer.encode_chat(&[Message::user(end)], &ChatOptions::default()).unwrap();
    assert_eq!(chat.iter().filter(|&&token| token == 0).count(), 1, "{chat:?}");
    let text = tokenizer.decode(&chat[1..], false).unwrap();
    assert_eq!(text, format!("User: {end}\n\nAssistant:"));
}

#[test]
fn faults_of_a_world_vocabulary_are_named() {
    let vocabulary = include_str!("fixtures/rwkv-world/rwkv_vocab_v20230424.txt");
    let without_a = vocabulary.replace("98 'a' 1\n", "");
    let long = format!("{vocabulary}65535 '{}' 300\n", "a".repeat(300));
    for (text, fault) in [
        ("", "the byte 0x00 has no token"),
        (&*without_a, "the byte 0x61 has no token"),
        (&*format!("{vocabulary}\n"), "line"),
        (&*format!("{vocabulary}66000 'a' 1\n"), "another line has"),
        (&*format!("{vocabulary}98 'aaaab' 5\n"), "another line has"),
        (&*format!("{vocabulary}0 'aaaab' 5\n"), "no token can have"),
        (&*format!("{vocabulary}4000000000 'aaaab' 5\n"), "no token can have"),
        (&*format!("{vocabulary}66000 'aaaab' 6\n"), "its length"),
        (&*long, "more than 256 bytes"),
        (&*"\n".repeat((4 << 20) + 1), "more than 4194304"),
    ] {
        let error = tokenizer_of(&[(WORLD, text)]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.context("path").unwrap_or_default().ends_with(WORLD), "{error}");
        let source = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
        assert!(source.contains(fault), "{source}");
    }
}
