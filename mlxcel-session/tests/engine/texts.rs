//! Texts that are embedded and scored beside requests.

use std::sync::atomic::Ordering;
use std::time::Duration;

use mlxcel_session::{
    CancelToken, EmbedOptions, Engine, EngineOptions, ErrorKind, Model, Options, ScoreOptions, TokenId,
};

use crate::engine::harness::{Faulty, alone, begin, endless, prompt, reference, wait_until};
use crate::support::cancelled;
use mlxcel_session::mlxcel_core::reference::ReferenceBackend;

fn texts() -> Vec<Vec<TokenId>> {
    (0..10).map(|n| prompt(n, 3 + n as usize % 4)).collect()
}

/// Embeds the texts by the engine, which has to agree with the model.
fn embed(engine: &Engine, model: &Model) {
    let options = EmbedOptions::default();
    let expected = model.embed_tokens(&texts(), &options).unwrap();
    assert_eq!(engine.embed_tokens(&texts(), &options).unwrap(), expected);
}

#[test]
fn texts_share_steps_and_the_session_with_requests() {
    let model = reference(4);
    let faulty = Faulty::new(&model);
    let engine = Engine::new(faulty.model()).unwrap();
    let stream = begin(&engine, 50, 4, 300);
    embed(&engine, &model);
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
fn offline_work_keeps_its_order_and_is_bounded() {
    let model = reference(3);
    let engine =
        Engine::with_options(model.clone(), &EngineOptions::default().with_unread_tokens(1)).unwrap();
    let mut most = 0;
    // Longer and shorter ones, and one that fails.
    let prompts: Vec<_> = (0..40).map(|n| prompt(n, if n == 7 { 0 } else { 4 })).collect();
    let items =
        prompts.iter().inspect(|_| most = most.max(engine.stats().submitted - engine.stats().finished));
    let options = |prompt: &[TokenId]| Options::new(1 + prompt.iter().sum::<TokenId>() as usize % 50);
    let results: Vec<_> = engine.map(items, |prompt| options(prompt)).collect();
    assert_eq!(results.len(), 40);
    for (n, (item, completion)) in results.into_iter().enumerate() {
        assert_eq!(item, &prompts[n]);
        match completion {
            Err(error) => assert_eq!((n, error.kind()), (7, ErrorKind::InvalidInput)),
            Ok(completion) => assert_eq!(completion.tokens, alone(&model, item, &options(item)).tokens),
        }
    }
    assert!((2..=6).contains(&most), "{most} in flight");
    let mut left = engine.map(prompts, |_| Options::new(500));
    left.next();
    drop(left);
    wait_until(&engine, |stats| stats.running + stats.queued == 0);
}

#[test]
fn texts_wait_for_a_sequence_and_requests_go_on_behind_them() {
    let model = endless(&ReferenceBackend::new().with_delay(Duration::from_millis(1)), 1);
    let engine = Engine::with_options(model.clone(), &EngineOptions::default()).unwrap();
    let first = begin(&engine, 1, 4, 20);
    let second = begin(&engine, 2, 4, 20);
    embed(&engine, &model);
    assert_eq!(first.complete().unwrap().tokens.len(), 20);
    assert_eq!(second.complete().unwrap().tokens.len(), 20);
}

#[test]
fn a_request_waits_for_memory_that_texts_hold() {
    let model = endless(&ReferenceBackend::new().with_chunk(8).with_delay(Duration::from_millis(1)), 4);
    let mut faulty = Faulty::new(&model);
    faulty.is_crowded = true;
    let engine = Engine::new(faulty.model()).unwrap();
    let options = Options::new(40);
    let stream = engine.generate_tokens(&prompt(1, 400), &options).unwrap();
    wait_until(&engine, |stats| stats.computed_tokens > 0);
    (0..3).for_each(|_| embed(&engine, &model));
    let completion = stream.complete().unwrap();
    assert_eq!(completion.tokens, alone(&model, &prompt(1, 400), &options).tokens);
    assert_eq!(completion.usage.reused_tokens, 0, "it computed all tokens itself");
    assert_eq!(engine.stats().preempted, 0);
}

#[test]
fn a_cancelled_text_does_not_run_to_its_end() {
    let pass = Duration::from_millis(5);
    let model = endless(&ReferenceBackend::new().with_chunk(8).with_delay(pass), 2);
    let engine = Engine::new(model).unwrap();
    let cancel = CancelToken::new();
    let options = EmbedOptions::default().with_cancel(cancel.clone());
    std::thread::scope(|scope| {
        let embedding = scope.spawn(|| engine.embed_tokens(&[prompt(1, 1000)], &options));
        std::thread::sleep(4 * pass);
        cancel.cancel();
        assert_eq!(embedding.join().unwrap().unwrap_err().kind(), ErrorKind::Cancelled);
    });
}

#[test]
fn a_failed_call_leaves_requests_and_sequences_alone() {
    let model = reference(4);
    let engine = Engine::new(model.clone()).unwrap();
    let stream = begin(&engine, 1, 4, 200);
    let context = model.capabilities().context;
    let too_long = [prompt(1, 5), prompt(2, context + 1), prompt(3, 5)];
    let error = engine.embed_tokens(&too_long, &EmbedOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::CapacityExceeded);
    let options = EmbedOptions::default().with_cancel(cancelled());
    assert_eq!(engine.embed_tokens(&texts(), &options).unwrap_err().kind(), ErrorKind::Cancelled);
    assert!(engine.embed_tokens(&[], &EmbedOptions::default()).unwrap().is_empty());
    assert_eq!(stream.complete().unwrap().tokens.len(), 200);
    wait_until(&engine, |stats| stats.kv_bytes == 0);
    assert!(engine.shutdown(Duration::from_secs(20)));
    let error = engine.embed_tokens(&texts(), &EmbedOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled);
}
