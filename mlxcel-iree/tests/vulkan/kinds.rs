//! The conformance suite on a checkpoint of each kind of state, among them forks, snapshots, masks, drafts,
//! cancelled rows and faults.

use std::path::Path;

use mlxcel_conformance::{Expectations, Oracle, Subject, run_all};
use mlxcel_core::{Backend, FaultPoint};

use crate::broken::break_weights;
use crate::{LLAMA, engine, options, root};

/// A checkpoint, with what tells the suite about it.
fn hold(folder: &str, describe: fn(Subject<'static>) -> Subject<'static>) {
    let path = root().join(folder);
    let other = if folder == LLAMA { "architectures/mistral" } else { LLAMA };
    let prompts = Oracle::read(path.join("oracle.json")).unwrap().cases.into_iter().map(|case| case.prompt);
    let (source, broken) =
        (path.clone(), Path::new(env!("CARGO_TARGET_TMPDIR")).join("broken/vulkan").join(folder));
    let subject = Subject::new(engine(), path)
        .with_load(options())
        .with_prompts(prompts)
        .with_other_model(move || engine().load(&root().join(other).into(), &options()))
        .with_faulty(FaultPoint::ALL, |faults| Box::new(engine().with_faults(faults)))
        .with_broken_weights(move || {
            break_weights(&source, &broken);
            engine().load(&broken.clone().into(), &options())
        });
    let report = run_all(&describe(subject), &Expectations::none());
    eprintln!("{folder}\n{report}");
    assert!(report.passed(), "{folder}: {report}");
}

#[test]
fn a_cache_of_all_positions() {
    hold(LLAMA, |subject| subject);
}

mod nightly {
    use super::*;

    #[test]
    fn a_window() {
        hold("architectures/mistral", |subject| subject.with_window(16).with_bounded_state(16));
    }

    #[test]
    fn a_recurrence() {
        hold("architectures/mamba2", |subject| subject.with_bounded_state(1));
    }

    #[test]
    fn a_cache_beside_recurrences_and_experts() {
        hold("architectures/qwen3_next", |subject| subject);
    }

    #[test]
    fn experts() {
        hold("architectures/mixtral", |subject| subject);
    }

    #[test]
    fn packed_weights() {
        hold("formats/awq", |subject| subject);
    }
}
