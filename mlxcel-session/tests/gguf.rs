//! Tokenizers and chat templates of GGUF files, held against the originals that they were made from.

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::storyteller;
use mlxcel_session::{ChatOptions, ErrorKind, Message, TokenId, Tokenizer};
use serde_json::Value;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures")
}

fn ids(value: &Value) -> Vec<TokenId> {
    value.as_array().unwrap().iter().map(|id| TokenId::try_from(id.as_u64().unwrap()).unwrap()).collect()
}

/// The tokenizers that `file` has the ids of, each with what it says.
fn with_originals(file: &str) -> Vec<(String, Tokenizer, Value)> {
    let folder = fixtures().join("gguf-tokenizers");
    let made: serde_json::Map<_, _> = serde_json::from_slice(&fs::read(folder.join(file)).unwrap()).unwrap();
    let open = |(name, cases): (String, Value)| {
        let tokenizer = Tokenizer::open(folder.join(format!("{name}.gguf"))).unwrap();
        (name, tokenizer, cases)
    };
    made.into_iter().map(open).collect()
}

/// Holds a tokenizer against the ids of each text.
fn check_texts(name: &str, tokenizer: &Tokenizer, cases: &Value, specials: bool) {
    for case in cases.as_array().unwrap() {
        let (text, wanted) = (case["text"].as_str().unwrap(), ids(&case["ids"]));
        assert_eq!(tokenizer.encode(text, specials).unwrap(), wanted, "{name}: {text:?}");
    }
}

#[test]
fn gguf_tokenizers_match_their_originals_on_difficult_texts() {
    let made = with_originals("ids.json");
    assert_eq!(made.len(), 14);
    for (name, tokenizer, cases) in made {
        check_texts(&name, &tokenizer, &cases, false);
        let text = "Hello, wörld! 😀 漢字";
        let tokens = tokenizer.encode(text, false).unwrap();
        assert_eq!(tokenizer.decode(&tokens, false).unwrap(), text, "{name}");
        let bytes: Vec<u8> = tokens.iter().flat_map(|&token| tokenizer.token_bytes(token).unwrap()).collect();
        assert_eq!(String::from_utf8(bytes).unwrap().trim_start(), text, "{name}");
    }
}

#[test]
fn tokenizers_of_encoders_in_gguf_match_their_originals() {
    let made = with_originals("encoders.json");
    assert_eq!(made.len(), 4);
    for (name, tokenizer, cases) in made {
        check_texts(&name, &tokenizer, &cases["texts"], true);
    }
}

#[test]
fn the_bos_token_follows_the_files_setting() {
    let folder = fixtures().join("gguf-tokenizers");
    let sentencepiece = Tokenizer::open(folder.join("sentencepiece.gguf")).unwrap();
    assert_eq!(sentencepiece.encode("", true).unwrap(), [1]);
    assert_eq!(sentencepiece.special_token_id("bos_token"), Some(1));
    assert_eq!(sentencepiece.special_token_id("unk_token"), Some(0));
    // The file of this one says no.
    let bytes = Tokenizer::open(folder.join("llama-bpe.gguf")).unwrap();
    assert!(bytes.encode("", true).unwrap().is_empty());
}

#[test]
fn tokenizer_and_template_round_trip_through_gguf() {
    let model = fixtures().join("formats/gguf-llama-f16/tiny-llama-f16.gguf");
    let (ours, theirs) = (Tokenizer::open(&model).unwrap(), Tokenizer::open(storyteller()).unwrap());
    assert_eq!(ours.vocabulary_size(), theirs.vocabulary_size());
    let messages = [Message::system("Be brief."), Message::user("Who was Ann? <|end|> 😀")];
    for options in [ChatOptions::default(), ChatOptions::default().with_generation_prompt(false)] {
        let [text, expected] = [&ours, &theirs].map(|one| one.render_chat(&messages, &options).unwrap());
        assert_eq!(text, expected);
        let [ids, expected] = [&ours, &theirs].map(|one| one.encode_chat(&messages, &options).unwrap());
        assert_eq!(ids, expected);
    }
    assert_eq!(ours.special_token_id("eos_token"), Some(1));
    // A folder with one model in it is that model.
    let folder = Tokenizer::open(model.parent().unwrap()).unwrap();
    assert_eq!(folder.encode("Once", true).unwrap(), theirs.encode("Once", true).unwrap());
    let error = Tokenizer::open(fixtures().join("gguf-tokenizers")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.context("files").unwrap().contains("qwen2.gguf"), "{error}");
}

#[test]
fn a_gguf_file_without_a_tokenizer_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("q2.gguf");
    // Version 3, without tensors and metadata.
    fs::write(&file, [b"GGUF".as_slice(), &[3, 0, 0, 0], &[0; 16]].concat()).unwrap();
    let error = Tokenizer::open(&file).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert_eq!(error.context("path"), file.to_str(), "the file itself, and none within it");
}
