//! Texts that are embedded and scored beside requests.

use std::sync::atomic::Ordering;
use std::time::Duration;

use mlxcel_session::{
    CancelToken, EmbedOptions, Engine, EngineOptions, ErrorKind, Options, ScoreOptions, TokenId,
};

use crate::harness::{Faulty, alone, endless, prompt, reference, wait_until};
use mlxcel_session::mlxcel_core::reference::ReferenceBackend;

fn texts() -> Vec<Vec<TokenId>> {
    (0..10).map(|n| prompt(n, 3 + n as usize % 4)).collect()
}

#[test]
fn texts_share_steps_and_the_session_with_requests() {
    let model = reference(4);
    let faulty = Faulty::new(&model);
    let engine = Engine::new(faulty.model()).unwrap();
    let options = EmbedOptions::default();
    let stream = engine.generate_tokens(&prompt(50, 4), &Options::new(300)).unwrap();
    assert_eq!(
        engine.embed_tokens(&texts(), &options).unwrap(),
        model.embed_tokens(&texts(), &options).unwrap()
    );
    let scores = ScoreOptions::default();
    assert_eq!(
        engine.score_all_tokens(&texts(), &scores).unwrap(),
        model.score_all_tokens(&texts(), &scores).unwrap()
    );
    // In windows over a text longer than the context.
    let context = model.capabilities().context;
    let long = [prompt(3, 2 * context), prompt(4, 5)];
    let scored = engine.score_all_tokens(&long, &scores).unwrap();
    assert_eq!(scored, model.score_all_tokens(&long, &scores).unwrap());
    assert_eq!(stream.complete().unwrap().tokens, alone(&model, &prompt(50, 4), &Options::new(300)).tokens);
    assert_eq!(faulty.open.load(Ordering::SeqCst), 1, "one session");
    let shared = faulty.steps.lock().unwrap().iter().filter(|rows| rows.len() > 2).count();
    assert!(shared >= 2, "texts share steps: {shared}");
    let stats = engine.stats();
    assert_eq!((stats.running, stats.kv_bytes), (0, 0));
}

#[test]
fn texts_wait_for_a_sequence_and_requests_go_on_behind_them() {
    let model = endless(&ReferenceBackend::new().with_delay(Duration::from_millis(1)), 1);
    let engine = Engine::with_options(model.clone(), &EngineOptions::default()).unwrap();
    let first = engine.generate_tokens(&prompt(1, 4), &Options::new(20)).unwrap();
    let second = engine.generate_tokens(&prompt(2, 4), &Options::new(20)).unwrap();
    let vectors = engine.embed_tokens(&texts(), &EmbedOptions::default()).unwrap();
    assert_eq!(vectors, model.embed_tokens(&texts(), &EmbedOptions::default()).unwrap());
    assert_eq!(first.complete().unwrap().tokens.len(), 20);
    assert_eq!(second.complete().unwrap().tokens.len(), 20);
}

#[test]
fn a_failed_call_leaves_requests_and_sequences_alone() {
    let model = reference(4);
    let engine = Engine::new(model.clone()).unwrap();
    let stream = engine.generate_tokens(&prompt(1, 4), &Options::new(200)).unwrap();
    let context = model.capabilities().context;
    let too_long = [prompt(1, 5), prompt(2, context + 1), prompt(3, 5)];
    let error = engine.embed_tokens(&too_long, &EmbedOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::CapacityExceeded);
    let cancel = CancelToken::new();
    cancel.cancel();
    let cancelled = EmbedOptions::default().with_cancel(cancel);
    assert_eq!(engine.embed_tokens(&texts(), &cancelled).unwrap_err().kind(), ErrorKind::Cancelled);
    assert!(engine.embed_tokens(&[], &EmbedOptions::default()).unwrap().is_empty());
    assert_eq!(stream.complete().unwrap().tokens.len(), 200);
    wait_until(&engine, |stats| stats.kv_bytes == 0);
    assert!(engine.shutdown(Duration::from_secs(20)));
    let error = engine.embed_tokens(&texts(), &EmbedOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled);
}
