//! How requests and engines end.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use mlxcel_session::mlxcel_core::reference::ReferenceBackend;
use mlxcel_session::mlxcel_core::{FaultPoint, Faults};
use mlxcel_session::{
    AnswerPart, Constraint, ConstraintSource, Engine, EngineOptions, ErrorKind, FinishReason, Model, Options,
    Request, Result,
};

use crate::engine::harness::{
    Faulty, alone, assert_same, begin, endless, prompt, reference, slow, wait_until,
};
use crate::engine::own_code::Follows;
use crate::support::{Scripted, cancelled, oracle};

#[test]
fn requests_can_be_cancelled_while_queued_in_prefill_and_in_decode() {
    let engine = Engine::new(slow(1)).unwrap();
    let mut decoding = begin(&engine, 1, 4, 900);
    let waiting = begin(&engine, 2, 4, 900);
    decoding.next_token().unwrap().unwrap();
    waiting.cancel_token().cancel();
    assert_eq!(waiting.complete().unwrap().finish_reason, FinishReason::Cancelled);
    decoding.cancel_token().cancel();
    while decoding.next_token().is_some() {}
    assert_eq!(decoding.finish_reason(), Some(FinishReason::Cancelled));
    // A prompt of 60 chunks.
    let steps = engine.stats().steps;
    let long = begin(&engine, 3, 960, 1);
    wait_until(&engine, |stats| stats.steps > steps + 2);
    long.cancel_token().cancel();
    let completion = long.complete().unwrap();
    assert_eq!((completion.finish_reason, completion.tokens.len()), (FinishReason::Cancelled, 0));
    let stats = engine.stats();
    assert!(stats.steps < steps + 50 && stats.cancelled == 3, "{stats:?}");
    assert_eq!((stats.running, stats.queued), (0, 0));
}

#[test]
fn a_request_with_a_cancelled_token_is_rejected() {
    let engine = Engine::new(reference(1)).unwrap();
    let options = Options::new(1).with_cancel(cancelled());
    for error in [
        engine.generate_tokens(&[1], &options).unwrap_err(),
        engine.model().generate_tokens(&[1], &options).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Cancelled);
    }
    assert_eq!(engine.stats().submitted, 0);
}

#[test]
fn deadlines_end_queued_and_running_requests() {
    let engine = Engine::new(slow(1)).unwrap();
    let limit = Options::new(1000).with_time_limit(Duration::from_millis(60));
    let running = engine.generate_tokens(&prompt(1, 4), &limit).unwrap();
    let soon = Instant::now() + Duration::from_millis(20);
    let waiting = engine.submit(Request::new(&prompt(2, 4)).with_deadline(soon)).unwrap();
    let waiting = waiting.complete().unwrap();
    assert_eq!((waiting.finish_reason, waiting.tokens.len()), (FinishReason::TimeLimit, 0));
    let running = running.complete().unwrap();
    assert_eq!(running.finish_reason, FinishReason::TimeLimit);
    assert!(!running.tokens.is_empty());
    assert_eq!(engine.stats().timed_out, 2);
}

#[test]
fn a_dropped_request_is_cancelled_and_frees_its_slot() {
    let engine = Engine::new(slow(1)).unwrap();
    let mut first = begin(&engine, 1, 4, 1000);
    first.next_token().unwrap().unwrap();
    let second = begin(&engine, 2, 4, 3);
    drop(first);
    assert_eq!(second.complete().unwrap().tokens.len(), 3);
    assert_eq!(engine.stats().cancelled, 1);
}

#[test]
fn streams_outlive_their_engine_and_the_last_ends_its_thread() {
    let faulty = Faulty::new(&reference(4));
    let engine = Engine::new(faulty.model()).unwrap();
    let open = Arc::clone(&faulty.open);
    let stream = begin(&engine, 1, 30, 200);
    let other = engine.clone().generate_tokens(&prompt(2, 30), &Options::new(1000)).unwrap();
    drop(engine);
    assert_eq!(stream.complete().unwrap().tokens.len(), 200);
    assert_eq!(open.load(Ordering::SeqCst), 1);
    drop(other);
    assert_eq!(open.load(Ordering::SeqCst), 0, "the session is closed when the last stream is dropped");
}

#[test]
fn shutdown_waits_for_requests_and_then_cancels_them() {
    let faulty = Faulty::new(&slow(4));
    let engine = Engine::with_options(faulty.model(), &EngineOptions::default().with_sequences(1)).unwrap();
    let short: Vec<_> = (0..3).map(|n| begin(&engine, n, 4, 5)).collect();
    assert!(engine.shutdown(Duration::from_secs(20)));
    assert_eq!(faulty.open.load(Ordering::SeqCst), 0);
    for stream in short {
        assert_eq!(stream.complete().unwrap().finish_reason, FinishReason::Length);
    }
    let refused = engine.generate_tokens(&[1], &Options::new(1)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Cancelled);
    assert!(engine.check().is_err());

    let engine = Engine::new(faulty.model()).unwrap();
    let long = begin(&engine, 1, 4, 1000);
    wait_until(&engine, |stats| stats.steps > 2);
    assert!(!engine.shutdown(Duration::from_millis(10)));
    assert_eq!(long.complete().unwrap().finish_reason, FinishReason::Cancelled);
    assert!(!engine.shutdown(Duration::ZERO) || faulty.open.load(Ordering::SeqCst) == 0);
}

#[test]
fn an_engine_panic_fails_every_request() {
    let mut faulty = Faulty::new(&reference(2));
    faulty.panics_at = Some(3);
    let engine = Engine::new(faulty.model()).unwrap();
    let streams: Vec<_> =
        (0..6).filter_map(|n| engine.generate_tokens(&prompt(n, 20), &Options::new(50)).ok()).collect();
    assert!(!streams.is_empty());
    for stream in streams {
        assert_eq!(stream.complete().unwrap_err().kind(), ErrorKind::Internal);
    }
    let error = engine.generate_tokens(&[1], &Options::new(1)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Internal);
    assert_eq!(engine.check().unwrap_err().kind(), ErrorKind::Internal);
    assert_eq!(engine.stats().running, 0);
    engine.shutdown(Duration::from_secs(20));
    assert_eq!(faulty.open.load(Ordering::SeqCst), 0);
}

#[test]
fn a_failed_step_fails_only_its_requests() {
    let mut faulty = Faulty::new(&reference(2));
    faulty.fails_at = Some(1);
    let model = faulty.model();
    let engine = Engine::with_options(model.clone(), &EngineOptions::default().with_sequences(1)).unwrap();
    let first = begin(&engine, 1, 4, 5);
    let second = begin(&engine, 2, 4, 5);
    assert_eq!(first.complete().unwrap_err().kind(), ErrorKind::Io);
    assert_same(&second.complete().unwrap(), &alone(&reference(2), &prompt(2, 4), &Options::new(5)));
    assert_eq!((engine.stats().failed, engine.stats().finished), (1, 1));
}

#[test]
fn requests_are_recomputed_after_a_device_fault() {
    let sound = reference(4);
    let faults = Faults::new(FaultPoint::Dispatch, 4);
    let model = endless(&ReferenceBackend::new().with_faults(faults), 4);
    let engine = Engine::new(model).unwrap();
    let streams: Vec<_> = (0..4).map(|n| begin(&engine, n, 5, 10)).collect();
    for (n, stream) in (0..).zip(streams) {
        assert_same(&stream.complete().unwrap(), &alone(&sound, &prompt(n, 5), &Options::new(10)));
    }
    assert!(engine.stats().retried > 0);
}

#[test]
fn a_repeated_fault_is_reported() {
    let engine = Engine::new(endless(&ReferenceBackend::new().with_broken_weights(), 2)).unwrap();
    let stream = begin(&engine, 1, 5, 10);
    assert_eq!(stream.complete().unwrap_err().kind(), ErrorKind::Device);
    assert_eq!((engine.stats().retried, engine.stats().failed), (1, 1));
}

/// Wakes a thread that waits for a task.
struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a task on this thread: an executor in five lines.
fn block_on<T>(task: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut task = pin!(task);
    loop {
        match task.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::park(),
        }
    }
}

#[test]
fn tasks_are_woken_for_tokens_and_for_the_end() {
    let model = reference(4);
    let engine = Engine::new(model.clone()).unwrap();
    let submit = |n| begin(&engine, n, 20, 30).into_async();
    let mut streams: Vec<_> = (0..3).map(submit).collect();
    let mut left = 3;
    while left > 0 {
        // A task that polls all of them, and is woken by any.
        left = block_on(poll_fn(|context| {
            let mut ready = false;
            let mut open = 0;
            for stream in &mut streams {
                loop {
                    match stream.poll_token(context) {
                        Poll::Ready(None) => break,
                        Poll::Ready(Some(token)) => {
                            token.unwrap();
                            ready = true;
                        }
                        Poll::Pending => {
                            open += 1;
                            break;
                        }
                    }
                }
            }
            if ready || open == 0 { Poll::Ready(open) } else { Poll::Pending }
        }));
    }
    for (n, stream) in (0..).zip(streams) {
        assert_eq!(stream.tokens(), alone(&model, &prompt(n, 20), &Options::new(30)).tokens);
    }
}

#[test]
fn async_streams_are_awaited_by_piece_by_token_and_as_a_whole() {
    let case = &oracle()[0];
    let engine = Engine::new(Scripted::oracle().model()).unwrap();
    let submit = || engine.generate_tokens(&case.prompt, &Options::default()).unwrap().into_async();
    let mut stream = submit();
    let text = block_on(async {
        let mut text = String::new();
        while let Some(piece) = stream.next().await {
            text.push_str(&piece.unwrap());
        }
        text
    });
    assert_eq!(text, case.completion);
    let whole = block_on(submit().complete()).unwrap();
    assert_eq!((&whole.text, whole.tokens.as_slice()), (&text, stream.tokens()));
    assert_eq!(Some(whole.finish_reason), stream.finish_reason());
    let mut stream = submit();
    let first = block_on(stream.next_token()).unwrap().unwrap();
    let begun = stream.take_text();
    let remainder = block_on(stream.complete()).unwrap();
    assert_eq!((first.token, begun + &remainder.text), (whole.tokens[0], text));
    let mut parts = submit().parts();
    let answer = block_on(async {
        let mut answer = String::new();
        while let Some(part) = parts.next().await {
            let AnswerPart::Answer(text) = part.unwrap() else { panic!("there is no reasoning") };
            answer.push_str(&text);
        }
        answer
    });
    assert_eq!(answer, whole.text);
}

#[cfg(feature = "async")]
#[test]
fn async_streams_and_their_parts_implement_futures_stream() {
    use futures_core::Stream;

    fn pieces<T>(stream: impl Stream<Item = mlxcel_session::Result<T>>) -> Vec<T> {
        let mut stream = pin!(stream);
        let mut pieces = Vec::new();
        while let Some(piece) = block_on(poll_fn(|context| stream.as_mut().poll_next(context))) {
            pieces.push(piece.unwrap());
        }
        pieces
    }
    let case = &oracle()[0];
    let engine = Engine::new(Scripted::oracle().model()).unwrap();
    let submit = || engine.generate_tokens(&case.prompt, &Options::default()).unwrap().into_async();
    assert_eq!(pieces(submit()).concat(), case.completion);
    let parts = pieces(submit().parts()).into_iter().map(|part| match part {
        AnswerPart::Answer(text) => text,
        other => panic!("{other:?}"),
    });
    assert_eq!(parts.collect::<String>(), case.completion);
}

/// A constraint that allows every token and takes its time to begin.
#[derive(Debug)]
struct Slow(Duration);

impl ConstraintSource for Slow {
    fn start(&self, model: &Model) -> Result<Box<dyn Constraint>> {
        std::thread::sleep(self.0);
        Ok(Box::new(Follows::new(model)))
    }
}

#[test]
fn time_limits_include_the_beginning_of_a_constraint() {
    let model = reference(2);
    let engine = Engine::new(model.clone()).unwrap();
    let limit = Duration::from_millis(20);
    let slow = Options::new(8).with_constraint(Slow(2 * limit));
    let limited = slow.clone().with_time_limit(limit);
    let tokens = prompt(1, 4);
    let request = Request::new(&tokens).with_options(slow).with_deadline(Instant::now() + limit);
    for completion in [
        model.generate_tokens(&tokens, &limited).unwrap().complete().unwrap(),
        engine.generate_tokens(&tokens, &limited).unwrap().complete().unwrap(),
        engine.submit(request).unwrap().complete().unwrap(),
    ] {
        assert_eq!((completion.tokens.len(), completion.finish_reason), (0, FinishReason::TimeLimit));
    }
}
