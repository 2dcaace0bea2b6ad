//! What crosses threads, and which pointers implement the traits.

use std::sync::Arc;

use mlxcel_core::reference::ReferenceBackend;
use mlxcel_core::{
    Backend, Capabilities, Control, Error, InferenceSession, InferenceSessionExt, LoadOptions, Model, Row,
    SessionOptions, Snapshot, TokenChoice, TokenStream,
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
