//! Random well-typed programs against the stock compiler: it accepts them all, and since every operation is
//! printed with its result types, which the compiler's verifier compares with its own inference, the inferred
//! types are equal.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::Path;

use crate::support::random::{self, Extent};
use proptest::collection::vec;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

/// Compiler runs.
const RUNS: u32 = 8;

/// Programs in a run: starting the compiler takes longer than one does.
const PROGRAMS: usize = 8;

/// Decisions in a program: about six make an operation.
const DECISIONS: usize = 600;

#[test]
fn the_stock_compiler_verifies_random_programs() {
    accepts_random_programs(Extent::Whole);
}

#[test]
fn the_stock_compiler_lowers_random_programs() {
    accepts_random_programs(Extent::Lowered);
}

fn accepts_random_programs(extent: Extent) {
    let Some(compiler) = crate::support::stock_compiler() else { return };
    let config = Config { cases: RUNS, max_shrink_iters: 60, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let seen = RefCell::new(BTreeSet::new());
    let decisions = vec(vec(proptest::num::u32::ANY, 1..=DECISIONS), 1..=PROGRAMS);
    let outcome = runner.run(&decisions, |decisions| {
        let mut texts = Vec::new();
        for decisions in decisions {
            let module = random::program(&decisions, extent);
            module.verify().map_err(|error| TestCaseError::fail(error.to_string()))?;
            for function in &module.functions {
                function.body.walk(&mut |op| {
                    seen.borrow_mut().insert(op.kind.name());
                });
            }
            texts.push(module.to_string());
        }
        let accepted = match extent {
            Extent::Whole => crate::support::verify(&compiler, &texts).into_iter().collect(),
            Extent::Lowered | Extent::Run => crate::support::lower(&compiler, &texts),
        };
        accepted.map_err(|error| {
            let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("rejected-{extent:?}.mlir"));
            let kept = std::fs::write(&file, texts.join("// -----\n"));
            let kept = kept.map_or_else(|error| error.to_string(), |()| format!("{file:?}"));
            TestCaseError::fail(format!("{}the programs: {kept}", crate::support::first_lines(&error)))
        })
    });
    match outcome {
        Ok(()) => {}
        // The program says more than the decisions that led to it.
        Err(TestError::Fail(reason, _)) => panic!("{reason}"),
        Err(error) => panic!("{error}"),
    }
    let missing: Vec<&str> = crate::support::every_operation()
        .filter(|&name| !seen.borrow().contains(name) && (extent == Extent::Whole || name != "custom_call"))
        .collect();
    assert!(missing.is_empty(), "the programs lack {missing:?}");
}
