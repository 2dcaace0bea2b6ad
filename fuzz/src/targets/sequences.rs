//! Calls of a session in any order, held against what must hold of each sequence alone.

mod mirror;
mod oracle;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use arbitrary::Unstructured;
use mlxcel_core::reference::ReferenceBackend;
use mlxcel_core::{Backend, FaultPoint, Faults, LoadOptions, Model, Precision, Result};
use mlxcel_portable::PortableBackend;

use super::place::fixture;
use crate::outcome::Outcome;
use crate::target::{Format, Target};
use mirror::Mirror;
use oracle::Oracle;

pub(super) const REFERENCE: Target = Target {
    name: "sequences",
    about: "calls of a session of the reference engine: every sequence says what it says alone",
    format: Format::Decisions,
    run: reference,
    memory: 64,
    seconds: 10,
    longest: 1024,
    ..Target::USUAL
};

pub(super) const PORTABLE: Target = Target {
    name: "graph-sequences",
    about: "calls of a session of the portable engine, with states of every kind: every sequence says what it says alone",
    format: Format::Decisions,
    run: portable,
    memory: 128,
    seconds: 30,
    longest: 192,
    ..Target::USUAL
};

/// The most tokens of a sequence.
const CAPACITY: usize = 24;

/// The most sequences at once.
const SEQUENCES: usize = 3;

fn options() -> LoadOptions {
    LoadOptions::default().with_capacity(CAPACITY).with_sequences(SEQUENCES)
}

fn reference(input: &[u8]) -> Outcome {
    let mut choices = Unstructured::new(input);
    let model = |choices: &mut Unstructured<'_>, backend: ReferenceBackend| -> Result<Arc<dyn Model>> {
        let chunk = usize::from(choices.arbitrary::<u8>().unwrap_or_default() % 6) + 1;
        let backend = match choices.arbitrary::<u8>().unwrap_or_default() % 4 {
            0 => backend.with_window(5),
            1 => backend.with_recurrence(),
            _ => backend,
        };
        backend.with_chunk(chunk).load(&ReferenceBackend::source(), &options())
    };
    let fault = match choices.arbitrary::<u8>().unwrap_or_default() {
        passes @ 0..16 => Some(Faults::new(FaultPoint::Dispatch, passes.into())),
        // Loading allocates once.
        passes @ 16..32 => Some(Faults::new(FaultPoint::Allocation, u64::from(passes - 15))),
        _ => None,
    };
    let faulty =
        fault.map_or_else(ReferenceBackend::new, |faults| ReferenceBackend::new().with_faults(faults));
    let mut copy = Unstructured::new(choices.peek_bytes(2).unwrap_or_default());
    let sound = model(&mut copy, ReferenceBackend::new());
    let (Ok(driven), Ok(sound)) = (model(&mut choices, faulty), sound) else {
        return Outcome::new("no model");
    };
    drive(&*driven, &mut Oracle::new(sound), &mut choices)
}

/// Models with states of each kind.
const MODELS: [&str; 8] =
    ["llama", "gemma2", "mamba2", "lfm2", "qwen3_next", "deepseek_v3", "phi3-longrope", "gpt_oss"];

thread_local! {
    static ORACLES: RefCell<BTreeMap<usize, Oracle>> = const { RefCell::new(BTreeMap::new()) };
}

fn portable(input: &[u8]) -> Outcome {
    let mut choices = Unstructured::new(input);
    let index = choices.choose_index(MODELS.len()).unwrap_or_default();
    ORACLES.with_borrow_mut(|oracles| {
        if let std::collections::btree_map::Entry::Vacant(entry) = oracles.entry(index) {
            // Rounding in between would tell one order of sums from another.
            let options = options().with_threads(1).with_precision(Precision::Exact);
            match PortableBackend::new().load(&fixture(MODELS[index]).into(), &options) {
                Ok(model) => drop(entry.insert(Oracle::new(model))),
                Err(error) => return Outcome::refused(&error),
            }
        }
        let Some(oracle) = oracles.get_mut(&index) else { return Outcome::new("no model") };
        let model = oracle.model().clone();
        Outcome::new(MODELS[index]).then(drive(&*model, oracle, &mut choices))
    })
}

/// Makes calls until there are no decisions left.
fn drive(model: &dyn Model, oracle: &mut Oracle, choices: &mut Unstructured<'_>) -> Outcome {
    let session = match model.open_session(&mlxcel_core::SessionOptions::default()) {
        Ok(session) => session,
        Err(error) => return Outcome::refused(&error),
    };
    let mut mirror = Mirror::new(session, model.info().vocabulary_size);
    while !choices.is_empty() {
        if mirror.call(oracle, choices).is_err() {
            break;
        }
    }
    mirror.finish()
}
