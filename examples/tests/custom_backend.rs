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

mlxcel_conformance::suite!(subject(), Expectations::none());
