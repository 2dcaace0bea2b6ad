//! Embeddings and reranking by what a checkpoint says: refusals, and decoders that answer yes or no. That
//! results are those of sentence-transformers and transformers is tested with every engine.

use std::fs;
use std::path::{Path, PathBuf};

use mlxcel_session::mlxcel_core::reference::ReferenceBackend;
use mlxcel_session::mlxcel_core::{
    Control, InferenceSessionExt, ModelSource, Row, RowResult, SessionOptions,
};
use mlxcel_session::portable::PortableBackend;
use mlxcel_session::{
    EmbedOptions, EmbedPrompt, Engine, ErrorKind, LoadOptions, Model, Options, Pooling, RerankOptions,
};
use tempfile::TempDir;

use crate::support::tokenizer_of;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/encoders").join(name)
}

fn load(folder: &Path) -> mlxcel_session::Result<Model> {
    Model::load(&PortableBackend::new(), folder, &LoadOptions::default())
}

/// A copy of a fixture with a file changed.
fn changed(name: &str, file: &str, change: impl FnOnce(String) -> String) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    copy(&fixture(name), folder.path());
    let path = folder.path().join(file);
    fs::write(&path, change(fs::read_to_string(&path).unwrap())).unwrap();
    folder
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(|entry| entry.unwrap().path()) {
        let to = to.join(entry.file_name().unwrap());
        if entry.is_dir() { copy(&entry, &to) } else { fs::write(to, fs::read(&entry).unwrap()).unwrap() }
    }
}

#[test]
fn other_modules_and_pooling_modes_are_refused_by_name() {
    let pooling = |text: String| text.replacen('{', "{\"pooling_mode\": \"median\",", 1);
    let error = load(changed("bert", "1_Pooling/config.json", pooling).path()).unwrap_err();
    assert_eq!((error.kind(), error.context("field")), (ErrorKind::Unsupported, Some("pooling_mode")));
    let other = |text: String| text.replace("models.Normalize", "models.LSTM");
    let error = load(changed("bert", "modules.json", other).path()).unwrap_err();
    assert_eq!((error.kind(), error.context("path")), (ErrorKind::Unsupported, Some("modules.json")));
    let narrow = |text: String| text.replace("\"in_features\": 32", "\"in_features\": 31");
    let error = load(changed("bert", "2_Dense/config.json", narrow).path()).unwrap_err();
    assert_eq!((error.kind(), error.context("field")), (ErrorKind::Corrupt, Some("in_features")));
}

#[test]
fn options_beyond_the_checkpoint_are_refused() {
    let model = load(&fixture("bert")).unwrap();
    let embed = |options: &EmbedOptions| model.embed("the sea", options);
    let error = embed(&EmbedOptions::default().with_prompt(EmbedPrompt::Named("none".into()))).unwrap_err();
    assert_eq!((error.kind(), error.context("known")), (ErrorKind::NotFound, Some("document, query")));
    let error = embed(&EmbedOptions::default().with_dimensions(25)).unwrap_err();
    assert_eq!((error.kind(), error.context("limit")), (ErrorKind::InvalidInput, Some("24")));
    let error = model.rerank("sea", &["ship"], &RerankOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let error = model.generate("the sea", &Options::new(3)).and_then(|stream| stream.complete()).unwrap_err();
    assert_eq!((error.kind(), error.context("capability")), (ErrorKind::Unsupported, Some("generation")));
    // A pooling that is set leaves the dense layer out.
    let raw = embed(&EmbedOptions::default().with_pooling(Pooling::First)).unwrap();
    assert_eq!((raw.len(), embed(&EmbedOptions::default()).unwrap().len()), (32, 24));
}

#[test]
fn named_and_given_prompts_are_before_the_text() {
    let model = load(&fixture("bert")).unwrap();
    let embed = |text: &str, prompt| model.embed(text, &EmbedOptions::default().with_prompt(prompt)).unwrap();
    let whole = embed("what is the sea", EmbedPrompt::None);
    assert_eq!(embed("the sea", EmbedPrompt::Query), whole);
    assert_eq!(embed("the sea", EmbedPrompt::Text("what is ".into())), whole);
    assert_eq!(embed("the sea", EmbedPrompt::Document), embed("the sea", EmbedPrompt::Default));
}

/// As sentence-transformers does with pairs of texts.
#[test]
fn a_default_prompt_is_before_the_query() {
    let prompts = r#"{"prompts": {"search": "what is "}, "default_prompt_name": "search"}"#;
    let folder = changed("bert-reranker", "config.json", |config| config);
    fs::write(folder.path().join("config_sentence_transformers.json"), prompts).unwrap();
    let scores = |folder: &Path, query: &str| {
        load(folder).unwrap().rerank(query, &["the sea"], &RerankOptions::default()).unwrap()
    };
    let plain = fixture("bert-reranker");
    assert_eq!(scores(folder.path(), "a ship"), scores(&plain, "what is a ship"));
    assert_ne!(scores(folder.path(), "a ship"), scores(&plain, "a ship"));
}

#[test]
fn a_vocabulary_in_vocab_txt_alone_is_no_tokenizer() {
    assert_eq!(tokenizer_of(&[("vocab.txt", "[PAD]\n")]).unwrap_err().kind(), ErrorKind::NotFound);
}

/// transformers' classes for other decoders have no prompt: their tokenizers join both texts.
#[test]
fn decoders_with_a_classifier_score_a_pair_of_texts() {
    let folder = tempfile::tempdir().unwrap();
    copy(&fixture("../architectures/llama-linear"), folder.path());
    let path = |file: &str| folder.path().join(file);
    fs::copy(fixture("bert").join("tokenizer.json"), path("tokenizer.json")).unwrap();
    let mut config: serde_json::Value =
        serde_json::from_slice(&fs::read(path("config.json")).unwrap()).unwrap();
    config["architectures"] = serde_json::json!(["LlamaForSequenceClassification"]);
    fs::write(path("config.json"), config.to_string()).unwrap();
    let weights: Vec<f32> = (0..64).map(|index| ((index * 7 % 11) as f32 - 5.0) / 8.0).collect();
    let mut file = fs::read(path("model.safetensors")).unwrap();
    let data = 8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let mut header: serde_json::Value = serde_json::from_slice(&file[8..data]).unwrap();
    let offsets = [file.len() - data, file.len() - data + 256];
    header["score.weight"] = serde_json::json!({"dtype": "F32", "shape": [1, 64], "data_offsets": offsets});
    let header = header.to_string();
    file.splice(..data, (header.len() as u64).to_le_bytes().into_iter().chain(header.into_bytes()));
    file.extend(weights.iter().flat_map(|weight| weight.to_le_bytes()));
    fs::write(path("model.safetensors"), file).unwrap();

    let model = load(folder.path()).unwrap();
    let tokenizer = model.tokenizer().unwrap();
    let [query, document] = ["sea", "a cat"].map(|text| tokenizer.encode(text, true).unwrap());
    let tokens = [&query[..], &document[1..]].concat();
    let mut session = model.engine().open_session(&SessionOptions::default()).unwrap();
    let sequence = session.open().unwrap();
    let row = Row::hidden(sequence, &tokens, Pooling::Last);
    let RowResult::Hidden(state) = session.run_row(row, &Control::default()).unwrap() else { panic!() };
    let expected: f32 = state.iter().zip(&weights).map(|(a, b)| a * b).sum();
    let found = model.rerank("sea", &["a cat"], &RerankOptions::default()).unwrap();
    assert!((found[0] - expected).abs() < 1e-4, "{found:?}, not {expected}");
}

#[test]
fn decoders_score_by_the_logits_of_yes_and_no() {
    let vocabulary = r#"{"yes": 3, "no": 5, "sea": 7, "ship": 8, "cat": 9, "[UNK]": 0}"#;
    let tokenizer = format!(
        r#"{{"version": "1.0", "added_tokens": [], "pre_tokenizer": {{"type": "Whitespace"}}, "model": {{"type": "WordLevel", "vocab": {vocabulary}, "unk_token": "[UNK]"}}}}"#
    );
    let tokenizer = tokenizer_of(&[("tokenizer.json", &tokenizer)]).unwrap();
    let backend = ReferenceBackend::new().with_vocabulary(64);
    let options = LoadOptions::default().with_capacity(256);
    let source: ModelSource = ReferenceBackend::source();
    let engine = mlxcel_session::mlxcel_core::Backend::load(&backend, &source, &options).unwrap();
    let model = Model::from_parts(engine, tokenizer.clone());
    let documents = ["ship", "cat cat", "sea"];
    let instruction = RerankOptions::default().with_instruction("sea");
    let scores = model.rerank("sea", &documents, &instruction).unwrap();

    let mut session = model.engine().open_session(&SessionOptions::default()).unwrap();
    for (document, score) in documents.iter().zip(&scores) {
        let prompt = format!(
            "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct \
             provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n<Instruct>: \
             sea\n<Query>: sea\n<Document>: {document}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
        );
        let tokens = tokenizer.encode(&prompt, false).unwrap();
        let sequence = session.open().unwrap();
        let logits = session.run_row(Row::logits(sequence, &tokens), &Control::default()).unwrap();
        let logits = logits.into_logits().unwrap();
        session.close(sequence).unwrap();
        assert_eq!(*score, logits[3] - logits[5], "{document}");
    }
    let engine = Engine::new(model.clone()).unwrap();
    assert_eq!(engine.rerank("sea", &documents, &instruction).unwrap(), scores);
    let probabilities = model.rerank("sea", &documents, &instruction.with_probabilities(true)).unwrap();
    for (probability, score) in probabilities.iter().zip(&scores) {
        assert!((probability - 1.0 / (1.0 + (-score).exp())).abs() < 1e-6);
    }
}
