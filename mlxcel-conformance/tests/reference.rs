//! The reference engine holds every property, with nothing excepted.

use mlxcel_conformance::{CheckResult, Expectations, Need, Subject, checks};
use mlxcel_core::reference::ReferenceBackend;
use mlxcel_core::{AdapterLimits, Backend, Capability, FaultPoint, LoadOptions};

/// Where the engine can fail.
const POINTS: [FaultPoint; 3] = [FaultPoint::Allocation, FaultPoint::Dispatch, FaultPoint::ReadBack];

fn subject() -> Subject<'static> {
    Subject::new(ReferenceBackend::new(), ReferenceBackend::source())
        .with_other_model(|| ReferenceBackend::new().with_weights_seed(1).model())
        .with_broken_weights(|| ReferenceBackend::new().with_broken_weights().model())
        .with_faulty(POINTS, |faults| Box::new(ReferenceBackend::new().with_faults(faults)))
        .with_output_states()
        .with_adapters(AdapterLimits::new(3, 4), [0, 1, 2].map(ReferenceBackend::adapter))
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

#[test]
fn windowed_and_recurrent_engines_pass_every_claimed_check() {
    for (reference, bounded) in
        [(ReferenceBackend::new().with_window(16), 16), (ReferenceBackend::new().with_recurrence(), 1)]
    {
        let subject = Subject::new(reference, ReferenceBackend::source())
            .with_load(LoadOptions::default().with_capacity(160))
            .with_window(bounded)
            .with_bounded_state(bounded)
            .with_cases(64);
        let report = mlxcel_conformance::run_all(&subject, &Expectations::none());
        assert!(report.passed(), "{report}");
        assert!(matches!(
            report.result("rewind_forgets"),
            Some(CheckResult::Unclaimed(Need::Claimed(Capability::Rewind)))
        ));
        assert!(matches!(report.result("bounded_states_stop_growing"), Some(CheckResult::Passed)));
    }
}

/// A window that a sequence cannot outgrow forgets nothing.
#[test]
fn a_window_as_long_as_sequences_can_be_rewound() {
    let subject = Subject::new(ReferenceBackend::new().with_window(64), ReferenceBackend::source())
        .with_load(LoadOptions::default().with_capacity(64));
    assert!(subject.model().unwrap().capabilities().rewind);
    checks::rewind_forgets(&subject).unwrap();
}
