//! Scores, likelihoods and embeddings, on the reference engine with all that it claims and with less.

use crate::support::{Scripted, cancelled, storyteller};
use mlxcel_session::mlxcel_core::reference::ReferenceBackend;
use mlxcel_session::mlxcel_core::{
    GenerateExt, GenerateOptions, InferenceSessionExt, Row, RowResult, SessionOptions,
};
use mlxcel_session::{
    Capabilities, EmbedOptions, ErrorKind, LoadOptions, Model, Pooling, ScoreOptions, TokenId, Tokenizer,
};

fn model(context: usize, change: impl FnOnce(Capabilities) -> Capabilities) -> Model {
    let all = ReferenceBackend::new().with_vocabulary(729);
    let claimed = change(all.model().unwrap().capabilities().clone());
    let options = LoadOptions::default().with_capacity(context);
    Model::load(&all.with_capabilities(claimed), ReferenceBackend::source(), &options).unwrap()
}

fn text(length: usize) -> Vec<TokenId> {
    (0..length as TokenId).map(|index| (index * 37 + index * index % 11) % 729).collect()
}

/// The log probability of `token` after `before`, by logits of a fresh sequence.
fn expected(model: &Model, before: &[TokenId], token: TokenId) -> f64 {
    let mut session = model.engine().open_session(&SessionOptions::default()).unwrap();
    let sequence = session.open().unwrap();
    let logits =
        session.run_row(Row::logits(sequence, before), &Default::default()).unwrap().into_logits().unwrap();
    let total = logits.iter().map(|&logit| f64::from(logit).exp()).sum::<f64>().ln();
    f64::from(logits[token as usize]) - total
}

#[test]
fn every_token_is_scored_for_any_engine_capabilities() {
    let tokens = text(40);
    let whole = model(64, |all| all);
    let options = ScoreOptions::default().with_top(2);
    let score = whole.score_tokens(&tokens, &options).unwrap();
    assert_eq!((score.tokens.len(), score.logprobs.len(), score.top.len()), (40, 40, 40));
    assert_eq!((score.logprobs[0], score.top[0].len()), (None, 0));
    let mut sum = 0.0;
    for at in 1..tokens.len() {
        let expected = expected(&whole, &tokens[..at], tokens[at]);
        assert!((f64::from(score.logprobs[at].unwrap()) - expected).abs() < 1e-5, "token {at}");
        assert!(score.top[at].len() == 2 && score.top[at][0].logprob >= score.top[at][1].logprob);
        sum += expected;
    }
    assert!((score.logprob() - sum).abs() < 1e-3);
    assert!((score.perplexity() - (-sum / 39.0).exp()).abs() < 1e-2);
    let by_logits = model(64, |all| all.with_every_position(false)).score_tokens(&tokens, &options).unwrap();
    assert!((by_logits.logprob() - score.logprob()).abs() < 1e-5);
    let tokens_of = |score: &mlxcel_session::TextScore| -> Vec<TokenId> {
        score.top.iter().flatten().map(|entry| entry.token).collect()
    };
    assert_eq!(tokens_of(&by_logits), tokens_of(&score));
}

#[test]
fn a_text_beyond_the_context_is_scored_in_windows() {
    let tokens = text(50);
    let model = model(16, |all| all);
    for (stride, options) in [(8, ScoreOptions::default()), (5, ScoreOptions::default().with_stride(5))] {
        let score = model.score_tokens(&tokens, &options).unwrap();
        assert_eq!(score.logprobs.len(), 50);
        for at in 1..tokens.len() {
            // The first window that has the token.
            let begin = (0..).map(|window| window * stride).find(|begin| begin + 16 > at).unwrap();
            let expected = expected(&model, &tokens[begin..at], tokens[at]);
            let error = (f64::from(score.logprobs[at].unwrap()) - expected).abs();
            assert!(error < 1e-5, "token {at} by a stride of {stride}: {error}");
        }
    }
    let error = model.score_tokens(&tokens, &ScoreOptions::default().with_stride(16)).unwrap_err();
    assert_eq!((error.kind(), error.context("field")), (ErrorKind::InvalidInput, Some("stride")));
}

#[test]
fn continuations_share_one_prompt_for_any_engine_capabilities() {
    let prompt = text(20);
    let whole = model(64, |all| all);
    let mut session = whole.engine().open_session(&SessionOptions::default()).unwrap();
    let greedy = session.generate_greedy(&prompt, &GenerateOptions::new(4)).unwrap().tokens;
    let continuations =
        vec![greedy.clone(), vec![5], vec![9, 8, 7], [&greedy[..3], &[700]].concat(), vec![1; 30]];
    let kinds: [fn(Capabilities) -> Capabilities; 5] = [
        |all| all,
        |all| all.with_every_position(false),
        |all| all.with_fork(false),
        |all| all.with_fork(false).with_rewind(false),
        |mut all| {
            all.sequences = 2;
            all
        },
    ];
    for (kind, change) in kinds.into_iter().enumerate() {
        let model = model(64, change);
        let scores = model.likelihood_of_tokens(&prompt, &continuations, None).unwrap();
        assert_eq!(scores.len(), continuations.len());
        for (tokens, score) in continuations.iter().zip(&scores) {
            let together = [&prompt[..], tokens].concat();
            let whole = whole.score_tokens(&together, &ScoreOptions::default()).unwrap();
            let expected: f64 = whole.logprobs[20..].iter().flatten().map(|&own| f64::from(own)).sum();
            assert_eq!((&score.tokens, score.logprobs.len()), (tokens, tokens.len()));
            assert!((score.logprob() - expected).abs() < 1e-4, "kind {kind}: {tokens:?}");
        }
        let are_greedy: Vec<_> = scores.iter().map(|score| score.is_greedy).collect();
        assert_eq!(are_greedy, [true, false, false, false, false], "kind {kind}");
    }
}

#[test]
fn the_prompt_is_computed_once() {
    let replay = Scripted::replay(Vec::new());
    let model = replay.model();
    model.likelihood_of_tokens(&[5, 6, 7, 8], &[vec![9], vec![10, 11]], None).unwrap();
    let fed = replay.fed.lock().unwrap();
    let rows: Vec<(usize, &[TokenId])> = fed.iter().map(|(at, tokens)| (*at, &tokens[..])).collect();
    assert_eq!(rows, [(0, &[5, 6, 7][..]), (3, &[8]), (3, &[8]), (4, &[10])]);
}

#[test]
fn white_space_between_prompt_and_continuation_belongs_to_the_continuation() {
    let tokenizer = Tokenizer::open(storyteller()).unwrap();
    let engine = ReferenceBackend::new().with_vocabulary(729).model().unwrap();
    let model = Model::from_parts(engine, tokenizer.clone());
    let score = |prompt: &str, continuations: &[&str]| model.likelihood(prompt, continuations, None).unwrap();
    let inside = score("Once upon a time ", &["there was", "a frog"]);
    let outside = score("Once upon a time", &[" there was", " a frog"]);
    assert_eq!(inside, outside);
    let whole = tokenizer.encode("Once upon a time there was", false).unwrap();
    let prompt = tokenizer.encode("Once upon a time", false).unwrap();
    assert_eq!(inside[0].tokens, whole[prompt.len()..]);
    let scored = model.score("Once upon a time there was", &ScoreOptions::default()).unwrap();
    assert_eq!(scored.tokens, tokenizer.encode("Once upon a time there was", true).unwrap());
}

#[test]
fn embeddings_are_pooled_and_normalized() {
    let engine = ReferenceBackend::new().with_vocabulary(729).model().unwrap();
    let size = engine.capabilities().hidden_states.unwrap();
    let model = Model::from_parts(engine, Tokenizer::open(storyteller()).unwrap());
    let texts: Vec<String> = (1..=11).map(|count| "Once upon a time. ".repeat(count)).collect();
    let vectors = model.embed_all(&texts, &EmbedOptions::default()).unwrap();
    assert_eq!(vectors.len(), 11, "more than there are sequences");
    for (text, vector) in texts.iter().zip(&vectors) {
        let length: f32 = vector.iter().map(|element| element * element).sum();
        assert!(vector.len() == size && (length - 1.0).abs() < 1e-5);
        assert_eq!(&model.embed(text, &EmbedOptions::default()).unwrap(), vector);
        let plain = EmbedOptions::default().with_normalize(false).with_pooling(Pooling::Last);
        let last = model.embed(text, &plain).unwrap();
        assert_ne!(&last, vector);
        let mut session = model.engine().open_session(&SessionOptions::default()).unwrap();
        let sequence = session.open().unwrap();
        let tokens = model.tokenizer().unwrap().encode(text, true).unwrap();
        let row = Row::hidden(sequence, &tokens, Pooling::Last);
        assert_eq!(session.run_row(row, &Default::default()).unwrap(), RowResult::Hidden(last));
    }
}

#[test]
fn unsupported_scoring_and_embedding_requests_say_why() {
    let whole = model(16, |all| all);
    let options = ScoreOptions::default();
    let kind = |model: &Model, prompt: &[TokenId], continuation: Vec<TokenId>| {
        model.likelihood_of_tokens(prompt, &[continuation], None).unwrap_err().kind()
    };
    assert_eq!(kind(&whole, &[], vec![1]), ErrorKind::InvalidInput);
    assert_eq!(kind(&whole, &[1], vec![]), ErrorKind::InvalidInput);
    assert_eq!(kind(&whole, &[1; 10], vec![1; 7]), ErrorKind::CapacityExceeded);
    assert_eq!(kind(&whole, &[729, 1], vec![1]), ErrorKind::InvalidInput);
    assert_eq!(whole.score_tokens(&[3], &options).unwrap_err().kind(), ErrorKind::InvalidInput);
    let error = whole.embed_tokens(&[vec![1; 17]], &EmbedOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::CapacityExceeded);
    let error = whole.embed_tokens(&[vec![]], &EmbedOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);

    let least = model(16, |all| Capabilities::new(all.sequences, all.context));
    let lacking = [
        (least.score_tokens(&[1, 2], &options).map(drop), "every_position"),
        (least.likelihood_of_tokens(&[1], &[vec![2]], None).map(drop), "every_position"),
        (least.embed_tokens(&[vec![1]], &EmbedOptions::default()).map(drop), "hidden_states"),
    ];
    for (result, capability) in lacking {
        let error = result.unwrap_err();
        assert_eq!((error.kind(), error.context("capability")), (ErrorKind::Unsupported, Some(capability)));
    }
    let full = Capabilities::new(0, 16).with_hidden_states(Some(4));
    let full = Scripted::replay(Vec::new()).with_capabilities(full).model();
    let error = full.embed_tokens(&[vec![1]], &EmbedOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::CapacityExceeded, "an engine that claims no sequence");
    let options = ScoreOptions::default().with_cancel(cancelled());
    assert_eq!(whole.score_tokens(&[1, 2], &options).unwrap_err().kind(), ErrorKind::Cancelled);
    let options = EmbedOptions::default().with_cancel(cancelled());
    assert_eq!(whole.embed_tokens(&[vec![1]], &options).unwrap_err().kind(), ErrorKind::Cancelled);
}
