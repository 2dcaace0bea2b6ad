//! The reference engine holds every property, with nothing excepted.
#![allow(missing_docs)]

use mlxcel_conformance::{Expectations, Subject};
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
