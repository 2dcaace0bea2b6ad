//! The decode loop, held against an engine that counts.

use std::ops::ControlFlow;

use mlxcel_core::{
    Answer, CancelToken, Capabilities, Control, Error, ErrorKind, FinishReason, GenerateExt, GenerateOptions,
    Generation, InferenceSession, LogitsSampler, Result, Row, RowResult, SampledToken, SamplingContext,
    SamplingPlan, SequenceId, SequenceState, SessionStats, StepOutput, TokenChoice, TokenId, TokenStream,
    Want,
};

const VOCABULARY: usize = 10;

/// One sequence, in which the token after `n` is `n + 1`; what it was fed is kept.
struct Counter {
    capabilities: Capabilities,
    open: Option<Vec<TokenId>>,
}

impl Counter {
    fn new(capacity: usize) -> Self {
        Self { capabilities: Capabilities::new(1, capacity).with_logits(true), open: None }
    }

    fn tokens(&self) -> Result<&Vec<TokenId>> {
        self.open.as_ref().ok_or_else(|| Error::new(ErrorKind::NotFound, "look up", "no such sequence"))
    }
}

impl InferenceSession for Counter {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn open(&mut self) -> Result<SequenceId> {
        self.open = Some(Vec::new());
        Ok(SequenceId::new(0))
    }

    fn close(&mut self, _: SequenceId) -> Result<()> {
        self.tokens()?;
        self.open = None;
        Ok(())
    }

    fn state(&self, _: SequenceId) -> Result<SequenceState> {
        Ok(SequenceState::new(self.tokens()?.len(), self.capabilities.context))
    }

    fn step(&mut self, rows: &[Row<'_>], _: &Control<'_>, out: &mut StepOutput) -> Result<()> {
        out.clear();
        for row in rows {
            self.open.as_mut().unwrap().extend_from_slice(row.tokens);
            let token = (row.tokens.last().unwrap() + 1) % VOCABULARY as TokenId;
            out.push(Ok(match row.want {
                Want { answer: Answer::Logits, .. } => {
                    let mut logits = vec![0.0; VOCABULARY];
                    logits[token as usize] = 1.0;
                    RowResult::Logits(vec![logits])
                }
                _ => RowResult::Tokens(vec![SampledToken::new(token, -0.5)]),
            }));
        }
        Ok(())
    }

    fn stats(&self) -> SessionStats {
        SessionStats::default()
    }
}

/// Chooses the number of tokens that it was shown, so that what it was shown shows.
struct Length;

impl LogitsSampler for Length {
    fn sample(&self, _: &[f32], context: &SamplingContext<'_>) -> Result<SampledToken> {
        Ok(SampledToken::new(context.tokens.len() as TokenId, context.prompt_length as f32))
    }
}

#[test]
fn the_stop_token_ends_the_text_and_is_not_part_of_it() {
    let options = GenerateOptions::new(20).with_stop_tokens([6]);
    let generation = Counter::new(64).generate_greedy(&[1, 2], &options).unwrap();
    assert_eq!(generation.tokens, [3, 4, 5]);
    assert_eq!(generation.logprobs, [-0.5; 3]);
    assert_eq!(generation.finish_reason, FinishReason::Stop);
}

#[test]
fn the_caller_and_a_cancel_token_stop_between_tokens() {
    let mut session = Counter::new(64);
    let cancel = CancelToken::new();
    let options = GenerateOptions::new(20).with_cancel(cancel.clone());
    let stopped = session.generate_streaming_greedy(&[1], &options, &mut |_| ControlFlow::Break(())).unwrap();
    assert_eq!((stopped.tokens.len(), stopped.finish_reason), (1, FinishReason::Cancelled));
    let cancelled = session
        .generate_streaming_greedy(&[1], &options, &mut |token| {
            if token.token == 3 {
                cancel.cancel();
            }
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!((cancelled.tokens, cancelled.finish_reason), (vec![2, 3], FinishReason::Cancelled));
}

#[test]
fn a_stream_owns_its_session_and_resumes_a_sequence_that_holds_tokens() {
    let mut session: Box<dyn InferenceSession> = Box::new(Counter::new(64));
    let sequence = session.open().unwrap();
    let choice = TokenChoice::Engine(SamplingPlan::greedy());
    let mut first = TokenStream::new(session, sequence, &[1], GenerateOptions::new(2), choice).unwrap();
    assert_eq!(first.by_ref().map(|token| token.unwrap().token).collect::<Vec<_>>(), [2, 3]);
    let mut session = first.into_session();
    // The last token was given and not yet fed.
    assert_eq!(session.state(sequence).unwrap().position, 2);
    let second = TokenStream::resume(
        &mut *session,
        sequence,
        &[1, 2],
        &[3, 4],
        GenerateOptions::new(2),
        TokenChoice::Host(Box::new(Length)),
    )
    .unwrap();
    let tokens: Vec<_> = second.map(|token| token.unwrap()).map(|t| (t.token, t.logprob)).collect();
    assert_eq!(tokens, [(4, 4.0), (5, 4.0)], "the host sampler sees the history");
    assert_eq!(session.state(sequence).unwrap().position, 5, "the history was not fed again");
}

#[test]
fn pushed_tokens_are_computed_with_the_last_token() {
    let mut session = Counter::new(16);
    let sequence = session.open().unwrap();
    let choice = TokenChoice::Engine(SamplingPlan::greedy());
    let mut generation = Generation::new(&[1, 2], 16, GenerateOptions::new(4), choice).unwrap();
    assert_eq!(generation.advance(&mut session, sequence).unwrap().unwrap().token, 3);
    assert!(generation.push(5) && generation.push(6));
    assert_eq!(generation.row(sequence, usize::MAX).unwrap().tokens, [3, 5, 6]);
    assert_eq!(generation.advance(&mut session, sequence).unwrap().unwrap().token, 7);
    assert_eq!(generation.generated(), [3, 5, 6, 7]);
    assert_eq!(generation.finish_reason(), Some(FinishReason::Length));
    assert!(!generation.push(5));
    generation.complete();
    assert_eq!(generation.finish_reason(), Some(FinishReason::Stop));
}

#[test]
fn a_claimed_method_that_is_not_implemented_is_a_defect_of_the_engine() {
    let mut session = Counter::new(16);
    let sequence = session.open().unwrap();
    let error = session.rewind(sequence, 0).unwrap_err();
    assert_eq!((error.kind(), error.context("capability")), (ErrorKind::Unsupported, Some("rewind")));
    session.capabilities = session.capabilities.clone().with_rewind(true).with_fork(true).with_snapshot(true);
    let errors = [
        session.rewind(sequence, 0).unwrap_err(),
        session.fork(sequence).unwrap_err(),
        session.snapshot(sequence).unwrap_err(),
    ];
    for (error, capability) in errors.iter().zip(["rewind", "fork", "snapshot"]) {
        assert_eq!((error.kind(), error.context("capability")), (ErrorKind::Internal, Some(capability)));
    }
}
