//! Who may outlive whom, and what crosses threads.

use std::sync::Arc;

use mlxcel_core::reference::ReferenceBackend;
use mlxcel_core::{
    Backend, Capabilities, Control, Error, GenerateExt, GenerateOptions, InferenceSession,
    InferenceSessionExt, LoadOptions, Model, Row, SessionOptions, Snapshot, TokenChoice, TokenStream,
};

fn is_send<T: Send>() {}
fn is_send_and_sync<T: Send + Sync>() {}

#[test]
fn backends_and_models_are_shared_and_sessions_move() {
    is_send_and_sync::<Box<dyn Backend>>();
    is_send_and_sync::<Arc<dyn Model>>();
    is_send_and_sync::<Capabilities>();
    is_send_and_sync::<Error>();
    is_send_and_sync::<Snapshot>();
    is_send::<Box<dyn InferenceSession>>();
    is_send::<TokenStream<Box<dyn InferenceSession>>>();
    is_send::<TokenChoice>();
}

#[test]
fn backend_model_and_session_may_be_dropped_in_any_order() {
    /// 0, 1 and 2 are backend, model and session; what is left when the session is not must still work.
    const ORDERS: [[usize; 3]; 6] = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
    let text = |session: &mut dyn InferenceSession| {
        session.generate_greedy(&[1, 2], &GenerateOptions::new(4)).unwrap()
    };
    let open = |model: &dyn Model| model.open_session(&SessionOptions::default()).unwrap();
    let expected = text(&mut *open(&ReferenceBackend::new().model().unwrap()));
    for order in ORDERS {
        let mut backend: Option<Box<dyn Backend>> = Some(Box::new(ReferenceBackend::new()));
        let load = |backend: &dyn Backend| {
            backend.load(&ReferenceBackend::source(), &LoadOptions::default()).unwrap()
        };
        let mut model = backend.as_deref().map(load);
        let mut session = model.as_deref().map(open);
        // A sequence is open while things go, so that its cache goes too.
        let sequence = session.as_mut().unwrap().open().unwrap();
        session.as_mut().unwrap().run_row(Row::extend(sequence, &[1]), &Control::default()).unwrap();
        for dropped in order {
            match dropped {
                0 => drop(backend.take()),
                1 => drop(model.take()),
                _ => drop(session.take()),
            }
            if let Some(session) = &mut session {
                assert_eq!(text(&mut **session), expected, "{order:?}");
            }
            if let Some(model) = &model {
                assert_eq!(text(&mut *open(model)), expected, "{order:?}");
            }
            if let Some(backend) = &backend {
                assert_eq!(text(&mut *open(&load(backend))), expected, "{order:?}");
            }
        }
    }
}

#[test]
fn sessions_of_one_model_run_on_threads_and_share_weights_alone() {
    let model = ReferenceBackend::new().model().unwrap();
    let alone = |prompt: u32| {
        let mut session = model.open_session(&SessionOptions::default()).unwrap();
        session.generate_greedy(&[prompt], &GenerateOptions::new(50)).unwrap()
    };
    let expected: Vec<_> = (0..4).map(alone).collect();
    let together: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|prompt| scope.spawn(move || alone(prompt))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(together, expected);
}

#[test]
fn references_and_boxes_implement_the_traits() {
    fn backend(backend: impl Backend) -> Arc<dyn Model> {
        backend.load(&ReferenceBackend::source(), &LoadOptions::default()).unwrap()
    }
    fn model(model: impl Model) -> Box<dyn InferenceSession> {
        assert_eq!(model.info().capacity, model.capabilities().context);
        model.open_session(&SessionOptions::default()).unwrap()
    }
    // Optional methods too: a forwarding that forgot one would answer that it is not supported.
    fn session(mut session: impl InferenceSession) -> usize {
        let first = session.open().unwrap();
        session.run_row(Row::extend(first, &[1, 2, 3]), &Control::default()).unwrap();
        let fork = session.fork(first).unwrap();
        session.rewind(fork, 2).unwrap();
        let snapshot = session.snapshot(fork).unwrap();
        let restored = session.restore(&snapshot).unwrap();
        session.state(restored).unwrap().position
    }
    let own = ReferenceBackend::new();
    let loaded = backend(&own);
    backend(Box::new(own.clone()));
    backend(Arc::new(own));
    let mut opened = model(&loaded);
    assert_eq!(session(&mut opened), 2);
    assert_eq!(session(&mut *opened), 2);
    assert_eq!(session(model(Box::new(Arc::clone(&loaded)))), 2);
    assert_eq!(session(model(loaded)), 2);
}
