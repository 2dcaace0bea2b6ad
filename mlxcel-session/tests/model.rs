//! Models, streams and conversations, on an engine that answers from a list.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use crate::support::{Scripted, oracle, storyteller, tokenizer_file, tokenizer_with};
use mlxcel_session::Precision;
use mlxcel_session::mlxcel_core::{Row, StepOutput};
use mlxcel_session::{
    CancelToken, Capabilities, ChatOptions, ErrorKind, FinishReason, LoadOptions, Message, Model,
    ModelSource, OpenOptions, Options, TextStream,
};

/// What follows the first prompt of the oracle.
fn stream(options: &Options) -> TextStream<'static> {
    Scripted::oracle().model().generate_tokens(&oracle()[0].prompt, options).unwrap()
}

#[test]
fn chats_and_texts_match_the_oracle_of_transformers() {
    let model = Scripted::oracle().model();
    for case in oracle() {
        let options = Options::new(case.greedy.len());
        let completion = model.stream(case.input(), &options).unwrap().complete().unwrap();
        let stopped = case.greedy.last() == Some(&1);
        let expected = if stopped { &case.greedy[..case.greedy.len() - 1] } else { &case.greedy };
        assert_eq!(completion.tokens, expected);
        assert_eq!(completion.logprobs.len(), expected.len());
        assert_eq!(completion.text, case.completion);
        assert_eq!(completion.usage.prompt_tokens, case.prompt.len());
        let reason = if stopped { FinishReason::Stop } else { FinishReason::Length };
        assert_eq!(completion.finish_reason, reason);
    }
}

#[test]
fn a_stream_yields_whole_characters_and_reports_its_usage() {
    let case = &oracle()[0];
    let mut stream =
        Scripted::oracle().model().chat(case.messages.as_ref().unwrap(), &Options::default()).unwrap();
    assert_eq!(stream.finish_reason(), None);
    let pieces: Vec<String> = stream.by_ref().map(Result::unwrap).collect();
    assert!(pieces.len() > 20 && pieces.iter().all(|piece| !piece.is_empty()));
    assert_eq!(pieces.concat(), case.completion);
    assert_eq!(stream.finish_reason(), Some(FinishReason::Stop));
    assert_eq!(stream.tokens().len(), stream.logprobs().len());
    assert!(stream.next().is_none());
}

#[test]
fn an_ignored_stop_token_is_not_part_of_the_text() {
    let case = &oracle()[0];
    let options = Options::new(case.greedy.len() + 3).with_ignore_stop(true);
    let completion = stream(&options).complete().unwrap();
    assert_eq!(completion.tokens, [&case.greedy[..], &[1, 1, 1]].concat());
    assert_eq!(completion.text, case.completion);
    assert_eq!(completion.finish_reason, FinishReason::Length);
}

#[test]
fn additional_stop_tokens_end_the_text() {
    let case = &oracle()[0];
    let options = Options::default().with_stop_tokens([case.greedy[4]]);
    assert_eq!(stream(&options).complete().unwrap().tokens, case.greedy[..4]);
}

#[test]
fn special_tokens_are_kept_or_skipped() {
    let replay = Scripted::replay(vec![vec![0, 2, 636, 3, 1]]);
    let text = |skip| {
        let options = Options::default().with_skip_special_tokens(skip);
        replay.model().generate_tokens(&[0], &options).unwrap().complete().unwrap().text
    };
    assert_eq!((text(false).as_str(), text(true).as_str()), ("<|user|>Tell<|assistant|>", "Tell"));
}

#[test]
fn host_sampling_needs_logits_from_the_engine() {
    let case = &oracle()[1];
    let options = Options::default().with_temperature(0.5).with_top_k(5).with_seed(3);
    let replay = Scripted::oracle();
    // The replayed logits leave no doubt, so a draw finds the same text.
    let completion = replay.model().generate_tokens(&case.prompt, &options).unwrap().complete().unwrap();
    assert_eq!(completion.text, case.completion);
    assert!(completion.logprobs.iter().all(|&logprob| logprob > -1e-4));
    let greedy_only = replay.with_capabilities(Capabilities::new(1, 1024));
    let error = greedy_only.model().generate_tokens(&case.prompt, &options).err().unwrap();
    assert_eq!((error.kind(), error.context("field")), (ErrorKind::Unsupported, Some("temperature")));
}

#[test]
fn invalid_prompts_are_rejected_before_any_work() {
    let replay = Scripted::oracle().with_capabilities(Capabilities::new(1, 16));
    let model = replay.model();
    let options = Options::default();
    let wrong = options.clone().with_temperature(-1.0);
    for (stream, kind) in [
        (model.generate("", &options), ErrorKind::InvalidInput),
        (model.generate_tokens(&[], &options), ErrorKind::InvalidInput),
        (model.chat(&[], &options), ErrorKind::InvalidInput),
        (model.generate_tokens(&[5, 729], &options), ErrorKind::InvalidInput),
        (model.generate_tokens(&[5; 17], &options), ErrorKind::CapacityExceeded),
        (model.generate_tokens(&[5], &wrong), ErrorKind::InvalidInput),
    ] {
        assert_eq!(stream.unwrap_err().kind(), kind);
    }
    assert!(replay.fed.lock().unwrap().is_empty());
}

#[test]
fn a_full_context_finishes_as_length() {
    let case = &oracle()[0];
    let capacity = case.prompt.len() + 5;
    let model = Scripted::oracle().with_capabilities(Capabilities::new(1, capacity)).model();
    let completion = model.generate_tokens(&case.prompt, &Options::default()).unwrap().complete().unwrap();
    assert_eq!(completion.finish_reason, FinishReason::Length);
    assert_eq!(completion.tokens, case.greedy[..6], "the last token needs no place");
}

#[test]
fn a_cancel_token_ends_a_text_between_pieces() {
    let cancel = CancelToken::new();
    let mut stream = stream(&Options::default().with_cancel(cancel.clone()));
    stream.next().unwrap().unwrap();
    cancel.cancel();
    assert_eq!(stream.by_ref().count(), 0);
    assert_eq!(stream.finish_reason(), Some(FinishReason::Cancelled));
}

#[test]
fn a_stop_string_ends_the_text_and_is_not_part_of_it() {
    let case = &oracle()[0];
    // It begins and ends within tokens.
    let (start, stop) =
        (case.completion.len() / 2 + 1, &case.completion[case.completion.len() / 2 + 1..][..9]);
    let options = Options::default().with_stop_string("never said").with_stop_string(stop);
    let mut stream = stream(&options);
    let text: String = stream.by_ref().map(Result::unwrap).collect();
    assert_eq!(text, case.completion[..case.completion.find(stop).unwrap().min(start)]);
    assert_eq!(stream.finish_reason(), Some(FinishReason::StopString));
    assert_eq!(stream.stop_string(), Some(stop));
    assert!(stream.next_token().is_none() && stream.tokens().len() < case.greedy.len());
}

#[test]
fn time_limits_and_cancel_tokens_end_a_text() {
    let limited = stream(&Options::default().with_time_limit(Duration::ZERO));
    let cancelled = stream(&Options::default());
    cancelled.cancel_token().cancel();
    for (stream, reason) in [(limited, FinishReason::TimeLimit), (cancelled, FinishReason::Cancelled)] {
        let completion = stream.complete().unwrap();
        assert_eq!((completion.finish_reason, completion.tokens.len()), (reason, 0));
    }
}

#[test]
fn a_callback_receives_pieces_and_can_stop() {
    let case = &oracle()[0];
    let mut text = String::new();
    let whole = stream(&Options::default()).complete_with(|piece| {
        text.push_str(piece);
        ControlFlow::Continue(())
    });
    assert_eq!((whole.unwrap().text, &text), (case.completion.clone(), &case.completion));
    let first = stream(&Options::default()).complete_with(|_| ControlFlow::Break(())).unwrap();
    assert_eq!(first.finish_reason, FinishReason::Cancelled);
    assert!(!first.text.is_empty() && case.completion.starts_with(&first.text));
    let usage = first.usage;
    assert_eq!((usage.prompt_tokens, usage.generated_tokens), (case.prompt.len(), first.tokens.len()));
    assert!(usage.time_to_first_token.is_some());
}

#[test]
fn a_model_without_tokenizer_accepts_only_tokens() {
    let case = &oracle()[0];
    let folder = tempfile::tempdir().unwrap();
    let model = Model::load(&Scripted::oracle(), folder.path(), &LoadOptions::default()).unwrap();
    let mut stream = model.generate_tokens(&case.prompt, &Options::default()).unwrap();
    let mut tokens = Vec::new();
    while let Some(token) = stream.next_token() {
        tokens.push(token.unwrap().token);
    }
    assert_eq!(tokens, case.greedy[..case.greedy.len() - 1]);
    assert_eq!(stream.take_text(), "");
    for error in [
        model.tokenizer().err(),
        model.generate("Once", &Options::default()).err(),
        model.chat(&[Message::user("Hi")], &Options::default()).err(),
        model.conversation().err(),
    ] {
        let error = error.unwrap();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert_eq!(error.context("path"), Some(&*folder.path().join("tokenizer.json").to_string_lossy()));
    }
}

#[test]
fn embedded_checkpoints_include_their_tokenizer() {
    static FILES: &[(&str, &[u8])] = &[
        ("tokenizer.json", include_bytes!("../../examples/models/storyteller/tokenizer.json")),
        ("chat_template.jinja", include_bytes!("../../examples/models/storyteller/chat_template.jinja")),
    ];
    let model =
        Model::load(&Scripted::oracle(), ModelSource::Embedded(FILES), &LoadOptions::default()).unwrap();
    let case = &oracle()[0];
    let completion = model.chat(case.messages.as_ref().unwrap(), &Options::default()).unwrap().complete();
    assert_eq!(completion.unwrap().text, case.completion);
}

#[test]
fn a_model_from_parts_streams_on_any_thread() {
    let model = Scripted::oracle().model();
    let again = Model::from_parts(Arc::clone(model.engine()), model.tokenizer().unwrap().clone());
    let case = &oracle()[0];
    let stream = again.generate_tokens(&case.prompt, &Options::default()).unwrap();
    let text = std::thread::spawn(move || stream.complete().unwrap().text).join().unwrap();
    assert_eq!(text, case.completion);
    assert_eq!(
        Model::from_parts(Arc::clone(model.engine()), None).tokenizer().err().unwrap().kind(),
        ErrorKind::NotFound
    );
    assert!(storyteller().is_dir());
}

/// The oracle's case of two turns: what was asked, answered, and asked again.
fn two_turns() -> (Scripted, [String; 2], [String; 2]) {
    let case =
        oracle().into_iter().find(|case| case.messages.as_ref().is_some_and(|m| m.len() == 3)).unwrap();
    let messages = case.messages.unwrap();
    let replay = Scripted::replay(vec![[case.prompt, case.greedy].concat()]);
    let questions = [messages[0].content.clone(), messages[2].content.clone()];
    (replay, questions, [messages[1].content.clone(), case.completion])
}

#[test]
fn a_conversation_computes_only_new_tokens() {
    let (replay, questions, answers) = two_turns();
    let mut conversation = replay.model().conversation().unwrap();
    for (question, answer) in questions.iter().zip(&answers) {
        let completion = conversation.say(question, &Options::default()).unwrap().complete().unwrap();
        assert_eq!(&completion.text, answer);
    }
    let roles: Vec<_> = conversation.messages().iter().map(|message| message.role.clone()).collect();
    assert_eq!(roles, ["user", "assistant", "user", "assistant"]);
    assert_eq!(conversation.messages()[1].content, answers[0]);
    // Every position was computed once: the template repeats the first turn as it was said.
    let fed = replay.fed.lock().unwrap();
    let mut position = 0;
    for (at, tokens) in fed.iter() {
        assert_eq!(*at, position);
        position += tokens.len();
    }
    assert_eq!(conversation.position().unwrap(), position);
}

#[test]
fn a_retokenized_answer_rewinds_or_recomputes() {
    let first = Scripted::replay(vec![]).model();
    let tokenizer = first.tokenizer().unwrap();
    let prompt = tokenizer.encode_chat(&[Message::user("Hi")], &ChatOptions::default()).unwrap();
    // The model spells "the" letter by letter, which no tokenizer would.
    let spelled: Vec<_> = ["t", "h", "e"].map(|letter| tokenizer.token_id(letter).unwrap()).into();
    let replay = Scripted::replay(vec![[&prompt[..], &spelled].concat()]);
    let usual = tokenizer.encode("the", false).unwrap();
    assert_ne!(usual, spelled);
    let same = usual.iter().zip(&spelled).take_while(|(a, b)| a == b).count();
    for (rewind, computed_from) in [(true, prompt.len() + same), (false, 0)] {
        let capabilities = replay.capabilities.clone().with_rewind(rewind);
        let replay = replay.clone().with_capabilities(capabilities);
        let mut conversation = replay.model().conversation().unwrap();
        assert_eq!(conversation.say("Hi", &Options::default()).unwrap().complete().unwrap().text, "the");
        replay.fed.lock().unwrap().clear();
        let second = conversation.say("Again", &Options::default()).unwrap().complete().unwrap();
        let fed = replay.fed.lock().unwrap();
        assert_eq!((fed[0].0, fed[0].0 + fed[0].1.len()), (computed_from, second.usage.prompt_tokens));
    }
}

#[test]
fn an_interrupted_answer_is_kept() {
    let (replay, questions, answers) = two_turns();
    let mut conversation = replay.model().conversation().unwrap();
    let mut stream = conversation.say(&questions[0], &Options::default()).unwrap();
    let begun: String = stream.by_ref().take(3).map(Result::unwrap).collect();
    drop(stream);
    assert!(answers[0].starts_with(&begun));
    assert_eq!(conversation.messages()[1], Message::assistant(begun));
    conversation.say(&questions[1], &Options::default()).unwrap().complete().unwrap();
    assert_eq!(conversation.messages().len(), 4);
}

#[test]
fn a_rejected_turn_is_not_part_of_the_conversation() {
    let (replay, questions, answers) = two_turns();
    let mut conversation = replay.model().conversation().unwrap();
    let error = conversation.say(&"word ".repeat(2000), &Options::default()).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::CapacityExceeded);
    assert!(conversation.messages().is_empty());
    let completion = conversation.say(&questions[0], &Options::default()).unwrap().complete().unwrap();
    assert_eq!(completion.text, answers[0]);
}

#[test]
fn the_oldest_turn_is_dropped_when_the_context_is_full() {
    let (replay, questions, answers) = two_turns();
    let mut conversation = replay.model().conversation().unwrap();
    conversation.push(Message::system("Be brief."));
    assert!(!conversation.forget_oldest_turn());
    for (question, answer) in questions.iter().zip(&answers) {
        conversation.push(Message::user(question.as_str()));
        conversation.push(Message::assistant(answer.as_str()));
    }
    assert!(conversation.forget_oldest_turn());
    let left: Vec<_> = conversation.messages().iter().map(|message| message.content.clone()).collect();
    assert_eq!(left, ["Be brief.", &questions[1], &answers[1]]);
    assert!(conversation.forget_oldest_turn());
    assert!(!conversation.forget_oldest_turn());
    assert_eq!(conversation.messages().len(), 1);
}

#[test]
fn an_empty_rendering_is_an_error_that_names_the_template() {
    let tokenizer = tokenizer_with(&tokenizer_file(), "{# nothing #}");
    let model = Model::from_parts(Arc::new(Scripted::oracle()), tokenizer);
    let refused = model.chat(&[Message::user("Hello")], &Options::new(1)).map(drop).unwrap_err();
    assert!(refused.to_string().contains("chat template"), "{refused}");
}

#[test]
fn a_models_memory_is_known_before_it_is_loaded() {
    let estimate = |load: LoadOptions| {
        let options = OpenOptions::default().with_backend("portable").with_load(load);
        Model::estimate(storyteller(), &options).unwrap()
    };
    let load = |sequences| LoadOptions::default().with_sequences(sequences).with_capacity(1000);
    let (one, four) = (estimate(load(1)), estimate(load(4)));
    assert_eq!((four.caches, four.weights), (4 * one.caches, one.weights));
    for engine in [cfg!(feature = "iree").then_some("iree"), cfg!(feature = "mlx").then_some("mlx")] {
        let Some(options) = engine.map(|name| OpenOptions::default().with_backend(name)) else { continue };
        let other = Model::estimate(storyteller(), &options.with_load(load(1))).unwrap();
        assert_eq!(other.weights, one.weights, "{engine:?}");
        assert!(other.caches.abs_diff(one.caches) < one.caches / 4, "{engine:?}: {other:?} and {one:?}");
    }
    // Room for adapters counts, whether or not any is loaded.
    let adapted = |engine: &str, slots: usize| {
        let load = LoadOptions::default().with_precision(Precision::Exact);
        let load = load.with_adapters(mlxcel_session::AdapterLimits::new(slots, 4));
        let options = OpenOptions::default().with_backend(engine).with_load(load);
        Model::estimate(storyteller(), &options).unwrap().adapters
    };
    assert_eq!((one.adapters, adapted("portable", 3)), (0, 3 * adapted("portable", 1)));
    assert!(adapted("portable", 1) > 0);
    if cfg!(feature = "mlx") {
        assert_eq!(adapted("mlx", 1), adapted("portable", 1));
    }
    let exact = estimate(load(1).with_precision(Precision::Exact));
    assert_eq!(exact.caches, 2 * one.caches, "a cache of float32 takes twice that of bfloat16");
    let options = OpenOptions::default().with_backend("portable").with_load(load(1));
    let model = Model::open_with(storyteller(), &options.clone().with_memory_budget(one.total())).unwrap();
    assert_eq!(one.weights, model.info().weight_bytes);
    // What a session holds in the end is within it.
    let mut session = model.engine().open_session(&Default::default()).unwrap();
    let sequence = session.open().unwrap();
    session.step(&[Row::extend(sequence, &[7; 1000])], &Default::default(), &mut StepOutput::new()).unwrap();
    let held = session.stats().kv_bytes;
    assert!(held <= one.caches && held * 2 > one.caches, "{held} of {}", one.caches);
    let error = Model::open_with(storyteller(), &options.with_memory_budget(one.total() - 1)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ResourceExhausted);
    for (field, bytes) in [("bytes", one.total()), ("weights", one.weights), ("caches", one.caches)] {
        assert_eq!(error.context(field), Some(bytes.to_string().as_str()));
    }
}
