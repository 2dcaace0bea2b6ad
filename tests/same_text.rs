//! The bundled model generates the same text for any reading pattern, batch composition and prefix reuse: on
//! every engine that is compiled in.

use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use futures_util::Stream;
use mlxcel_core::{Dry, Mirostat, SamplingPlace, SamplingPlan, Xtc};
use mlxcel_session::{
    Backend, Completion, Engine, FinishReason, LoadOptions, Message, Model, Options, Precision, PrefixCache,
    Prompt, Request, RequestStream, TokenId,
};

/// The least number of generations that are compared, all engines together.
const GENERATIONS: usize = 1000;

/// The most tokens of each text.
const TOKENS: usize = 12;

/// A request.
struct Case {
    text: &'static str,
    /// Whether the text is a user's message.
    chat: bool,
    options: Options,
}

impl Case {
    fn ask<T>(&self, with: impl FnOnce(Prompt<'_>) -> T) -> T {
        if self.chat { with((&[Message::user(self.text)]).into()) } else { with(self.text.into()) }
    }

    /// Whether engines sample the same tokens: a device samples with the engine's own generator.
    fn is_alike_on(&self, models: [&Model; 2]) -> bool {
        models.into_iter().all(|model| {
            let plan = SamplingPlan::negotiate(&self.options.sampling, model.capabilities()).unwrap();
            plan.is_greedy() || plan.place() == SamplingPlace::Host
        })
    }
}

/// Every prompt with every kind of options: 48 of them.
fn cases(round: usize) -> Vec<Case> {
    let prompts = [
        (true, "Tell me a story about a fox named Pip."),
        (true, "Write a story about Luna the owl."),
        (true, "I want to hear a story about Bruno the bear and a kite."),
        (false, "Once upon a time there was a"),
        (false, "Hugo was a brave frog. Hugo lived near the lake. One windy day, Hugo found a golden bell."),
        (false, "Nell was a happy duck."),
    ];
    let mut cases = Vec::new();
    for (place, (chat, text)) in prompts.into_iter().enumerate() {
        let greedy = Options::new(TOKENS);
        let drawn = Options::new(TOKENS).with_temperature(1.0).with_seed((100 * round + place) as u64);
        let kinds = [
            greedy.clone(),
            drawn.clone().with_temperature(0.8),
            drawn.clone().with_top_k(20).with_top_p(0.9),
            drawn.clone().with_min_p(0.02).with_repetition_penalty(1.2).with_frequency_penalty(0.3),
            drawn.clone().with_mirostat(Mirostat::new(3.0, 0.1)),
            drawn.clone().with_dry(Dry::new(0.8)).with_no_repeat_ngram(3),
            greedy.with_stop_string("a little").with_stop_string("\" said"),
            drawn.with_xtc(Xtc::new(0.5, 0.1)).with_presence_penalty(0.2).with_stop_string(" the"),
        ];
        cases.extend(kinds.map(|options| Case { text, chat, options }));
    }
    cases
}

/// What came of it.
#[derive(Debug, PartialEq)]
struct Said {
    text: String,
    tokens: Vec<TokenId>,
    end: Option<FinishReason>,
    stop_string: Option<String>,
}

impl From<Completion> for Said {
    fn from(completion: Completion) -> Self {
        let Completion { text, tokens, finish_reason, stop_string, .. } = completion;
        Self { text, tokens, end: Some(finish_reason), stop_string }
    }
}

/// What a stream of either kind said whose `text` was read.
macro_rules! said {
    ($stream:expr, $text:expr) => {
        Said {
            text: $text,
            tokens: $stream.tokens().to_vec(),
            end: $stream.finish_reason(),
            stop_string: $stream.stop_string().map(str::to_owned),
        }
    };
}

/// What a stream of either kind says to an iteration.
macro_rules! iterated {
    ($stream:expr) => {{
        let mut stream = $stream;
        let text = stream.by_ref().map(Result::unwrap).collect();
        said!(stream, text)
    }};
}

/// What a stream of either kind says to a callback.
macro_rules! called_back {
    ($stream:expr) => {{
        let mut text = String::new();
        let completion = $stream.complete_with(|piece| {
            text.push_str(piece);
            ControlFlow::Continue(())
        });
        let said = Said::from(completion.unwrap());
        assert_eq!(said.text, text);
        said
    }};
}

/// What a request says to a task, which runs without any executor's help.
fn awaited(stream: RequestStream) -> Said {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let (mut stream, mut text) = (stream.into_async(), String::new());
    loop {
        match Pin::new(&mut stream).poll_next(&mut Context::from_waker(&waker)) {
            Poll::Ready(Some(piece)) => text.push_str(&piece.unwrap()),
            Poll::Ready(None) => return said!(stream, text),
            Poll::Pending => thread::park(),
        }
    }
}

/// How a request's text is read.
const READERS: [fn(RequestStream) -> Said; 3] =
    [|stream| iterated!(stream), |stream| called_back!(stream), awaited];

fn submit(engine: &Engine, case: &Case) -> RequestStream {
    case.ask(|prompt| engine.submit(Request::new(prompt).with_options(case.options.clone()))).unwrap()
}

/// What an engine's model says to each case by itself, and how many generations were found to be the same.
struct Plain<'a> {
    cases: &'a [Case],
    said: Vec<Said>,
    same: usize,
}

impl<'a> Plain<'a> {
    fn new(model: &Model, cases: &'a [Case]) -> Self {
        let one = |case: &Case| case.ask(|prompt| model.stream(prompt, &case.options)).unwrap().complete();
        let said = cases.iter().map(|case| one(case).unwrap().into()).collect();
        Self { cases, said, same: 0 }
    }

    fn check(&mut self, number: usize, said: &Said, how: &str) {
        let Case { text, options, .. } = &self.cases[number];
        let how = || format!("{how}: {text:?} with {}", options.sampling.active_fields());
        assert_eq!(said, &self.said[number], "{}", how());
        self.same += 1;
    }

    fn check_streams(&mut self, model: &Model, how: &str) {
        for (number, case) in self.cases.iter().enumerate() {
            let stream = || case.ask(|prompt| model.stream(prompt, &case.options)).unwrap();
            self.check(number, &iterated!(stream()), &format!("iterator, {how}"));
            self.check(number, &called_back!(stream()), &format!("callback, {how}"));
        }
    }

    fn check_requests(&mut self, engine: &Engine, how: &str) {
        for (number, case) in self.cases.iter().enumerate() {
            for (reader, read) in READERS.iter().enumerate() {
                self.check(number, &read(submit(engine, case)), &format!("request {reader} alone, {how}"));
            }
        }
        for together in [9, 65] {
            let waves = self.cases.len().div_ceil(together);
            let numbers: Vec<_> = (0..waves * together).map(|number| number % self.cases.len()).collect();
            for wave in numbers.chunks(together) {
                let streams: Vec<_> =
                    wave.iter().map(|&number| submit(engine, &self.cases[number])).collect();
                for (place, (&number, stream)) in wave.iter().zip(streams).enumerate() {
                    let said = READERS[place % READERS.len()](stream);
                    self.check(number, &said, &format!("one of {together} requests, {how}"));
                }
            }
        }
    }
}

fn load(backend: &dyn Backend, sequences: usize) -> Model {
    let options = LoadOptions::default().with_precision(Precision::Exact);
    let options = options.with_capacity(128).with_sequences(sequences);
    Model::load(backend, crate::support::Fixture::storyteller().path, &options).unwrap()
}

/// What is greedy, or drawn on the host, is the same on every engine too: here no choice is so near that
/// rounding decides it.
#[test]
fn texts_do_not_depend_on_chunking_batch_composition_or_prefix_reuse() {
    let backends = crate::support::engines();
    // A round compares about 700 on each engine.
    let rounds = 2_usize.div_ceil(backends.len());
    let mut first: Option<(Model, Vec<Vec<Said>>)> = None;
    let mut generations = 0;
    for backend in &backends {
        let name = backend.name();
        // IREE compiles programs for each width of a batch.
        let sequences = match (name, crate::support::all()) {
            ("iree", false) => 4,
            ("iree", true) => 8,
            _ => 65,
        };
        let model = load(&**backend, sequences);
        let reusing = model.clone().with_prefix_cache(PrefixCache::new(64 << 20));
        let engines = [&model, &reusing].map(|model| Engine::new(model.clone()).unwrap());
        let mut texts = Vec::new();
        for round in 0..rounds {
            let cases = cases(round);
            let mut plain = Plain::new(&model, &cases);
            for (model, engine, how) in [(&model, &engines[0], "anew"), (&reusing, &engines[1], "reused")] {
                plain.check_streams(model, &format!("{how}, {name}"));
                plain.check_requests(engine, &format!("{how}, {name}"));
            }
            let stopped = plain.said.iter().filter(|said| said.end == Some(FinishReason::StopString)).count();
            assert!(stopped >= 3, "{stopped} texts ended at a stop string");
            if let Some((other, said)) = &first {
                for (number, case) in cases.iter().enumerate() {
                    if case.is_alike_on([&model, other]) {
                        plain.check(number, &said[round][number], &format!("the first engine and {name}"));
                    }
                }
            }
            generations += plain.same;
            texts.push(plain.said);
        }
        let hits = reusing.prefix_cache().unwrap().stats().hits;
        assert!(hits >= 100, "{hits} prefixes were reused");
        first.get_or_insert((model, texts));
    }
    assert!(generations >= GENERATIONS, "{generations} generations");
}

#[cfg(feature = "portable")]
#[test]
fn streams_of_several_threads_are_batched() {
    const THREADS: usize = 8;
    let model = load(&mlxcel_session::portable::PortableBackend::new(), THREADS);
    let cases: Vec<_> = cases(0).into_iter().step_by(5).take(THREADS).collect();
    let expected = Plain::new(&model, &cases).said;
    let engine = Engine::new(model).unwrap();
    let barrier = std::sync::Barrier::new(THREADS);
    thread::scope(|scope| {
        for (case, expected) in cases.iter().zip(&expected) {
            let (engine, barrier) = (engine.clone(), &barrier);
            scope.spawn(move || {
                barrier.wait();
                assert_eq!(&iterated!(submit(&engine, case)), expected);
            });
        }
    });
    let stats = engine.stats();
    assert!(2 * stats.passes < stats.generated_tokens, "{stats:?}");
}
