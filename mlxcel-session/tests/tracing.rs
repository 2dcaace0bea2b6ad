//! What the library does can be followed by spans.
#![allow(clippy::unwrap_used)]

mod support;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use mlxcel_session::{LoadOptions, Model, ModelSource, Options};
use support::{Scripted, oracle};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Notes the names of spans as they are made.
#[derive(Clone, Default)]
struct Names(Arc<Mutex<Vec<&'static str>>>, Arc<AtomicU64>);

impl Subscriber for Names {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, span: &Attributes<'_>) -> Id {
        self.0.lock().unwrap().push(span.metadata().name());
        Id::from_u64(self.1.fetch_add(1, Ordering::Relaxed) + 1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &Event<'_>) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[test]
fn load_prefill_and_each_token_have_spans() {
    let names = Names::default();
    let case = &oracle()[0];
    tracing::subscriber::with_default(names.clone(), || {
        let source = ModelSource::BuiltIn("replay".to_owned());
        let model = Model::load(&Scripted::oracle(), source, &LoadOptions::default()).unwrap();
        model.generate_tokens(&case.prompt, &Options::new(4)).unwrap().complete().unwrap();
    });
    let names = names.0.lock().unwrap();
    assert_eq!(*names, ["load", "prefill", "step", "step", "step"]);
}
