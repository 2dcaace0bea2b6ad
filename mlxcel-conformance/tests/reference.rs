//! The reference engine holds every property, with nothing excepted.
#![allow(missing_docs)]

use mlxcel_conformance::{Expectations, Subject, checks};
use mlxcel_core::Backend;
use mlxcel_core::reference::{Fault, ReferenceBackend};

fn subject() -> Subject<'static> {
    Subject::new(ReferenceBackend::new(), ReferenceBackend::source())
        .with_other_model(|| ReferenceBackend::new().with_weights_seed(1).model())
        .with_faulty(|passes| Box::new(ReferenceBackend::new().with_fault(Fault::DeviceAfterPasses(passes))))
        .with_cases(64)
}

mlxcel_conformance::suite!(subject(), Expectations::none());

#[test]
fn the_report_says_that_it_passes_everything() {
    let report = mlxcel_conformance::run_all(&subject(), &Expectations::none());
    println!("{report}");
    assert!(report.passed(), "{report}");
}

#[test]
fn a_check_is_a_function_over_any_backend() {
    let engines: [&dyn Backend; 2] = [&ReferenceBackend::new(), &ReferenceBackend::new().with_chunk(3)];
    for engine in engines {
        checks::chunked_prefill(&Subject::new(engine, ReferenceBackend::source())).unwrap();
    }
}
