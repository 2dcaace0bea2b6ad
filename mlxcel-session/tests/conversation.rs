//! Conversations that are taken back, branched, saved and full, on the reference engine with the bundled
//! tokenizer.

use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::support::{Replay, Scripted, storyteller, tokenizer_file, tokenizer_with};
use mlxcel_session::mlxcel_core::reference::ReferenceBackend;
use mlxcel_session::{
    Capabilities, ChatOptions, Conversation, ErrorKind, Message, Model, Options, Speculation, Tokenizer,
    WhenFull,
};
use tempfile::TempDir;

fn engine() -> ReferenceBackend {
    ReferenceBackend::new().with_vocabulary(729).with_stop_tokens([])
}

fn model(engine: &ReferenceBackend) -> Model {
    Model::from_parts(engine.model().unwrap(), Tokenizer::open(storyteller()).unwrap())
}

fn options() -> Options {
    Options::new(8)
}

fn say(conversation: &mut Conversation, text: &str) -> String {
    conversation.say(text, &options()).unwrap().complete().unwrap().text
}

/// A conversation with an answer to `text`, saved with its cache to a file in a new folder.
fn saved(model: &Model, text: &str) -> (TempDir, PathBuf, Conversation) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("saved");
    let mut conversation = model.conversation().unwrap();
    say(&mut conversation, text);
    conversation.save_with_cache(&path).unwrap();
    (folder, path, conversation)
}

/// What a new conversation answers to `messages`.
fn fresh(model: &Model, messages: &[Message]) -> String {
    model.chat(messages, &options()).unwrap().complete().unwrap().text
}

/// The engine with some of its capabilities: it forks, copies, takes back, or does none of it.
fn engines() -> Vec<Model> {
    let all = engine().model().unwrap().capabilities().clone();
    assert!(all.fork && all.snapshot && all.rewind);
    let with = |fork, snapshot, rewind, sequences| {
        let mut capabilities = all.clone().with_fork(fork).with_snapshot(snapshot).with_rewind(rewind);
        capabilities.sequences = sequences;
        model(&engine().with_capabilities(capabilities))
    };
    let many = all.sequences;
    vec![
        with(true, true, true, many),
        with(true, true, true, 1),
        with(false, true, true, many),
        with(false, false, true, many),
        with(false, false, false, 1),
    ]
}

#[test]
fn branches_continue_independently_and_match_new_conversations() {
    for model in engines() {
        let mut trunk = model.conversation().unwrap();
        trunk.push(Message::system("Be brief."));
        say(&mut trunk, "Tell me a story.");
        let mut branch = trunk.fork().unwrap();
        let mut twig = branch.fork().unwrap();
        for (conversation, question) in
            [(&mut trunk, "And then?"), (&mut branch, "Why?"), (&mut twig, "And then?")]
        {
            let mut messages = conversation.messages().to_vec();
            assert_eq!(messages.len(), 3);
            let answer = say(conversation, question);
            messages.push(Message::user(question));
            assert_eq!(answer, fresh(&model, &messages), "{}", model.capabilities());
        }
        // One that ends takes nothing from the others.
        drop(branch);
        let mut messages = trunk.messages().to_vec();
        assert_eq!(messages, twig.messages());
        messages.push(Message::user("Go on."));
        assert_eq!(say(&mut trunk, "Go on."), fresh(&model, &messages));
        assert_eq!(say(&mut twig, "Go on."), fresh(&model, &messages));
    }
}

#[test]
fn branches_reuse_their_kv_cache() {
    let model = model(&engine());
    let mut trunk = model.conversation().unwrap();
    say(&mut trunk, "Tell me a long story about a duck.");
    let mut branch = trunk.fork().unwrap();
    assert_eq!(branch.position().unwrap(), trunk.position().unwrap());
    let usage = branch.say("Why?", &options()).unwrap().complete().unwrap().usage;
    assert!(usage.reused_tokens > 0 && usage.reused_tokens < usage.prompt_tokens, "{usage:?}");
}

#[test]
fn a_failed_regeneration_keeps_the_previous_answer() {
    for model in engines() {
        let mut conversation = model.conversation().unwrap();
        assert_eq!(conversation.retry(&options()).err().unwrap().kind(), ErrorKind::InvalidInput);
        say(&mut conversation, "Hello");
        let first = say(&mut conversation, "Tell me a story.");
        let again = conversation.retry(&options()).unwrap().complete().unwrap().text;
        assert_eq!(first, again);
        let answers: std::collections::HashSet<_> = (0..4)
            .map(|seed| {
                let drawn = options().with_temperature(4.0).with_seed(seed);
                conversation.retry(&drawn).unwrap().complete().unwrap().text
            })
            .collect();
        assert!(answers.len() > 1);
        let before = conversation.messages().to_vec();
        assert_eq!(before.len(), 4);
        assert!(conversation.retry(&options().with_temperature(-1.0)).is_err());
        assert_eq!(conversation.messages(), before);
    }
}

#[test]
fn turns_can_be_undone() {
    let model = model(&engine());
    let mut conversation = model.conversation().unwrap();
    conversation.push(Message::system("Be brief."));
    assert_eq!(conversation.undo(), None);
    let first = say(&mut conversation, "One");
    say(&mut conversation, "Two");
    assert_eq!(conversation.undo(), Some(Message::user("Two")));
    assert_eq!(conversation.messages().len(), 3);
    let messages =
        [Message::system("Be brief."), Message::user("One"), Message::assistant(first), Message::user("3")];
    assert_eq!(say(&mut conversation, "3"), fresh(&model, &messages));
    conversation.truncate(1);
    assert_eq!(conversation.messages(), &messages[..1]);
    assert_eq!(say(&mut conversation, "One"), fresh(&model, &messages[..2]));
}

#[test]
fn a_saved_conversation_resumes_from_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let (plain, cached) = (folder.path().join("plain.json"), folder.path().join("cached"));
    let model = model(&engine());
    let mut conversation = model.conversation().unwrap();
    conversation.push(Message::system("Sé breve.").with_field("name", "x"));
    say(&mut conversation, "Tell me a story about a fox.");
    conversation.save(&plain).unwrap();
    conversation.save_with_cache(&cached).unwrap();
    let position = conversation.position().unwrap();
    let messages = conversation.messages().to_vec();
    let expected = say(&mut conversation, "And then?");
    for (path, held) in [(&plain, 0), (&cached, position)] {
        assert_eq!(Conversation::read_messages(path).unwrap(), messages);
        let mut restored = model.restore_conversation(path).unwrap();
        assert_eq!(restored.messages(), messages);
        assert_eq!(restored.position().unwrap(), held);
        let completion = restored.say("And then?", &options()).unwrap().complete().unwrap();
        assert_eq!(completion.text, expected);
        assert_eq!(completion.usage.reused_tokens > 0, held > 0);
    }
    // Nothing but the files is left, and a second save replaces the first.
    conversation.save(&plain).unwrap();
    assert_eq!(Conversation::read_messages(&plain).unwrap().len(), 5);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    let error = conversation.save(folder.path().join("no/such/folder")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
}

#[test]
fn a_saved_cache_is_restored_by_a_model_with_one_sequence() {
    let mut capabilities = engine().model().unwrap().capabilities().clone();
    capabilities.sequences = 1;
    let model = model(&engine().with_capabilities(capabilities));
    let (_folder, path, mut conversation) = saved(&model, "Tell me a story.");
    let mut restored = model.restore_conversation(&path).unwrap();
    assert_eq!(restored.position().unwrap(), conversation.position().unwrap());
    assert_eq!(say(&mut restored, "And then?"), say(&mut conversation, "And then?"));
}

#[test]
fn an_interrupted_speculative_answer_is_saved_without_tokens_that_nobody_took() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("saved");
    let model = model(&engine());
    let options = Options::new(20);
    let known = model.conversation().unwrap().say("Hello", &options).unwrap().complete().unwrap();
    let replay = Replay { text: known.tokens, prompt: known.usage.prompt_tokens, wrong: usize::MAX };
    let speculation = Speculation::new(replay).with_width(6);
    let mut conversation = model.conversation().unwrap();
    let speculating = options.with_speculation(speculation);
    let mut stream = conversation.say("Hello", &speculating).unwrap();
    for _ in 0..2 {
        stream.next_token().unwrap().unwrap();
    }
    assert!(stream.usage().accepted_tokens > 1, "{:?}", stream.usage());
    drop(stream);
    conversation.save_with_cache(&path).unwrap();
    let mut restored = model.restore_conversation(&path).unwrap();
    assert_eq!(restored.messages(), conversation.messages());
    assert_eq!(say(&mut restored, "And then?"), say(&mut conversation, "And then?"));
}

#[test]
fn a_conversation_goes_on_after_its_sequence_could_not_be_replaced() {
    // Without rewinding, another prompt needs another sequence.
    let replay = Scripted::oracle().with_capabilities(Capabilities::new(1, 1024).with_logits(true));
    let model = replay.model();
    let mut conversation = model.conversation().unwrap();
    say(&mut conversation, "Hello");
    conversation.undo();
    replay.is_full.store(true, Ordering::SeqCst);
    let error = conversation.say("Hi", &options()).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::CapacityExceeded);
    assert_eq!(conversation.position().unwrap(), 0);
    replay.is_full.store(false, Ordering::SeqCst);
    let expected = fresh(&model, &[Message::user("Hi")]);
    assert_eq!(say(&mut conversation.fork().unwrap(), "Hi"), expected);
    assert_eq!(say(&mut conversation, "Hi"), expected);
}

#[test]
fn a_saved_cache_is_only_used_with_its_model() {
    let (_folder, path, mut conversation) = saved(&model(&engine()), "Hello");
    let other = model(&engine().with_weights_seed(7));
    let error = other.restore_conversation(&path).unwrap_err();
    assert_eq!((error.kind(), error.context("field")), (ErrorKind::InvalidInput, Some("model")));
    let error = Scripted::oracle().model().restore_conversation(&path).unwrap_err();
    assert_eq!((error.kind(), error.context("field")), (ErrorKind::InvalidInput, Some("engine")));
    assert_eq!(Conversation::read_messages(&path).unwrap(), conversation.messages());
    let mut unable = Scripted::oracle().model().conversation().unwrap();
    assert_eq!(unable.save_with_cache(&path).unwrap_err().kind(), ErrorKind::Unsupported);
}

#[test]
fn truncated_or_changed_conversation_files_are_rejected() {
    let model = model(&engine());
    let (folder, path, _) = saved(&model, "Hi");
    let whole = fs::read(&path).unwrap();
    let refused = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        let error = model.restore_conversation(&path).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    };
    for length in (0..whole.len()).step_by(1 + whole.len() / 60) {
        refused(&whole[..length]);
    }
    for at in (0..whole.len()).step_by(1 + whole.len() / 120) {
        let mut changed = whole.clone();
        changed[at] ^= 1 << (at % 8);
        refused(&changed);
    }
    for text in [
        "",
        "{}",
        "[]",
        "null",
        r#"{"format": "mlxcel-conversation", "version": 2, "messages": []}"#,
        r#"{"format": "other", "version": 1, "messages": []}"#,
        r#"{"format": "mlxcel-conversation", "version": 1, "messages": [{"role": 3}]}"#,
        r#"{"format": "mlxcel-conversation", "version": 1, "messages": [{"role": "user"}]}"#,
    ] {
        refused(text.as_bytes());
    }
    refused(format!("{}{}", "[".repeat(100_000), "]".repeat(100_000)).as_bytes());
    assert_eq!(model.restore_conversation(folder.path()).unwrap_err().kind(), ErrorKind::Corrupt);
    let missing = model.restore_conversation(folder.path().join("none")).unwrap_err();
    assert!(matches!(missing.kind(), ErrorKind::NotFound | ErrorKind::Corrupt), "{missing}");
    // A cache without its snapshot is none.
    fs::write(
        &path,
        r#"{"format": "mlxcel-conversation", "version": 1, "messages": [],
        "cache": {"engine": "x", "precision": "y", "model": "z", "tokens": [1, 2]}}"#,
    )
    .unwrap();
    assert_eq!(model.restore_conversation(&path).unwrap().position().unwrap(), 0);
}

/// The file claims a cache of terabytes and is as long, without taking any of the disk.
#[test]
fn oversized_saved_caches_are_rejected_before_reading() {
    let model = model(&engine());
    let (_folder, path, _) = saved(&model, "Hi");
    let whole = fs::read(&path).unwrap();
    let json = 20 + u64::from_le_bytes(whole[12..20].try_into().unwrap()) as usize;
    for claimed in [64 << 10, 3 << 30, 1 << 42, u64::MAX - (1 << 20)] {
        let mut file = fs::File::create(&path).unwrap();
        file.write_all(&whole[..json]).unwrap();
        file.write_all(&claimed.to_le_bytes()).unwrap();
        let length = (json as u64 + 8 + 32).saturating_add(claimed);
        // On disks without sparse files, only the header claims the length.
        let is_there = length < 1 << 43 && file.set_len(length).is_ok();
        let error = model.restore_conversation(&path).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        if is_there && claimed > 1 << 20 {
            assert!(error.context("limit").is_some(), "{error}");
        }
    }
}

#[test]
fn a_full_context_is_an_error_or_drops_the_oldest_turns() {
    let mut capabilities: Capabilities = engine().model().unwrap().capabilities().clone();
    capabilities.context = 120;
    let model = model(&engine().with_capabilities(capabilities));
    let mut conversation = model.conversation().unwrap();
    conversation.push(Message::system("Be brief."));
    let long = "the ".repeat(30);
    say(&mut conversation, &long);
    say(&mut conversation, &long);
    let before = conversation.messages().to_vec();
    let error = conversation.say(&long, &options()).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::CapacityExceeded);
    assert!(error.to_string().contains("forget_oldest_turn"), "{error}");
    assert_eq!(conversation.messages(), before);
    conversation.set_when_full(WhenFull::ForgetOldest);
    let answer = say(&mut conversation, &long);
    assert_eq!((conversation.forgotten_turns(), conversation.fork().unwrap().forgotten_turns()), (1, 1));
    assert_eq!(conversation.messages().len(), 5);
    assert_eq!(conversation.messages()[0], before[0]);
    assert_eq!(answer, fresh(&model, &conversation.messages()[..4]));
    let before = conversation.messages().to_vec();
    let error = conversation.say(&long.repeat(9), &options()).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::CapacityExceeded);
    assert!(error.to_string().contains("even alone"), "{error}");
    assert_eq!(conversation.messages(), before);
}

#[test]
fn reasoning_is_kept_separately_if_the_template_supports_it() {
    let template = "{% for m in messages %}[{{ m.role }}]{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}\
        {{ m.content }}{% endfor %}{{ '[a]' if add_generation_prompt }}";
    let tokenizer = tokenizer_with(&tokenizer_file(), template);
    let prompt = tokenizer.encode_chat(&[Message::user("Hi")], &ChatOptions::default()).unwrap();
    let answer = tokenizer.encode("<think>\nOnce\n</think>\n\nthe end", false).unwrap();
    let replay = Scripted::replay(vec![[prompt, answer].concat()]);
    let model = Model::from_parts(Arc::new(replay), tokenizer);
    let mut conversation = model.conversation().unwrap();
    let text = conversation.say("Hi", &Options::default()).unwrap().complete().unwrap().text;
    assert_eq!(text, "<think>\nOnce\n</think>\n\nthe end");
    assert_eq!(
        conversation.messages()[1],
        Message::assistant("the end").with_field("reasoning_content", "Once")
    );
}

#[cfg(unix)]
#[test]
fn saving_does_not_replace_what_is_not_a_regular_file() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let model = model(&engine());
    let mut conversation = model.conversation().unwrap();
    for path in [&*pipe, folder.path()] {
        let refused = conversation.save(path).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidInput, "{refused}");
        assert!(refused.to_string().contains(&path.display().to_string()), "{refused}");
    }
    assert!(!fs::metadata(&pipe).unwrap().is_file());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left behind");
}
