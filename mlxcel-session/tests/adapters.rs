//! Requests with adapters: each text is that of its adapter, whatever runs beside it and whatever was
//! computed before.

use mlxcel_core::reference::ReferenceBackend;
use mlxcel_core::{
    AdapterLimits, Backend, Control, ErrorKind, InferenceSession, InferenceSessionExt, LoadOptions, Row,
    SamplingPlan, SequenceId, SessionOptions, Want,
};
use mlxcel_session::{
    Adapter, Engine, EngineOptions, Model, Options, PrefixCache, SequenceOptions, TokenId, Tokenizer,
};

use crate::support::{Chance, storyteller};

/// A model with room for this many adapters.
fn model(slots: usize) -> Model {
    let room = LoadOptions::default().with_adapters(AdapterLimits::new(slots, 4));
    let backend = ReferenceBackend::new().with_vocabulary(729).with_stop_tokens([1]);
    let engine = backend.load(&ReferenceBackend::source(), &room).unwrap();
    Model::from_parts(engine, Tokenizer::open(storyteller()).unwrap())
}

fn prompt() -> Vec<TokenId> {
    (0..60).map(|index| 3 + index * 7 % 700).collect()
}

/// Options that are the same but for the adapter.
fn options(adapter: Option<&Adapter>) -> Options {
    let options = Options::new(12).with_ignore_stop(true);
    adapter.map_or_else(|| options.clone(), |adapter| options.clone().with_adapter(adapter))
}

#[test]
fn requests_with_different_adapters_share_steps_and_keep_their_texts() {
    let model = model(3);
    let load = |number| model.load_adapter(ReferenceBackend::adapter(number)).unwrap();
    let loaded = [load(0), load(1), load(2)];
    let adapters: Vec<Option<&Adapter>> = std::iter::once(None).chain(loaded.iter().map(Some)).collect();
    let alone = |adapter: &Option<&Adapter>| {
        model.generate_tokens(&prompt(), &options(*adapter)).unwrap().complete().unwrap().tokens
    };
    let expected: Vec<_> = adapters.iter().map(alone).collect();
    assert!(expected[0] == expected[1] && expected[0] != expected[2] && expected[2] != expected[3]);
    // Sequences with a common beginning are copied, and kept for later ones: of the same adapter.
    for cached in [false, true] {
        let mut model = model.clone();
        if cached {
            model = model.with_prefix_cache(PrefixCache::new(1 << 20));
        }
        let engine = Engine::with_options(model, &EngineOptions::default()).unwrap();
        for round in 0..2 {
            let streams: Vec<_> = adapters
                .iter()
                .chain(&adapters)
                .map(|adapter| engine.generate_tokens(&prompt(), &options(*adapter)).unwrap())
                .collect();
            for (index, stream) in streams.into_iter().enumerate() {
                let found = stream.complete().unwrap().tokens;
                assert_eq!(found, expected[index % 4], "cached {cached}, round {round}, request {index}");
            }
        }
        assert!(engine.stats().reused_tokens > 0);
        // Two rounds of two requests for each adapter, and none without.
        let by_adapter = engine.adapter_stats();
        let mut identities: Vec<_> =
            loaded.iter().map(|adapter| Some(adapter.identity().to_owned())).collect();
        identities.sort();
        assert_eq!(by_adapter.iter().map(|stats| stats.adapter.clone()).collect::<Vec<_>>(), identities);
        for stats in &by_adapter {
            let found = (stats.requests, stats.prompt_tokens, stats.generated_tokens);
            assert_eq!(found, (4, 4 * prompt().len() as u64, 4 * 12), "cached {cached}");
            assert!(stats.reused_tokens > 0);
        }
    }
}

#[test]
fn a_prefix_cache_reuses_what_the_same_adapter_computed() {
    let model = model(2).with_prefix_cache(PrefixCache::new(1 << 20));
    let [first, second] = [1, 2].map(|number| model.load_adapter(ReferenceBackend::adapter(number)).unwrap());
    let run = |adapter| model.generate_tokens(&prompt(), &options(adapter)).unwrap().complete().unwrap();
    for adapter in [None, Some(&first), Some(&second)] {
        let (cold, warm) = (run(adapter), run(adapter));
        assert_eq!((cold.usage.reused_tokens, cold.tokens == warm.tokens), (0, true));
        assert_eq!(warm.usage.reused_tokens, prompt().len() - 1);
    }
}

#[test]
fn a_conversation_with_another_adapter_begins_anew() {
    let model = model(2);
    let poems = model.load_adapter(ReferenceBackend::adapter(1)).unwrap();
    let mut conversation = model.conversation().unwrap();
    conversation.say("Once upon a time", &options(None)).unwrap().complete().unwrap();
    let own = conversation.say("And then?", &options(Some(&poems))).unwrap().complete().unwrap();
    assert_eq!(own.usage.reused_tokens, 0);
    let messages = conversation.messages().to_vec();
    let alone = model.chat(&messages[..3], &options(Some(&poems))).unwrap().complete().unwrap();
    assert_eq!(own.tokens, alone.tokens);
    // A branch has the same adapter, and what it computed.
    let mut branch = conversation.fork().unwrap();
    let again = branch.say("The end?", &options(Some(&poems))).unwrap().complete().unwrap();
    assert!(again.usage.reused_tokens > 0);
}

/// Options to restore a conversation with.
fn of(adapter: &Adapter) -> SequenceOptions {
    SequenceOptions::default().with_adapter(adapter)
}

#[test]
fn a_conversation_with_an_adapter_is_restored_with_that_adapter_only() {
    let model = model(2);
    let [poems, laws] = [1, 2].map(|number| model.load_adapter(ReferenceBackend::adapter(number)).unwrap());
    let mut conversation = model.conversation().unwrap();
    conversation.say("Once upon a time", &options(Some(&poems))).unwrap().complete().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("saved");
    conversation.save_with_cache(&file).unwrap();

    for other in [SequenceOptions::default(), of(&laws)] {
        let error = model.restore_conversation_with(&file, &other).unwrap_err();
        assert_eq!((error.kind(), error.context("field")), (ErrorKind::InvalidInput, Some("adapter")));
    }
    assert_eq!(model.restore_conversation(&file).unwrap_err().kind(), ErrorKind::InvalidInput);
    let mut restored = model.restore_conversation_with(&file, &of(&poems)).unwrap();
    let position = restored.position().unwrap();
    assert_eq!(position, conversation.position().unwrap());
    let again = restored.say("The end?", &options(Some(&poems))).unwrap().complete().unwrap();
    let own = conversation.say("The end?", &options(Some(&poems))).unwrap().complete().unwrap();
    assert_eq!((again.tokens, again.usage.reused_tokens), (own.tokens, own.usage.reused_tokens));

    // A cache without an adapter is refused with one.
    let mut plain = model.conversation().unwrap();
    plain.say("Once upon a time", &options(None)).unwrap().complete().unwrap();
    plain.save_with_cache(&file).unwrap();
    let error = model.restore_conversation_with(&file, &of(&poems)).unwrap_err();
    assert_eq!((error.kind(), error.context("field")), (ErrorKind::InvalidInput, Some("adapter")));
}

#[test]
fn messages_without_a_cache_are_restored_with_any_adapter_of_the_model() {
    let own = model(1);
    let poems = own.load_adapter(ReferenceBackend::adapter(1)).unwrap();
    let mut conversation = own.conversation().unwrap();
    conversation.say("Once upon a time", &options(None)).unwrap().complete().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("saved.json");
    conversation.save(&file).unwrap();

    let mut restored = own.restore_conversation_with(&file, &of(&poems)).unwrap();
    let found = restored.say("The end?", &options(Some(&poems))).unwrap().complete().unwrap();
    let expected = conversation.say("The end?", &options(Some(&poems))).unwrap().complete().unwrap();
    assert_eq!(found.tokens, expected.tokens);
    let error = model(1).restore_conversation_with(&file, &of(&poems)).unwrap_err();
    assert_eq!((error.kind(), error.context("field")), (ErrorKind::InvalidInput, Some("adapter")));
}

#[test]
fn a_running_request_keeps_its_adapter_loaded() {
    let model = model(1);
    let full = || model.load_adapter(ReferenceBackend::adapter(2)).map(drop).unwrap_err().kind();
    let poems = model.load_adapter(ReferenceBackend::adapter(1)).unwrap();
    let expected =
        model.generate_tokens(&prompt(), &options(Some(&poems))).unwrap().complete().unwrap().tokens;
    let mut stream = model.generate_tokens(&prompt(), &options(Some(&poems))).unwrap();
    stream.next_token().unwrap().unwrap();
    drop(poems);
    assert_eq!(full(), ErrorKind::CapacityExceeded);
    assert_eq!(stream.complete().unwrap().tokens, expected);
    model.load_adapter(ReferenceBackend::adapter(2)).unwrap();
}

#[test]
fn an_adapter_of_another_model_or_without_room_is_refused() {
    let poems = model(1).load_adapter(ReferenceBackend::adapter(1)).unwrap();
    let plain = Model::from_parts(ReferenceBackend::new().model().unwrap(), None);
    let refused = |model: &Model| {
        let engine = Engine::new(model.clone()).unwrap();
        let through_engine = engine.generate_tokens(&[3, 4], &options(Some(&poems))).unwrap().complete();
        let alone = model.generate_tokens(&[3, 4], &options(Some(&poems))).map(drop);
        (alone.unwrap_err().kind(), through_engine.unwrap_err().kind())
    };
    assert_eq!(refused(&plain), (ErrorKind::Unsupported, ErrorKind::Unsupported));
    assert_eq!(refused(&model(1)), (ErrorKind::InvalidInput, ErrorKind::InvalidInput));
    let error = plain.load_adapter(ReferenceBackend::adapter(1)).unwrap_err();
    assert_eq!((error.kind(), error.context("capability")), (ErrorKind::Unsupported, Some("adapters")));
}

/// A sequence of a schedule, beside those of the engine.
#[derive(Clone, Copy)]
struct Branch {
    sequence: SequenceId,
    number: usize,
    prompt: usize,
    /// The tokens of the prompt that it holds.
    held: usize,
}

impl Branch {
    /// What follows the prompt, up to `most` tokens.
    fn text(&self, session: &mut dyn InferenceSession, prompt: &[TokenId], most: usize) -> Vec<TokenId> {
        let plan = SamplingPlan::greedy();
        let (mut text, mut next) = (Vec::new(), prompt[self.held..].to_vec());
        while text.len() < most {
            let row = Row::new(self.sequence, &next, Want::token(&plan));
            let chosen = session.run_row(row, &Control::default()).unwrap().into_token().unwrap();
            text.push(chosen.token);
            next = vec![chosen.token];
        }
        text
    }
}

#[test]
fn no_schedule_of_loads_drops_requests_and_forks_changes_a_text() {
    const SLOTS: usize = 2;
    let model = model(SLOTS);
    let prompts = [20, 21, 30].map(|length| prompt()[..length].to_vec());
    let options = |adapter: Option<&Adapter>| {
        let mut options = options(adapter);
        options.max_tokens = 5;
        options
    };
    // The texts of three adapters and of none.
    let expected: Vec<Vec<_>> = (0..4)
        .map(|number| {
            let adapter =
                (number > 0).then(|| model.load_adapter(ReferenceBackend::adapter(number)).unwrap());
            let text = |prompt: &Vec<TokenId>| {
                let stream = model.generate_tokens(prompt, &options(adapter.as_ref())).unwrap();
                stream.complete().unwrap().tokens
            };
            prompts.iter().map(text).collect()
        })
        .collect();
    let cached = model.clone().with_prefix_cache(PrefixCache::new(1 << 18));
    for seed in 0..1000 {
        let mut random = Chance(seed);
        let own = if random.below(2) == 0 { &model } else { &cached };
        let engine =
            Engine::with_options(own.clone(), &EngineOptions::default().with_sequences(1 + random.below(4)))
                .unwrap();
        let mut session = own.engine().open_session(&SessionOptions::default()).unwrap();
        let (mut loaded, mut running, mut branches) = (Vec::new(), Vec::new(), Vec::<Branch>::new());
        for _ in 0..14 {
            let operation = random.below(8);
            match operation {
                0 => {
                    let number = 1 + random.below(3);
                    match own.load_adapter(ReferenceBackend::adapter(number as u64)) {
                        Ok(adapter) => loaded.push((number, adapter)),
                        Err(error) => assert_eq!(error.kind(), ErrorKind::CapacityExceeded),
                    }
                }
                1 if !loaded.is_empty() => drop(loaded.remove(random.below(loaded.len()))),
                2 if !running.is_empty() => {
                    // Abandoned in the middle.
                    drop(running.remove(random.below(running.len())));
                }
                3 if !branches.is_empty() => {
                    let Branch { sequence, number, prompt, held } = branches[random.below(branches.len())];
                    if let Ok(sequence) = session.fork(sequence) {
                        branches.push(Branch { sequence, number, prompt, held });
                    }
                }
                4 if !branches.is_empty() => {
                    let closed = branches.remove(random.below(branches.len()));
                    session.close(closed.sequence).unwrap();
                }
                _ => {
                    let chosen = loaded.get(random.below(SLOTS + 1));
                    let (number, adapter) = chosen.map_or((0, None), |(number, own)| (*number, Some(own)));
                    let prompt = random.below(prompts.len());
                    if operation == 5 {
                        let opened = adapter.map(of).unwrap_or_default();
                        let Ok(sequence) = session.open_with(&opened) else { continue };
                        let held = 1 + random.below(prompts[prompt].len() - 1);
                        let row = Row::extend(sequence, &prompts[prompt][..held]);
                        session.run_row(row, &Control::default()).unwrap();
                        branches.push(Branch { sequence, number, prompt, held });
                    } else {
                        let stream = engine.generate_tokens(&prompts[prompt], &options(adapter)).unwrap();
                        running.push((number, prompt, stream));
                    }
                }
            }
        }
        // Their sequences keep what they need.
        drop(loaded);
        for branch in branches {
            let expected = &expected[branch.number][branch.prompt];
            let found = branch.text(&mut *session, &prompts[branch.prompt], expected.len());
            assert_eq!(found, *expected, "schedule {seed}, adapter {}, a fork", branch.number);
        }
        for (number, prompt, stream) in running {
            let found = stream.complete().unwrap().tokens;
            assert_eq!(found, expected[number][prompt], "schedule {seed}, adapter {number}");
        }
    }
}
