//! The engine of `custom_backend`, proved by the test kit.

use mlxcel_conformance::{Expectations, Subject};
use mlxcel_core::{Backend, LoadOptions, ModelSource, TokenId};

#[path = "../src/bin/custom_backend.rs"]
#[expect(dead_code, reason = "its main is not run here")]
mod custom_backend;

use custom_backend::Reader;

/// The engine with a text of little numbers, in which the same beginnings go on in different ways.
fn subject() -> Subject<'static> {
    let text = |factor: TokenId| (0..120).map(move |n: TokenId| n * n * factor % 37).collect();
    let source = ModelSource::BuiltIn("text".to_owned());
    let other_source = source.clone();
    Subject::new(Reader::new(text(3), 40), source)
        .with_load(LoadOptions::default().with_capacity(96))
        .with_other_model(move || Reader::new(text(5), 40).load(&other_source, &LoadOptions::default()))
}

/// It computes nothing that could fail, and has no weights.
fn expectations() -> Expectations {
    let no_device = "its device is a table in memory";
    Expectations::none()
        .skip("faults_poison", no_device)
        .skip("faults_spare_the_others", no_device)
        .skip("faults_anywhere_are_recoverable", no_device)
        .skip("broken_weights_are_refused", "it has no weights")
}

mlxcel_conformance::suite!(subject(), expectations());
