//! The kit is proved by engines that are broken on purpose, each in one way: every check kills the mutants
//! that its docs name, and every mutant is named by a check.

mod adapters;
mod answers;
mod conduct;
mod context;
mod hidden;
mod rounding;
mod rules;
mod snapshots;
mod state;
mod twist;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::{Arc, LazyLock};

use mlxcel_conformance::{Check, CheckResult, Expectations, Need, Subject, checks, run, run_all};
use mlxcel_core::reference::ReferenceBackend;
use mlxcel_core::{AdapterLimits, Backend, FaultPoint, LoadOptions};

use answers::{Reanswer, Replan, Unrefuse};
use context::Misread;
use hidden::{Recompute, Restate};
use snapshots::Adopt;
use twist::{Broken, Close, Fork, Restore, Rewind, Rows, State, Stats, Step, Twist};

/// Mutants by name, each with what it alone does.
pub(crate) type Mutants<C> = &'static [(&'static str, C)];

/// A way to break an engine.
type Break = dyn Fn(ReferenceBackend) -> Broken + Send + Sync;

/// The mutants by name.
static CATALOGUE: LazyLock<BTreeMap<&str, Box<Break>>> = LazyLock::new(|| {
    let twists = &[
        state::TWISTS,
        snapshots::TWISTS,
        rounding::TWISTS,
        rules::TWISTS,
        conduct::TWISTS,
        adapters::TWISTS,
    ];
    let steps = &[answers::STEPS, hidden::STEPS, rules::STEPS, conduct::STEPS];
    let all: Vec<_> = twisted(twists, |twist| twist())
        .chain(twisted(steps, |step| Box::new(Step(step))))
        .chain(twisted(&[answers::ROWS, conduct::ROWS], |change| Box::new(Rows(change))))
        .chain(twisted(&[state::CLOSES, rules::CLOSES, conduct::CLOSES], |close| Box::new(Close(close))))
        .chain(twisted(&[state::REWINDS], |rewind| Box::new(Rewind(rewind))))
        .chain(twisted(&[state::FORKS, adapters::FORKS], |fork| Box::new(Fork(fork))))
        .chain(twisted(&[snapshots::RESTORES], |restore| Box::new(Restore(restore))))
        .chain(twisted(&[snapshots::ADOPTIONS], |adopt| Box::new(Adopt(adopt))))
        .chain(twisted(&[rules::STATS], |change| Box::new(Stats(change))))
        .chain(twisted(&[context::MISREADS], |misread| Box::new(Misread(misread))))
        .chain(twisted(&[answers::REANSWERS, hidden::REANSWERS], |change| Box::new(Reanswer(change))))
        .chain(twisted(&[answers::UNREFUSALS], |answer| Box::new(Unrefuse(answer))))
        .chain(twisted(&[answers::REPLANS], |change| Box::new(Replan { change, counter: 0 })))
        .chain(twisted(&[hidden::RECOMPUTES], |instead| Box::new(Recompute(instead))))
        .chain(twisted(&[hidden::RESTATES], |change| Box::new(Restate(change))))
        .chain(broken(&[rules::LOADS, adapters::LOADS], |reference, load| Broken {
            load,
            ..Broken::new(reference)
        }))
        .chain(broken(&[rules::CLAIMS], |reference, claims| Broken { claims, ..Broken::new(reference) }))
        .chain(broken(&[rules::OTHERS, adapters::OTHERS], |reference, other| other(reference)))
        .collect();
    let count = all.len();
    let catalogue: BTreeMap<_, _> = all.into_iter().collect();
    assert_eq!(catalogue.len(), count, "two mutants share a name");
    catalogue
});

/// Mutants that are broken in the same way, each by a change of its own.
fn broken<C: Copy + Send + Sync>(
    changes: &'static [Mutants<C>],
    breaking: fn(ReferenceBackend, C) -> Broken,
) -> impl Iterator<Item = (&'static str, Box<Break>)> {
    let mutant = move |change| Box::new(move |reference| breaking(reference, change)) as Box<Break>;
    changes.iter().copied().flatten().map(move |&(name, change)| (name, mutant(change)))
}

/// Mutants whose sessions have the same twist, each with a change of its own.
fn twisted<C: Copy + Send + Sync>(
    changes: &'static [Mutants<C>],
    twist: fn(C) -> Box<dyn Twist>,
) -> impl Iterator<Item = (&'static str, Box<Break>)> {
    changes.iter().copied().flatten().map(move |&(name, change)| {
        let breaking =
            move |reference| Broken { twist: Arc::new(move || twist(change)), ..Broken::new(reference) };
        (name, Box::new(breaking) as Box<Break>)
    })
}

/// The window whose borders the mutants are tried at.
const WINDOW: usize = 16;

/// The mutant of an engine that keeps everything, or, where the check is about what does not grow, of one
/// with a window.
fn subject_of(check: &Check, breaking: &'static Break) -> Subject<'static> {
    if !check.needs.contains(&Need::BoundedState) {
        return subject(breaking);
    }
    let reference = ReferenceBackend::new().with_window(WINDOW);
    Subject::new(breaking(reference), ReferenceBackend::source())
        .with_load(LoadOptions::default().with_capacity(160))
        .with_bounded_state(WINDOW)
}

fn subject(breaking: &'static Break) -> Subject<'static> {
    let options = LoadOptions::default().with_capacity(160);
    let (other_options, broken_options) = (options.clone(), options.clone());
    Subject::new(breaking(ReferenceBackend::new()), ReferenceBackend::source())
        .with_load(options)
        .with_other_model(move || {
            let other = breaking(ReferenceBackend::new().with_weights_seed(1));
            other.load(&ReferenceBackend::source(), &other_options)
        })
        .with_broken_weights(move || {
            let broken = breaking(ReferenceBackend::new().with_broken_weights());
            broken.load(&ReferenceBackend::source(), &broken_options)
        })
        .with_window(WINDOW)
        .with_faulty([FaultPoint::Allocation, FaultPoint::Dispatch, FaultPoint::ReadBack], move |faults| {
            Box::new(breaking(ReferenceBackend::new().with_faults(faults)))
        })
        .with_output_states()
        .with_adapters(AdapterLimits::new(3, 4), [0, 1, 2].map(ReferenceBackend::adapter))
        .with_cases(32)
}

/// The mutants that the docs of each check name.
fn named_in_docs() -> BTreeMap<String, BTreeSet<String>> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/checks");
    let sources = fs::read_dir(folder).unwrap().map(|file| fs::read_to_string(file.unwrap().path()).unwrap());
    let sources: Vec<String> = sources.collect();
    let mut named = BTreeMap::new();
    let mut docs = String::new();
    for line in sources.iter().flat_map(|source| source.lines()) {
        if let Some(text) = line.strip_prefix("///") {
            docs.push_str(text);
        } else {
            if let Some(name) = line.strip_prefix("pub fn ").and_then(|rest| rest.split('(').next()) {
                let kills = docs.split_once("Kills:").map_or("", |(_, kills)| kills);
                let mutants = kills.split('`').skip(1).step_by(2).map(str::to_owned).collect();
                named.insert(name.to_owned(), mutants);
            }
            docs.clear();
        }
    }
    named
}

#[test]
fn every_check_kills_the_mutants_that_its_docs_name() {
    let named = named_in_docs();
    let mut survivors = Vec::new();
    for check in checks::ALL {
        let mutants = &named[check.name];
        assert!(!mutants.is_empty(), "the docs of `{}` name no mutant", check.name);
        for mutant in mutants {
            let breaking = CATALOGUE.get(mutant.as_str());
            let breaking =
                breaking.unwrap_or_else(|| panic!("`{}` names `{mutant}`, which is not there", check.name));
            if !run(check, &subject_of(check, breaking), &Expectations::none()).is_failure() {
                survivors.push((check.name, mutant.clone()));
            }
        }
    }
    assert!(survivors.is_empty(), "these checks let these mutants live: {survivors:?}");
}

#[test]
fn every_mutant_is_named_by_a_check() {
    let named: BTreeSet<String> = named_in_docs().into_values().flatten().collect();
    let unnamed: Vec<_> = CATALOGUE.keys().filter(|name| !named.contains(**name)).collect();
    assert!(unnamed.is_empty(), "no check's docs name {unnamed:?}");
    assert!(CATALOGUE.len() >= 20);
}

#[test]
fn the_unmodified_reference_engine_passes_behind_the_mutant_wrapper() {
    let report = run_all(&subject(&Broken::new), &Expectations::none());
    assert!(report.passed(), "{report}");
}

#[test]
fn an_engine_without_capabilities_passes_and_the_report_lists_skipped_checks() {
    let least = |reference: ReferenceBackend| {
        Broken::new(reference.with_capabilities(mlxcel_core::Capabilities::new(1, 64)))
    };
    let subject = Subject::new(least(ReferenceBackend::new()), ReferenceBackend::source());
    let report = run_all(&subject, &Expectations::none());
    assert!(report.passed(), "{report}");
    assert!(matches!(report.result("fork_continues"), Some(CheckResult::Unclaimed(_))));
    assert!(matches!(report.result("chunked_prefill"), Some(CheckResult::Passed)));
    assert!(report.to_string().contains("not claimed: rewind"), "{report}");
}

#[test]
fn an_expected_failure_passes_and_a_stale_one_fails() {
    let subject = subject(&*CATALOGUE["ignores_seeds"]);
    let seeds = Check::named("seeds_differ").unwrap();
    let known = Expectations::none().expect_failure("seeds_differ", "it was broken for this test");
    assert!(matches!(run(seeds, &subject, &known), CheckResult::ExpectedFailure(..)));
    let skipped = Expectations::none().skip("seeds_differ", "it was broken for this test");
    assert!(matches!(run(seeds, &subject, &skipped), CheckResult::Skipped(_)));
    let stale = Expectations::none().expect_failure("seeds_repeat", "it was thought to be broken");
    let repeat = Check::named("seeds_repeat").unwrap();
    assert!(run(repeat, &subject, &stale).is_failure());
    let unknown = Expectations::none().skip("seeds_differ_now", "a name that is not there");
    assert!(!run_all(&self::subject(&Broken::new), &unknown).passed());
}

#[test]
fn a_panic_of_the_engine_is_a_failure_of_its_check() {
    let subject = subject(&|reference| Broken {
        twist: Arc::new(|| Box::new(State(|_| panic!("out of paper")))),
        ..Broken::new(reference)
    });
    let check = Check::named("positions_count_tokens").unwrap();
    let CheckResult::Failed(failure) = run(check, &subject, &Expectations::none()) else {
        panic!("it did not fail");
    };
    assert_eq!(failure.message(), "the engine panicked: out of paper");
}
