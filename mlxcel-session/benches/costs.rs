//! Fixed work, for counting instructions: `costs SCENARIO TIMES` does the work of a scenario so many times,
//! and `costs` lists the scenarios. `cargo xtask test --only costs` counts the instructions of each and
//! compares them with `costs.txt`.
//!
//! What a scenario needs is made before, whatever TIMES is, so that the difference of two counts is the work
//! alone.
#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]

use std::hint::black_box;
use std::process::ExitCode;

use mlxcel_session::mlxcel_core::Backend;
use mlxcel_session::mlxcel_core::reference::ReferenceBackend;
use mlxcel_session::{
    ChatOptions, ConstraintSource, Engine, Grammar, HostSampler, LoadOptions, LogitsSampler, Message, Model,
    OpenOptions, Options, SamplingContext, SamplingParams, Tokenizer,
};

/// Prepares the work, and does it as often as told.
type Scenario = fn(usize);

/// Each scenario by its name, and the times that make two counts differ by enough.
const SCENARIOS: [(&str, usize, Scenario); 10] = [
    ("stream: a request of 8 tokens", 200, stream),
    ("engine: 64 requests of 8 tokens at once", 10, engine),
    ("sampler: greedy, 32,000 logits", 40, |times| sample(SamplingParams::greedy(), times)),
    ("sampler: temperature, 32,000 logits", 20, |times| sample(drawn(), times)),
    ("sampler: top-k 40, top-p 0.9, min-p 0.05, penalties", 20, |times| {
        let params = drawn().with_top_k(40).with_top_p(0.9).with_min_p(0.05);
        sample(params.with_repetition_penalty(1.1).with_frequency_penalty(0.1), times);
    }),
    ("chat template: four messages", 40, render),
    ("tokenizer: 20 sentences", 10, encode),
    ("grammar: a mask of a JSON schema", 200, masks),
    ("checkpoint: opening the story teller", 1, open),
    ("portable engine: a token of the story teller", 4, decode),
];

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let [name, times] = &arguments[..] else {
        SCENARIOS.iter().for_each(|(name, times, _)| println!("{times} {name}"));
        return ExitCode::SUCCESS;
    };
    let Some((.., run)) = SCENARIOS.iter().find(|scenario| scenario.0 == name) else {
        return ExitCode::FAILURE;
    };
    run(times.parse().unwrap());
    ExitCode::SUCCESS
}

const STORY_TELLER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/models/storyteller");

fn story_teller() -> Model {
    Model::open_with(STORY_TELLER, &OpenOptions::default().with_backend("portable")).unwrap()
}

/// The reference engine: its own share of a short request is small.
fn reference(sequences: usize) -> Model {
    let load = LoadOptions::default().with_sequences(sequences);
    let backend = ReferenceBackend::new().with_stop_tokens([]);
    Model::from_parts(backend.load(&ReferenceBackend::source(), &load).unwrap(), None)
}

fn stream(times: usize) {
    let model = reference(1);
    for _ in 0..times {
        model.generate_tokens(&[5, 6, 7, 8], &Options::new(8)).unwrap().complete().unwrap();
    }
}

fn engine(times: usize) {
    let engine = Engine::new(reference(64)).unwrap();
    for _ in 0..times {
        let begin = |_| engine.generate_tokens(&[5, 6, 7, 8], &Options::new(8)).unwrap();
        let requests: Vec<_> = (0..64).map(begin).collect();
        requests.into_iter().for_each(|request| drop(request.complete().unwrap()));
    }
}

fn drawn() -> SamplingParams {
    SamplingParams::greedy().with_temperature(0.8)
}

fn sample(params: SamplingParams, times: usize) {
    // A few likely tokens and a long tail.
    let logit = |token: u32| (token.wrapping_mul(2_654_435_761) >> 8) as f32 / (1 << 21) as f32;
    let logits: Vec<f32> = (0..32_000).map(logit).collect();
    let sampler = HostSampler::new(params).unwrap();
    for _ in 0..times {
        sampler.sample(black_box(&logits), &SamplingContext::new(&[1, 2, 3, 4, 2], 1)).unwrap();
    }
}

fn render(times: usize) {
    let tokenizer = Tokenizer::open(STORY_TELLER).unwrap();
    let messages = [
        Message::system("You tell stories."),
        Message::user("Tell me a story about a fox named Pip."),
        Message::assistant("Once there was a fox named Pip."),
        Message::user("And then?"),
    ];
    for _ in 0..times {
        tokenizer.render_chat(black_box(&messages), &ChatOptions::default()).unwrap();
    }
}

fn encode(times: usize) {
    let tokenizer = Tokenizer::open(STORY_TELLER).unwrap();
    let text =
        "Once upon a time, there was a little fox who lived near the old oak by the river. ".repeat(20);
    for _ in 0..times {
        tokenizer.encode(black_box(&text), true).unwrap();
    }
}

fn masks(times: usize) {
    let model = story_teller();
    let grammar = Grammar::json_schema(serde_json::json!({
        "type": "object",
        "properties": { "name": { "type": "string" }, "age": { "type": "integer" } },
        "required": ["name", "age"],
        "additionalProperties": false
    }));
    let mut constraint = grammar.start(&model).unwrap();
    let mut done = 0;
    while done < times {
        if constraint.is_complete() {
            constraint = grammar.start(&model).unwrap();
        }
        let mask = constraint.mask().unwrap();
        let first = done % mask.vocabulary_size();
        let mut tokens = (first..mask.vocabulary_size()).chain(0..first).map(|token| token as u32);
        constraint.accept(tokens.find(|token| mask.allows(*token)).unwrap()).unwrap();
        done += 1;
    }
}

fn open(times: usize) {
    for _ in 0..times {
        black_box(story_teller());
    }
}

fn decode(times: usize) {
    let model = story_teller();
    let options = Options::new(1 + times).with_ignore_stop(true);
    model.generate_tokens(&[5, 6, 7, 8], &options).unwrap().complete().unwrap();
}
