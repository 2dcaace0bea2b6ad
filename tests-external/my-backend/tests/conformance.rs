//! The engine, proved by the test kit.

use mlxcel_conformance::{Expectations, Subject, suite};
use mlxcel_core::{Backend, FaultPoint, LoadOptions, ModelSource};
use my_backend::MyBackend;

fn model(name: &str) -> ModelSource {
    ModelSource::BuiltIn(name.to_owned())
}

suite!(
    Subject::new(MyBackend::default(), model("count-to-50"))
        .with_load(LoadOptions::default().with_capacity(160))
        .with_other_model(|| MyBackend::default().load(&model("count-to-40"), &LoadOptions::default()))
        .with_faulty([FaultPoint::Dispatch], |faults| Box::new(MyBackend { faults: Some(faults) })),
    Expectations::none().skip("broken_weights_are_refused", "a model that counts has no weights")
);
