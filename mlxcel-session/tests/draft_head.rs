//! Drafting by a draft head, a checkpoint's own or one of another checkpoint: no token changes, and most
//! drafts of a trained head are right.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use mlxcel_session::mlxcel_core::reference::ReferenceBackend;
use mlxcel_session::{
    Backend, Completion, DraftContext, DraftHead, DraftSource, Drafter, Engine, Error, ErrorKind,
    LoadOptions, Model, OpenOptions, Options, Precision, PrefixCache, SamplingParams, Speculation, TokenId,
    available_backends, select_backend,
};

/// What the text that the head was trained on begins with.
const PROMPT: [TokenId; 20] = [25, 14, 15, 24, 5, 15, 24, 5, 25, 14, 11, 5, 9, 21, 28, 5, 28, 15, 25, 14];

fn checkpoint(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../fixtures/draft-heads").join(name)
}

/// Those that need no plugin.
fn engines() -> impl Iterator<Item = &'static str> {
    available_backends().into_iter().filter(|&engine| engine != "pjrt")
}

fn exact(engine: &str) -> OpenOptions {
    OpenOptions::default().with_backend(engine).with_precision(Precision::Exact)
}

fn open(engine: &str) -> Model {
    Model::open_with(checkpoint("qwen3_5_text-trained"), &exact(engine).with_draft_head()).unwrap()
}

/// A model with a head in a checkpoint of its own.
fn open_both(engine: &str) -> Model {
    let fixtures = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../fixtures/eagle3");
    let options = exact(engine).with_draft_head_from(fixtures.join("llama-head"));
    let memory = Model::estimate(fixtures.join("llama"), &options).unwrap();
    assert!(memory.weights > Model::estimate(fixtures.join("llama"), &exact(engine)).unwrap().weights);
    Model::open_with(fixtures.join("llama"), &options).unwrap()
}

fn text(completion: &Completion) -> (&[TokenId], &str) {
    (&completion.tokens, &completion.text)
}

/// Options with and without drafts of at most `most` tokens.
fn options(model: &Model, temperature: f32, most: usize) -> [Options; 2] {
    let sampling = SamplingParams::greedy().with_temperature(temperature).with_seed(5);
    let plain = Options::new(60).with_ignore_stop(true).with_sampling(sampling);
    let speculation = Speculation::new(model.draft_head().unwrap()).with_width(most);
    [plain.clone(), plain.with_speculation(speculation)]
}

#[test]
fn a_text_is_the_same_and_takes_fewer_passes() {
    for (engine, model) in engines().flat_map(|engine| [open, open_both].map(|open| (engine, open(engine)))) {
        for (temperature, most) in [(0.0, 1), (0.0, 3), (0.8, 2)] {
            let family = &model.info().model_type;
            let what = format!("{engine}, {family}, temperature {temperature}, {most} drafts");
            let [plain, drafting] = options(&model, temperature, most);
            let plain = model.generate_tokens(&PROMPT, &plain).unwrap().complete().unwrap();
            let mut stream = model.generate_tokens(&PROMPT, &drafting).unwrap();
            while let Some(token) = stream.next_token() {
                token.unwrap();
            }
            let (passes, tokens) = (stream.stats().passes, stream.tokens().to_vec());
            assert_eq!(tokens, plain.tokens, "{what}");
            let usage = stream.complete().unwrap().usage;
            assert!(usage.drafted_tokens > 20, "{what}: {usage:?}");
            if temperature == 0.0 && most == 1 {
                assert!(usage.accepted_tokens * 4 > usage.drafted_tokens * 3, "{what}: {usage:?}");
                assert!(passes < 45, "{what}: {passes} passes");
            }
        }
    }
}

/// Its drafts are dropped, with a warning.
#[test]
fn a_head_with_broken_weights_changes_no_text() {
    let fixtures = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../fixtures/eagle3");
    let broken = tempfile::tempdir().unwrap();
    let (from, to) = (fixtures.join("llama-head"), broken.path());
    std::fs::copy(from.join("config.json"), to.join("config.json")).unwrap();
    let mut file = std::fs::read(from.join("model.safetensors")).unwrap();
    let header = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    // Behind 26 tokens are numbers in bfloat16.
    file[8 + header + 26 * 8..].fill(0xff);
    std::fs::write(to.join("model.safetensors"), file).unwrap();
    for engine in engines() {
        let load = exact(engine).with_draft_head_from(to);
        let model = Model::open_with(fixtures.join("llama"), &load).unwrap();
        let [plain, drafting] = options(&model, 0.0, 2);
        let [expected, found] =
            [plain, drafting].map(|own| model.generate_tokens(&PROMPT, &own).unwrap().complete().unwrap());
        assert_eq!((text(&found), found.usage.accepted_tokens), (text(&expected), 0), "{engine}");
    }
}

#[test]
fn requests_of_an_engine_draft_each_by_their_own_states() {
    for name in engines() {
        let model = open(name);
        let [plain, drafting] = options(&model, 0.0, 2);
        let engine = Engine::new(model.clone()).unwrap();
        // The second prompt is longer than a step, and the third begins as the first does.
        let long: Vec<TokenId> = PROMPT.iter().copied().cycle().take(400).collect();
        let prompts = [&PROMPT[..], &long, &PROMPT[..13]];
        let streams = prompts.map(|prompt| engine.generate_tokens(prompt, &drafting).unwrap());
        for (prompt, stream) in prompts.into_iter().zip(streams) {
            let expected = model.generate_tokens(prompt, &plain).unwrap().complete().unwrap();
            let found = stream.complete().unwrap();
            assert_eq!(text(&found), text(&expected), "{name}, a prompt of {} tokens", prompt.len());
            assert!(found.usage.accepted_tokens > 20, "{name}: {:?}", found.usage);
        }
    }
}

/// Nobody knows the states of what was not computed: the head begins behind it.
#[test]
fn a_prompt_whose_beginning_is_reused_is_drafted_for() {
    let options = exact("portable").with_draft_head();
    let fresh = Model::open_with(checkpoint("deepseek_v3"), &options).unwrap();
    let model = fresh.clone().with_prefix_cache(PrefixCache::new(1 << 24));
    let [plain, drafting] = self::options(&model, 0.0, 1);
    let long = PROMPT.repeat(10);
    for (prompt, reuses) in [(&long[..150], false), (&long[..], true)] {
        let expected = fresh.generate_tokens(prompt, &plain).unwrap().complete().unwrap();
        let found = model.generate_tokens(prompt, &drafting).unwrap().complete().unwrap();
        assert_eq!(text(&found), text(&expected));
        assert_eq!(found.usage.reused_tokens > 0, reuses, "{:?}", found.usage);
        assert!(found.usage.drafted_tokens > 20, "{:?}", found.usage);
    }
}

/// Drafts a token that is wrong as often as not, and notes which positions it got states of.
#[derive(Clone, Debug, Default)]
struct Listener(Arc<Mutex<Vec<Range<usize>>>>);

impl DraftSource for Listener {
    fn drafter(&self, _: &DraftContext<'_>) -> Result<Box<dyn Drafter>, Error> {
        Ok(Box::new(self.clone()))
    }
}

impl Drafter for Listener {
    fn draft(&mut self, tokens: &[TokenId], most: usize) -> Result<Vec<TokenId>, Error> {
        let drafts = (0..most).map(|index| (tokens.len() + index) as TokenId % 64);
        Ok(drafts.collect())
    }

    fn reads_states(&self) -> bool {
        true
    }

    fn add_states(&mut self, first: usize, states: &[f32]) {
        assert!(states.iter().all(|element| element.is_finite()));
        self.0.lock().unwrap().push(first..first + states.len() / 8);
    }
}

#[test]
fn a_source_of_ones_own_gets_the_states_that_the_model_returns() {
    let reference = ReferenceBackend::new();
    for returned in [true, false] {
        let load = LoadOptions::default().with_output_states(returned);
        let engine = reference.load(&ReferenceBackend::source(), &load).unwrap();
        assert_eq!(engine.capabilities().output_states, returned.then_some(8));
        let model = Model::from_parts(engine, None);
        let options = Options::new(30).with_ignore_stop(true);
        let expected = model.generate_tokens(&[1, 2, 3], &options).unwrap().complete().unwrap();
        let listener = Listener::default();
        let options = options.with_speculation(Speculation::new(listener.clone()).with_width(2));
        let found = model.generate_tokens(&[1, 2, 3], &options).unwrap().complete().unwrap();
        assert_eq!(found.tokens, expected.tokens);
        let heard = std::mem::take(&mut *listener.0.lock().unwrap());
        assert_eq!(heard.is_empty(), !returned);
        // Each begins within or at the end of those before it: at the first token that was not accepted.
        let mut end = 0;
        for range in heard {
            assert!(range.start <= end && range.end > range.start, "{range:?} behind {end}");
            end = range.end;
        }
        assert!(!returned || end >= 32, "{end}");
    }
}

fn refused<T>(result: Result<T, Error>, kind: ErrorKind, says: &str) {
    let error = result.map(drop).unwrap_err();
    assert!(error.kind() == kind && error.to_string().contains(says), "{}: {error}", error.kind());
}

#[test]
fn what_cannot_draft_is_refused_by_name() {
    let backend = select_backend(Some("portable")).unwrap();
    let folder = checkpoint("qwen3_5_text-trained");
    let plain = Model::load(&backend, &folder, &LoadOptions::default()).unwrap();
    refused(plain.draft_head(), ErrorKind::NotFound, "with_draft_head");
    refused(DraftHead::new(plain.engine().clone()), ErrorKind::InvalidInput, "no draft head");

    let head = open("portable").draft_head().unwrap();
    let drafting = Options::new(9).with_speculation(Speculation::new(head.clone()));
    refused(plain.generate_tokens(&PROMPT, &drafting), ErrorKind::Unsupported, "with_draft_head");
    let other = OpenOptions::default().with_backend("portable").with_draft_head();
    let other = Model::open_with(checkpoint("deepseek_v3"), &other).unwrap();
    refused(other.generate_tokens(&PROMPT, &drafting), ErrorKind::InvalidInput, "another model");

    let llama = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../fixtures/architectures/llama");
    let options = OpenOptions::default().with_backend("portable").with_draft_head();
    refused(Model::open_with(&llama, &options), ErrorKind::Unsupported, "llama");
    refused(
        ReferenceBackend::new().load(
            &ReferenceBackend::source(),
            &LoadOptions::default().with_part(mlxcel_session::mlxcel_core::ModelPart::DraftHead),
        ),
        ErrorKind::Unsupported,
        "draft head",
    );
}

#[test]
fn the_memory_of_the_head_is_counted() {
    let folder = checkpoint("qwen3_5_text-trained");
    let options = OpenOptions::default().with_backend("portable");
    let model = Model::estimate(&folder, &options).unwrap();
    let both = Model::estimate(&folder, &options.clone().with_draft_head()).unwrap();
    assert!(both.weights > model.weights && both.caches > model.caches, "{model:?}, {both:?}");
    let tight = options.with_memory_budget(both.total() - 1).with_draft_head();
    refused(Model::open_with(&folder, &tight), ErrorKind::ResourceExhausted, "budget");
}
