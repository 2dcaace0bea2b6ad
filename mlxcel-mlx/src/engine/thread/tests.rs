//! Look-ahead from inside: when it starts, when its result is used, and when it is discarded.

use std::path::Path;
use std::sync::Arc;

use mlxcel_core::{LoadOptions, SamplingParams, SamplingPlan, TokenMask};
use mlxcel_models::Checkpoint;

use super::*;
use crate::array::DType;
use crate::engine::compute::Compute;
use crate::engine::network::Numerics;
use crate::engine::request::Occurrence;
use crate::engine::weights::{Treatment, Weights};

const A: CacheId = CacheId(0);
const B: CacheId = CacheId(1);

fn engine(look_ahead: bool) -> Engine {
    engine_with_states(look_ahead, false)
}

/// An engine whose rows can return hidden states.
fn engine_with_states(look_ahead: bool, output_states: bool) -> Engine {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/architectures/llama");
    let checkpoint = Arc::new(Checkpoint::open(folder).unwrap());
    let options = LoadOptions::default().with_output_states(output_states);
    let decoder = checkpoint.decoder_for(&options).unwrap();
    let weights = Weights::load(&checkpoint, &decoder, Treatment::default(), &options).unwrap();
    let numerics = Numerics { activation: DType::F32, kv: DType::F32 };
    let vocabulary = decoder.vocabulary_size;
    let network = Network::new(decoder, weights, Compute::new(None), numerics, 20).unwrap();
    Engine::new(network, vocabulary, look_ahead, None)
}

fn choice(plan: SamplingPlan, history: Vec<Occurrence>) -> Choice {
    Choice { plan, mask: None, top: 0, history }
}

fn row(cache: CacheId, position: usize, tokens: &[TokenId], choice: Choice) -> RowRequest {
    let output = Output::Tokens(vec![choice]);
    let length = position + tokens.len();
    RowRequest {
        cache,
        position,
        length,
        tokens: tokens.to_vec(),
        types: Vec::new(),
        input_states: Vec::new(),
        capacity: 20,
        adapter: None,
        earlier: Earlier::Drop,
        output,
        output_states: 0,
    }
}

fn greedy(cache: CacheId, position: usize, tokens: &[TokenId]) -> RowRequest {
    row(cache, position, tokens, choice(SamplingPlan::greedy(), Vec::new()))
}

/// The tokens that a pass over `rows` chooses.
fn run(engine: &mut Engine, rows: Vec<RowRequest>) -> Vec<TokenId> {
    let reply = engine.run(PassRequest { rows }).unwrap();
    let token = |row: RowReply| row.answer.unwrap().into_token().unwrap().token;
    reply.rows.into_iter().map(token).collect()
}

#[test]
fn look_ahead_is_used_when_the_predicted_token_is_fed() {
    let (mut ahead, mut plain) = (engine(true), engine(false));
    let mut tokens = vec![5, 6, 7];
    let mut position = 0;
    for _ in 0..6 {
        let request = || vec![greedy(A, position, &tokens)];
        assert_eq!(
            ahead.ahead.iter().filter(|ahead| ahead.is(&request())).count(),
            usize::from(position > 0)
        );
        let chosen = run(&mut ahead, request());
        assert_eq!(chosen, run(&mut plain, request()));
        assert_eq!((ahead.ahead.len(), plain.ahead.len()), (1, 0));
        position += tokens.len();
        tokens = chosen;
    }
}

#[test]
fn look_ahead_is_discarded_when_another_token_is_fed() {
    let (mut ahead, mut plain) = (engine(true), engine(false));
    let both = |ahead: &mut Engine, plain: &mut Engine, position, tokens: &[TokenId]| {
        let chosen = run(ahead, vec![greedy(A, position, tokens)]);
        assert_eq!(chosen, run(plain, vec![greedy(A, position, tokens)]), "{tokens:?} at {position}");
        chosen[0]
    };
    let chosen = both(&mut ahead, &mut plain, 0, &[5, 6, 7]);
    let other = if chosen == 9 { 8 } else { 9 };
    both(&mut ahead, &mut plain, 3, &[other]);
    // Two tokens instead of one, and a rewind.
    both(&mut ahead, &mut plain, 4, &[1, 2]);
    both(&mut ahead, &mut plain, 3, &[chosen]);
    // A cache that is read and forked meanwhile has its old content.
    assert_eq!(ahead.read(A, 4).unwrap(), plain.read(A, 4).unwrap());
    for engine in [&mut ahead, &mut plain] {
        engine.fork(A, B).unwrap();
    }
    assert_eq!(run(&mut ahead, vec![greedy(B, 4, &[3])]), run(&mut plain, vec![greedy(B, 4, &[3])]));
}

#[test]
fn look_ahead_works_for_sequences_in_separate_steps() {
    let mut engine = engine(true);
    let a = run(&mut engine, vec![greedy(A, 0, &[5, 6])]);
    let b = run(&mut engine, vec![greedy(B, 0, &[8])]);
    assert_eq!(engine.ahead.len(), 2);
    assert!(engine.ahead.iter().any(|ahead| ahead.is(&[greedy(A, 2, &a)])));
    // Batched, they are another pass.
    run(&mut engine, vec![greedy(A, 2, &a), greedy(B, 1, &b)]);
    assert_eq!(engine.ahead.len(), 1);
    engine.forget(A);
    assert_eq!((engine.ahead.len(), engine.caches.len()), (0, 1));
}

#[test]
fn look_ahead_is_skipped_when_the_next_step_is_unknown() {
    let mut engine = engine(true);
    let mask = Some(TokenMask::allowing(engine.vocabulary, [3, 4]));
    let masked = Choice { mask, ..choice(SamplingPlan::greedy(), Vec::new()) };
    run(&mut engine, vec![row(A, 0, &[5], masked)]);
    assert!(engine.ahead.is_empty(), "the next mask is not known");
    run(&mut engine, vec![greedy(A, 1, &[7; 19])]);
    assert!(engine.ahead.is_empty(), "the sequence is full");
    let extend = RowRequest { output: Output::Nothing, ..greedy(B, 0, &[5]) };
    assert!(engine.run(PassRequest { rows: vec![extend] }).is_ok());
    assert!(engine.ahead.is_empty(), "there is no chosen token");
}

#[test]
fn passes_with_states_neither_start_nor_use_look_ahead() {
    let mut engine = engine_with_states(true, true);
    let returning = |position, tokens: &[TokenId]| RowRequest {
        output_states: tokens.len(),
        ..greedy(A, position, tokens)
    };
    let chosen = run(&mut engine, vec![greedy(A, 0, &[5, 6])]);
    assert!(engine.ahead[0].is(&[greedy(A, 2, &chosen)]) && !engine.ahead[0].is(&[returning(2, &chosen)]));
    let reply = engine.run(PassRequest { rows: vec![returning(2, &chosen)] }).unwrap();
    assert_eq!(reply.rows[0].states.len(), engine.network.hidden_size());
    assert!(engine.ahead.is_empty());
}

#[test]
fn look_ahead_penalties_include_the_pending_token() {
    let mut params = SamplingParams::greedy();
    (params.repetition_penalty, params.frequency_penalty) = (Some(1.5), Some(0.7));
    let everything = mlxcel_core::Capabilities::new(1, 1)
        .with_sampling(mlxcel_core::SamplingField::ALL.iter().copied().collect());
    let plan = SamplingPlan::negotiate(&params, &everything).unwrap().with_prompt_length(2);
    let (mut ahead, mut plain) = (engine(true), engine(false));
    let (mut held, mut next): (Vec<TokenId>, Vec<TokenId>) = (Vec::new(), vec![5, 6]);
    for _ in 0..10 {
        let history = crate::engine::rows::history(&plan, &held, &next);
        let request = || vec![row(A, held.len(), &next, choice(plan.clone(), history.clone()))];
        let chosen = run(&mut ahead, request());
        assert_eq!(chosen, run(&mut plain, request()));
        held.extend(&next);
        next = chosen;
    }
}

#[test]
fn a_cache_lost_by_look_ahead_is_an_error_until_the_sequence_closes() {
    let mut engine = engine(true);
    run(&mut engine, vec![greedy(A, 0, &[5])]);
    engine.lose(&[A], &Error::new(mlxcel_core::ErrorKind::Device, "step", "it was lost"));
    assert!(engine.read(A, 1).is_err() && engine.fork(A, B).is_err());
    // Only its own row fails.
    let rows = vec![greedy(A, 1, &[6]), greedy(B, 0, &[5])];
    let reply = engine.run(PassRequest { rows }).unwrap();
    assert_eq!(reply.rows[0].answer.as_ref().unwrap_err().message(), "it was lost");
    assert!(reply.rows[1].answer.is_ok());
    engine.forget(A);
    run(&mut engine, vec![greedy(A, 0, &[5])]);
}
