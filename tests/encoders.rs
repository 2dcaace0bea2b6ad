//! Encoders and rerankers on every engine against transformers and sentence-transformers: hidden states,
//! embeddings and scores, alone and batched.

use std::path::{Path, PathBuf};

use crate::support::{FOLDER_VARIABLE, engines_and_plugin, expect_close, is_wanted, spares};
use mlxcel_core::{
    Backend, Control, ErrorKind, InferenceSessionExt, LoadOptions, Pooling, Precision, Row, RowResult,
    SamplingPlan, SessionOptions, StepOutput,
};
use mlxcel_models::Checkpoint;
use mlxcel_models::text_head::TextHead;
use mlxcel_quantize::{QuantizeOptions, quantize};
use mlxcel_session::{EmbedOptions, EmbedPrompt, Engine, Model, RerankOptions};

/// The largest difference of an element, relative to the largest of the vector or to 1.
pub(crate) const DIFFERENCE: f32 = 1e-5;

#[derive(serde::Deserialize)]
pub(crate) struct Oracle {
    pub(crate) hidden: Vec<HiddenCase>,
    #[serde(default)]
    embeddings: Vec<EmbeddingCase>,
    rerank: Option<RerankCase>,
}

#[derive(serde::Deserialize)]
pub(crate) struct HiddenCase {
    pub(crate) tokens: Vec<u32>,
    pub(crate) types: Vec<u8>,
    pub(crate) first: Vec<f32>,
    pub(crate) mean: Vec<f32>,
    pub(crate) last: Vec<f32>,
}

#[derive(serde::Deserialize)]
struct EmbeddingCase {
    prompt: Option<String>,
    dimensions: Option<usize>,
    texts: Vec<String>,
    embeddings: Vec<Vec<f32>>,
}

#[derive(serde::Deserialize)]
struct RerankCase {
    query: String,
    documents: Vec<String>,
    scores: Vec<f32>,
    /// Those of each pair of texts.
    tokens: Vec<Vec<u32>>,
    types: Vec<Vec<u8>>,
}

impl Oracle {
    pub(crate) fn of(folder: &Path) -> Self {
        serde_json::from_slice(&std::fs::read(folder.join("oracle.json")).unwrap()).unwrap()
    }
}

impl HiddenCase {
    fn poolings(&self) -> [(Pooling, &[f32]); 3] {
        [(Pooling::First, &self.first), (Pooling::Mean, &self.mean), (Pooling::Last, &self.last)]
    }
}

/// Checkpoints, and models in GGUF files.
pub(crate) fn folders() -> Vec<PathBuf> {
    let own = |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../fixtures/{name}encoders"));
    let roots = match std::env::var_os(FOLDER_VARIABLE) {
        Some(root) => vec![PathBuf::from(root)],
        None => vec![own(""), own("gguf-")],
    };
    let entries = roots.iter().flat_map(|root| std::fs::read_dir(root).unwrap());
    let mut folders: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    folders.retain(|folder| folder.join("oracle.json").exists());
    folders.sort();
    folders
}

/// A folder for each kind of layer, for engines that compile.
fn is_spared(engine: &dyn Backend, folder: &Path) -> bool {
    let few: &[&str] = if engine.name() == "pjrt" {
        &["bert"]
    } else {
        &["bert", "jina_embeddings_v2-split", "modernbert-reranker", "mpnet"]
    };
    spares(engine) && !few.iter().any(|name| folder.ends_with(name))
}

fn check(engine: &dyn Backend, folder: &Path) {
    let name = format!("{} {}", engine.name(), folder.file_name().unwrap().to_string_lossy());
    let oracle = Oracle::of(folder);
    let options = LoadOptions::default().with_precision(Precision::Exact).with_sequences(4);
    let model = Model::load(engine, folder, &options).unwrap();
    check_hidden(&name, &model, &oracle.hidden, spares(engine));
    for EmbeddingCase { prompt, dimensions, texts, embeddings } in &oracle.embeddings {
        let mut options = EmbedOptions::default();
        if let Some(prompt) = prompt {
            options = options.with_prompt(EmbedPrompt::Named(prompt.clone()));
        }
        if let Some(dimensions) = *dimensions {
            options = options.with_dimensions(dimensions);
        }
        let found = model.embed_all(texts, &options).unwrap();
        for ((found, expected), text) in found.iter().zip(embeddings).zip(texts) {
            expect_close(&format!("{name}, {prompt:?}, {dimensions:?}: {text}"), found, expected, DIFFERENCE);
        }
    }
    if let Some(case) = &oracle.rerank {
        check_head(&name, &model, folder, case);
    }
    let reranked = oracle.rerank.as_ref().filter(|_| model.tokenizer().is_ok());
    if let Some(RerankCase { query, documents, scores, .. }) = reranked {
        let options = RerankOptions::default();
        let found = model.rerank(query, documents, &options).unwrap();
        expect_close(&name, &found, scores, DIFFERENCE);
        let engine = Engine::new(model.clone()).unwrap();
        expect_close(&name, &engine.rerank(query, documents, &options).unwrap(), scores, DIFFERENCE);
        let found = model.rerank(query, documents, &options.with_probabilities(true)).unwrap();
        let expected: Vec<f32> = scores.iter().map(|score| 1.0 / (1.0 + (-score).exp())).collect();
        expect_close(&name, &found, &expected, DIFFERENCE);
    }
}

/// The scores of pairs of texts that are tokens already.
fn check_head(name: &str, model: &Model, folder: &Path, case: &RerankCase) {
    let checkpoint = Checkpoint::open(folder).unwrap();
    let head = TextHead::of_classifier(&checkpoint, &checkpoint.decoder().unwrap()).unwrap().unwrap();
    let mut session = model.engine().open_session(&SessionOptions::default()).unwrap();
    for ((tokens, types), score) in case.tokens.iter().zip(&case.types).zip(&case.scores) {
        let sequence = session.open().unwrap();
        let row = match head.pooling() {
            Some(pooling) => Row::hidden(sequence, tokens, pooling),
            None => Row::each_hidden(sequence, tokens),
        };
        let row = row.with_token_types(types);
        let RowResult::Hidden(state) = session.run_row(row, &Control::default()).unwrap() else { panic!() };
        session.close(sequence).unwrap();
        expect_close(name, &head.apply(&state, tokens.len(), 0).unwrap(), &[*score], DIFFERENCE);
    }
}

/// Each case alone, and all together; of an engine that compiles, one pooling.
fn check_hidden(name: &str, model: &Model, cases: &[HiddenCase], few: bool) {
    let mut session = model.engine().open_session(&SessionOptions::default()).unwrap();
    for case in cases.iter().rev().take(if few { 2 } else { usize::MAX }) {
        for (pooling, expected) in case.poolings() {
            let sequence = session.open().unwrap();
            let row = Row::hidden(sequence, &case.tokens, pooling).with_token_types(&case.types);
            let RowResult::Hidden(found) = session.run_row(row, &Control::default()).unwrap() else {
                panic!()
            };
            session.close(sequence).unwrap();
            expect_close(
                &format!("{name}, {} tokens, {pooling:?}", case.tokens.len()),
                &found,
                expected,
                DIFFERENCE,
            );
        }
    }
    let poolings = [Pooling::First, Pooling::Mean, Pooling::Last, Pooling::Mean];
    let sequences: Vec<_> = cases.iter().map(|_| session.open().unwrap()).collect();
    let rows = cases.iter().zip(&sequences).zip(poolings).map(|((case, &sequence), pooling)| {
        Row::hidden(sequence, &case.tokens, pooling).with_token_types(&case.types)
    });
    let rows: Vec<_> = rows.collect();
    let mut out = StepOutput::new();
    session.step(&rows, &Control::default(), &mut out).unwrap();
    for ((case, result), pooling) in cases.iter().zip(out.take()).zip(poolings) {
        let RowResult::Hidden(found) = result.unwrap() else { panic!() };
        let (_, expected) = case.poolings().into_iter().find(|(own, _)| *own == pooling).unwrap();
        expect_close(&format!("{name}, batched, {} tokens", case.tokens.len()), &found, expected, DIFFERENCE);
    }

    // Rerankers can be decoders; of an encoder a sequence is one text, and nothing is generated.
    let capabilities = session.capabilities();
    if capabilities.generation {
        return;
    }
    assert!(!capabilities.generation && !capabilities.rewind && !capabilities.fork && !capabilities.snapshot);
    let plan = SamplingPlan::greedy();
    let tokens = &cases[1].tokens;
    let again = session.run_row(Row::hidden(sequences[1], tokens, Pooling::Mean), &Control::default());
    assert_eq!(again.unwrap_err().kind(), ErrorKind::Unsupported);
    session.close(sequences[1]).unwrap();
    let fresh = session.open().unwrap();
    for row in [Row::next(fresh, tokens, &plan), Row::logits(fresh, tokens), Row::extend(fresh, tokens)] {
        assert_eq!(session.run_row(row, &Control::default()).unwrap_err().kind(), ErrorKind::Unsupported);
    }
}

/// The head behind the network goes with it: pooling, dense layers, prompts.
#[test]
fn a_packed_copy_of_an_encoder_embeds_as_the_encoder() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures");
    let place = tempfile::tempdir().unwrap();
    let engine = mlxcel_session::portable::PortableBackend::new();
    for name in ["encoders/bert", "gguf-encoders/bert", "gguf-encoders/embeddinggemma-dense"] {
        let (folder, copy) = (fixtures.join(name), place.path().join(name.replace('/', "-")));
        let options = QuantizeOptions::new(8, 32);
        quantize(&Checkpoint::open(&folder).unwrap(), &copy, &options).unwrap();
        let embedded = |path: &Path| {
            let model = Model::load(&engine, path, &LoadOptions::default()).unwrap();
            model.embed_all(&["A cat sat on the mat."], &EmbedOptions::default()).unwrap().remove(0)
        };
        let (own, copied) = (embedded(&folder), embedded(&copy));
        let cosine: f32 = own.iter().zip(&copied).map(|(a, b)| a * b).sum();
        assert_eq!(own.len(), copied.len(), "{name}");
        assert!(cosine > 0.99, "{name}: {cosine}");
    }
}

/// As the tokenizer of sentence-transformers is set up: its normalizer lowers case, and so leaves special
/// tokens alone; its own length and the table of positions limit a text for which no other limit is given.
#[test]
fn texts_are_read_as_by_the_tokenizer_of_sentence_transformers() {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/encoders/bert");
    let engine = mlxcel_session::portable::PortableBackend::new();
    let vector = |reading: Option<serde_json::Value>, length: f64, text: &str| {
        let place = tempfile::tempdir().unwrap();
        let copy = |path: &Path| {
            let to = place.path().join(path.strip_prefix(&fixture).unwrap());
            std::fs::create_dir_all(to.parent().unwrap()).unwrap();
            std::fs::copy(path, to).unwrap();
        };
        for entry in
            ["", "1_Pooling", "2_Dense"].iter().flat_map(|part| fixture.join(part).read_dir().unwrap())
        {
            Some(entry.unwrap().path()).filter(|path| path.is_file()).as_deref().into_iter().for_each(copy);
        }
        let tokenizer = serde_json::json!({"model_max_length": length});
        std::fs::write(place.path().join("tokenizer_config.json"), tokenizer.to_string()).unwrap();
        match reading {
            Some(reading) => {
                let path = place.path().join("sentence_bert_config.json");
                std::fs::write(path, reading.to_string()).unwrap();
            }
            None => std::fs::remove_file(place.path().join("sentence_bert_config.json")).unwrap(),
        }
        let model = Model::load(&engine, place.path(), &LoadOptions::default()).unwrap();
        model.embed(text, &EmbedOptions::default()).unwrap()
    };
    let lowered = |lower: bool| Some(serde_json::json!({"do_lower_case": lower}));
    let marked = |lower| vector(lowered(lower), 512.0, "A [MASK] sat");
    assert_eq!(marked(true), marked(false), "this tokenizer lowers case anyway");
    assert_ne!(marked(true), vector(lowered(true), 512.0, "a [mask] sat"));

    let long = "sea ".repeat(200);
    let given = |most: usize| vector(Some(serde_json::json!({"max_seq_length": most})), 7.0, &long);
    assert_eq!(vector(None, 7.0, &long), given(7));
    assert_eq!(vector(None, 1e30, &long), given(128), "as many as there are positions");
    assert_ne!(given(128), given(7));
}

#[test]
fn every_encoder_is_exact_on_every_engine() {
    let folders = folders();
    assert!(std::env::var_os(FOLDER_VARIABLE).is_some() || folders.len() >= 44, "{} folders", folders.len());
    for folder in &folders {
        for engine in engines_and_plugin() {
            if is_wanted(&*engine) && !is_spared(&*engine, folder) {
                check(&*engine, folder);
            }
        }
    }
}
