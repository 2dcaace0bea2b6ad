//! Files that an earlier version wrote are read, or rejected by name; `frozen/VERSION` has them as that
//! version wrote them.

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::storyteller;
use mlxcel_session::mlxcel_core::reference::ReferenceBackend;
use mlxcel_session::mlxcel_core::{Control, InferenceSession, Row, SessionOptions, Snapshot};
use mlxcel_session::{Conversation, ErrorKind, Message, Model, Options, PrefixCache, TokenId, Tokenizer};

const SNAPSHOT: &str = "snapshot";
const CONVERSATION: &str = "conversation.json";
const CACHED: &str = "conversation";
const PREFIXES: &str = "prefixes";

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/frozen/0.1")
}

fn model() -> Model {
    let engine = ReferenceBackend::new().with_vocabulary(729).with_stop_tokens([]);
    Model::from_parts(engine.model().unwrap(), Tokenizer::open(storyteller()).unwrap())
}

fn tokens() -> Vec<TokenId> {
    (0..20).map(|i| i * 7 % 60).collect()
}

fn sequence(session: &mut dyn InferenceSession) -> Snapshot {
    let sequence = session.open().unwrap();
    session.step(&[Row::extend(sequence, &tokens())], &Control::default(), &mut Default::default()).unwrap();
    session.snapshot(sequence).unwrap()
}

/// The answer of a conversation that begins as the saved one does.
fn answer(conversation: &mut Conversation) -> (String, usize) {
    let completion = conversation.say("And then?", &Options::new(8)).unwrap().complete().unwrap();
    (completion.text, completion.usage.reused_tokens)
}

fn begun(model: &Model) -> Conversation {
    let mut conversation = model.conversation().unwrap();
    conversation.push(Message::system("Be brief."));
    conversation.say("Who is Pip?", &Options::new(8)).unwrap().complete().unwrap();
    conversation
}

#[test]
fn snapshots_of_earlier_versions_are_restored() {
    let snapshot = Snapshot::from_bytes(&fs::read(folder().join(SNAPSHOT)).unwrap()).unwrap();
    let mut session = model().engine().open_session(&SessionOptions::default()).unwrap();
    assert_eq!(snapshot, sequence(&mut *session));
    session.restore(&snapshot).unwrap();
}

#[test]
fn conversations_of_earlier_versions_continue() {
    let model = model();
    let (expected, _) = answer(&mut begun(&model));
    for (file, cached) in [(CONVERSATION, false), (CACHED, true)] {
        let mut conversation = model.restore_conversation(folder().join(file)).unwrap();
        let (text, reused) = answer(&mut conversation);
        assert_eq!((text, reused > 0), (expected.clone(), cached), "{file}");
    }
}

#[test]
fn prefix_caches_of_earlier_versions_are_loaded() {
    let cache = PrefixCache::new(1 << 20);
    assert_eq!(cache.load(model().info(), &folder().join(PREFIXES)).unwrap(), 1);
}

#[test]
fn files_of_unknown_versions_are_rejected_with_their_version() {
    let later = tempfile::tempdir().unwrap();
    let path = later.path().join(CACHED);
    // The version follows the magic number of both formats.
    let with_version = |name: &str| {
        let mut bytes = fs::read(folder().join(name)).unwrap();
        bytes[8] = 200;
        bytes
    };
    fs::write(&path, with_version(CACHED)).unwrap();
    let conversation = model().restore_conversation(&path).unwrap_err();
    let snapshot = Snapshot::from_bytes(&with_version(SNAPSHOT)).unwrap_err();
    for error in [conversation, snapshot] {
        assert_eq!((error.kind(), error.context("version")), (ErrorKind::Corrupt, Some("200")));
    }
}

/// Writes the files of this version: once, when a version changes a format.
#[test]
#[ignore = "writes files into the repository"]
fn write_files_of_this_version() {
    let folder = folder();
    let model = model();
    let mut session = model.engine().open_session(&SessionOptions::default()).unwrap();
    fs::write(folder.join(SNAPSHOT), sequence(&mut *session).to_bytes()).unwrap();
    let mut conversation = begun(&model);
    conversation.save(folder.join(CONVERSATION)).unwrap();
    conversation.save_with_cache(folder.join(CACHED)).unwrap();
    let cache = PrefixCache::new(1 << 20);
    let cached = model.with_prefix_cache(cache.clone());
    cached.stream(&tokens(), &Options::new(1)).unwrap().complete().unwrap();
    cache.save(&folder.join(PREFIXES)).unwrap();
}
