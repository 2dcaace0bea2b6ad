//! Devices that are lost, have too little memory or compute wrong numbers, and the memory that models leave.

use std::sync::Arc;

use mlxcel_core::{
    Backend, Control, ErrorKind, GenerateExt, GenerateOptions, InferenceSession, InferenceSessionExt, Model,
    Result, Row, SamplingPlan, SessionOptions, TokenId,
};

use crate::layer::Layer;
use crate::{LLAMA_GREEDY, LLAMA_PROMPT, engine, llama, options, own_device};

fn load() -> Result<Arc<dyn Model>> {
    engine().load(&llama().into(), &options())
}

fn generate(model: &dyn Model) -> Result<Vec<TokenId>> {
    let mut session = model.open_session(&SessionOptions::default())?;
    Ok(session.generate_greedy(&LLAMA_PROMPT, &GenerateOptions::new(LLAMA_GREEDY.len()))?.tokens)
}

/// The next token of a sequence that is fed `tokens`.
fn next(
    session: &mut dyn InferenceSession,
    sequence: mlxcel_core::SequenceId,
    tokens: &[TokenId],
) -> Result<TokenId> {
    let plan = SamplingPlan::greedy();
    let result = session.run_row(Row::next(sequence, tokens, &plan), &Control::default())?;
    Ok(result.into_token()?.token)
}

#[test]
fn models_and_sessions_give_their_memory_back() {
    let name = "failures::models_and_sessions_give_their_memory_back";
    let Some(layer) = Layer::of_test(name) else { return };
    let mut loaded = Vec::new();
    for _ in 0..3 {
        let model = load().unwrap();
        let mut used = Vec::new();
        for _ in 0..6 {
            assert_eq!(generate(&*model).unwrap(), LLAMA_GREEDY);
            used.push(layer.bytes_in_use());
        }
        eprintln!("{used:?} bytes after each session");
        assert!(used[0] >= model.info().weight_bytes, "{used:?}");
        assert_eq!(used[5], used[1], "sessions leave memory: {used:?}");
        drop(model);
        assert_eq!(layer.bytes_in_use(), 0, "a model leaves memory");
        loaded.push(used[5]);
    }
    assert_eq!(loaded[1], loaded[2]);
}

#[test]
fn too_little_memory_is_an_error_after_which_all_goes_on() {
    let Some(layer) = Layer::of_test("failures::too_little_memory_is_an_error_after_which_all_goes_on")
    else {
        return;
    };
    let model = load().unwrap();
    assert_eq!(generate(&*model).unwrap(), LLAMA_GREEDY);
    let needed = layer.bytes_in_use();
    drop(model);
    for share in 1..16 {
        layer.limit(Some(needed * share / 16));
        match load().and_then(|model| generate(&*model)) {
            Ok(tokens) => assert_eq!(tokens, LLAMA_GREEDY, "with {share} of 16 parts of the memory"),
            Err(error) => assert_eq!(error.kind(), ErrorKind::ResourceExhausted, "{share}: {error}"),
        }
        assert_eq!(layer.bytes_in_use(), 0, "what failed leaves memory");
    }

    // Sequences that do not fit beside one that goes on.
    layer.limit(None);
    let model = load().unwrap();
    let mut session = model.open_session(&SessionOptions::default()).unwrap();
    let first = session.open().unwrap();
    assert_eq!(next(&mut *session, first, &LLAMA_PROMPT).unwrap(), LLAMA_GREEDY[0]);
    layer.limit(Some(layer.bytes_in_use()));
    let second = session.open().unwrap();
    let long: Vec<TokenId> = (0..130).collect();
    for tokens in [&long[..], &long[..1]] {
        if let Err(error) = next(&mut *session, second, tokens) {
            assert_eq!(error.kind(), ErrorKind::ResourceExhausted, "{error}");
        }
    }
    layer.limit(None);
    session.close(second).unwrap();
    for step in 1..LLAMA_GREEDY.len() {
        assert_eq!(next(&mut *session, first, &[LLAMA_GREEDY[step - 1]]).unwrap(), LLAMA_GREEDY[step]);
    }
    assert_eq!(generate(&*model).unwrap(), LLAMA_GREEDY);
}

#[test]
fn a_lost_device_is_an_error_until_it_is_opened_again() {
    let Some(layer) = Layer::of_test("failures::a_lost_device_is_an_error_until_it_is_opened_again") else {
        return;
    };
    for after_submission in [false, true] {
        let model = load().unwrap();
        let mut session = model.open_session(&SessionOptions::default()).unwrap();
        let (running, idle) = (session.open().unwrap(), session.open().unwrap());
        for sequence in [running, idle] {
            assert_eq!(next(&mut *session, sequence, &LLAMA_PROMPT).unwrap(), LLAMA_GREEDY[0]);
        }
        layer.lose(after_submission);
        let error = next(&mut *session, running, &LLAMA_GREEDY[..1]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Device, "{error}");
        assert!(session.state(running).unwrap().poisoned);
        // Of everything else on the device too.
        for error in
            [next(&mut *session, idle, &LLAMA_GREEDY[..1]).unwrap_err(), generate(&*model).unwrap_err()]
        {
            assert_eq!(error.kind(), ErrorKind::Device, "{error}");
        }
        session.close(running).unwrap();
        drop((session, model));
        layer.recover();
        assert_eq!(generate(&*load().unwrap()).unwrap(), LLAMA_GREEDY);
    }
    // While a model is loaded.
    layer.lose(false);
    let error = load().map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Device, "{error}");
    layer.recover();
    assert_eq!(generate(&*load().unwrap()).unwrap(), LLAMA_GREEDY);
}

/// Sums over as many invocations as the device does not have.
#[test]
fn a_device_that_computes_wrong_numbers_is_refused() {
    let Some(layer) = Layer::of_test("failures::a_device_that_computes_wrong_numbers_is_refused") else {
        return;
    };
    let (_, most) = own_device().subgroup_sizes.unwrap();
    layer.report_subgroups(if most <= 16 { 32 } else { 4 });
    let error = load().map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Device, "{error}");
    assert!(error.context("element_type").is_some(), "{error}");
    assert_eq!(layer.bytes_in_use(), 0);
}
