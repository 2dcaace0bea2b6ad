//! The list of programs against sessions that do whatever comes to mind.

mod prepared;

use std::collections::BTreeSet;

use mlxcel_core::{
    Capabilities, Control, ErrorKind, InferenceSession, Pooling, Prepare, Result, Row, SamplingPlan,
    SequenceId, StepOutput, Want,
};
use mlxcel_models::Decoder;
use proptest::prelude::*;

use crate::model::GraphModelOptions;
use crate::plan::Chunks;
use crate::reachable::PreparedPrograms;
use crate::recorder::{Recorder, decoder_of, session_on};
use crate::shape::{LengthSteps, Lengths, ProgramShape};

fn decoder() -> Decoder {
    decoder_of("llama")
}

/// One whose caches grow with every position, one whose windows bound them, one without any, one with caches
/// and without.
const ARCHITECTURES: [&str; 4] = ["llama", "mistral", "mamba2", "lfm2"];

fn options(capacity: usize, sequences: usize, chunk: usize, every_position: bool) -> GraphModelOptions {
    with_chunks(capacity, sequences, &[chunk], every_position)
}

fn with_chunks(
    capacity: usize,
    sequences: usize,
    chunks: &[usize],
    every_position: bool,
) -> GraphModelOptions {
    GraphModelOptions {
        capacity: Some(capacity),
        sequences,
        chunks: chunks.to_vec(),
        every_position,
        verification: false,
        hidden_states: false,
        ..Default::default()
    }
}

/// What a row wants, if that is supported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asks {
    Next,
    Every,
    Hidden(Pooling),
    /// This many draft tokens, or as many as there are.
    Verify(usize),
}

struct Driver {
    session: Box<dyn InferenceSession>,
    sequences: Vec<SequenceId>,
    asked: Recorder,
    claimed: Capabilities,
}

impl Driver {
    fn new(decoder: &Decoder, options: &GraphModelOptions) -> Self {
        let asked = Recorder::default();
        let session = session_on(asked.clone(), decoder, options);
        let claimed = session.capabilities().clone();
        Self { session, sequences: Vec::new(), asked, claimed }
    }

    fn room(&self, id: SequenceId) -> usize {
        let state = self.session.state(id).unwrap();
        state.capacity - state.position
    }

    /// Feeds tokens to the sequences named by index: how many of them, and what is wanted.
    fn step(&mut self, rows: &[(usize, usize, Asks)]) {
        let plan = SamplingPlan::greedy();
        let fed: Vec<_> = rows
            .iter()
            .map(|&(index, tokens, asks)| {
                let id = self.sequences[index];
                (id, vec![1; tokens.min(self.room(id))], asks)
            })
            .filter(|(_, tokens, _)| !tokens.is_empty())
            .collect();
        if fed.is_empty() {
            return;
        }
        let want = |tokens: usize, asks| match asks {
            Asks::Verify(drafts) if self.claimed.verification => {
                Want::token(&plan).with_drafts(drafts.min(tokens - 1))
            }
            Asks::Every if self.claimed.every_position => Want::likelihoods(0),
            Asks::Hidden(pooling) if self.claimed.hidden_states.is_some() => Want::hidden(pooling),
            _ => Want::token(&plan),
        };
        let rows: Vec<_> =
            fed.iter().map(|(id, tokens, asks)| Row::new(*id, tokens, want(tokens.len(), *asks))).collect();
        let mut out = StepOutput::default();
        self.session.step(&rows, &Control::default(), &mut out).unwrap();
        assert!(out.rows().iter().all(Result::is_ok), "{:?}", out.rows());
    }

    fn asked(&self) -> BTreeSet<ProgramShape> {
        self.asked.record().ready.clone()
    }

    fn announced(&self) -> BTreeSet<ProgramShape> {
        self.asked.record().announced.clone()
    }
}

fn names<'a>(shapes: impl IntoIterator<Item = &'a ProgramShape>) -> Vec<String> {
    shapes.into_iter().map(ToString::to_string).collect()
}

/// What a caller may do; numbers are taken modulo what there is.
#[derive(Clone, Debug)]
enum Action {
    Open,
    Close(usize),
    Fork(usize),
    Rewind(usize, usize),
    Restore(usize),
    Step(Vec<(usize, Asks)>),
}

fn action() -> impl Strategy<Value = Action> {
    let asks = prop_oneof![
        2 => Just(Asks::Next),
        2 => Just(Asks::Every),
        1 => Just(Asks::Hidden(Pooling::Last)),
        1 => Just(Asks::Hidden(Pooling::Mean)),
        4 => (0..30usize).prop_map(Asks::Verify)
    ];
    let row = (prop_oneof![3 => Just(0usize), 3 => Just(1), 2 => 2..20usize, 2 => 20..500usize], asks);
    prop_oneof![
        3 => Just(Action::Open),
        1 => any::<usize>().prop_map(Action::Close),
        1 => any::<usize>().prop_map(Action::Fork),
        2 => (any::<usize>(), any::<usize>()).prop_map(|(which, to)| Action::Rewind(which, to)),
        1 => any::<usize>().prop_map(Action::Restore),
        9 => prop::collection::vec(row, 1..6).prop_map(Action::Step),
    ]
}

fn act(driver: &mut Driver, action: &Action) {
    let pick = |driver: &Driver, which: usize| {
        let count = driver.sequences.len();
        (count > 0).then(|| which % count)
    };
    match action {
        Action::Open => driver.sequences.extend(driver.session.open().ok()),
        Action::Close(which) => {
            let Some(index) = pick(driver, *which) else { return };
            driver.session.close(driver.sequences.remove(index)).unwrap();
        }
        Action::Fork(which) => {
            let Some(index) = pick(driver, *which) else { return };
            driver.sequences.extend(driver.session.fork(driver.sequences[index]).ok());
        }
        Action::Rewind(which, to) => {
            let Some(index) = pick(driver, *which) else { return };
            let id = driver.sequences[index];
            let position = driver.session.state(id).unwrap().position;
            // Often by a few tokens: then all sessions may do it behind draft tokens.
            let to = if to % 2 == 0 { to / 2 % (position + 1) } else { position.saturating_sub(to / 2 % 8) };
            match driver.session.rewind(id, to) {
                Ok(()) => assert_eq!(driver.session.state(id).unwrap().position, to),
                Err(error) => {
                    assert!(!driver.claimed.rewind);
                    assert_eq!(error.kind(), ErrorKind::Unsupported);
                }
            }
        }
        Action::Restore(which) => {
            let Some(index) = pick(driver, *which) else { return };
            let snapshot = driver.session.snapshot(driver.sequences[index]).unwrap();
            driver.sequences.extend(driver.session.restore(&snapshot).ok());
        }
        Action::Step(rows) => {
            let rows: Vec<_> = (rows.iter().take(driver.sequences.len()).enumerate())
                .map(|(index, &(tokens, asks))| (index, tokens, asks))
                .collect();
            driver.step(&rows);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn sessions_use_only_listed_programs(
        capacity in prop_oneof![1..8usize, 1..512usize],
        sequences in 1..6usize,
        chunks in prop_oneof![
            (2..6usize).prop_map(|chunk| vec![chunk]),
            Just(vec![64]),
            (250..300usize).prop_map(|chunk| vec![chunk]),
            Just(vec![16, 128]),
            prop::collection::vec(2..300usize, 2..4),
        ],
        wide: bool,
        every_position: bool,
        hidden_states: bool,
        verification: bool,
        architecture in prop::sample::select(&ARCHITECTURES[..]),
        actions in prop::collection::vec(action(), 1..40),
    ) {
        let decoder = decoder_of(architecture);
        let mut options = with_chunks(capacity, sequences, &chunks, every_position);
        options.length_steps = wide.then_some(LengthSteps { first: 2048, factor: 8 });
        options.hidden_states = hidden_states;
        options.verification = verification;
        let listed = options.programs(&decoder).unwrap();
        let mut driver = Driver::new(&decoder, &options);
        for action in &actions {
            act(&mut driver, action);
        }
        let listed: BTreeSet<_> = listed.into_iter().collect();
        let asked = &driver.asked() | &driver.announced();
        let unlisted = names(asked.difference(&listed));
        prop_assert!(unlisted.is_empty(), "{unlisted:?} of {options:?}");
    }
}

/// Requests every combination of rows at every reachable length.
fn ask_for_everything(driver: &mut Driver, options: &GraphModelOptions, capacity: usize) {
    let chunks = Chunks::new(&options.chunks).chosen(capacity);
    let chunks: Vec<_> = chunks
        .iter()
        .flat_map(|&(_, least)| {
            [Asks::Next, Asks::Every, Asks::Hidden(Pooling::Last)].map(|asks| (least, asks))
        })
        .chain([(1, Asks::Next), (1, Asks::Hidden(Pooling::Mean))])
        .collect();
    for (count, chunk) in
        (1..=options.sequences).flat_map(|count| chunks.iter().map(move |&chunk| (count, chunk)))
    {
        for filled in 0..capacity {
            driver.sequences = (0..count).map(|_| driver.session.open().unwrap()).collect();
            // A prompt in one go, so that its last chunk and its padding take the cache as far as can be.
            driver.step(&[(0, filled, Asks::Next)]);
            let (tokens, asks) = chunk;
            let beside = match asks {
                Asks::Hidden(_) => asks,
                _ => Asks::Next,
            };
            let others = (1..count).map(|row| (row, 1, beside));
            let rows: Vec<_> = std::iter::once((0, tokens, asks)).chain(others).collect();
            driver.step(&rows);
            // The same after a rewind keeps the states.
            if driver.session.rewind(driver.sequences[0], 0).is_ok() {
                driver.step(&rows);
            }
            for id in std::mem::take(&mut driver.sequences) {
                driver.session.close(id).unwrap();
            }
        }
    }
}

#[test]
fn every_listed_program_is_reachable() {
    for (architecture, capacity, sequences, chunks, every, hidden) in [
        ("llama", 1, 2, &[4][..], true, true),
        ("llama", 2, 2, &[4], true, false),
        ("llama", 190, 1, &[64], false, true),
        ("llama", 257, 2, &[64], true, true),
        ("llama", 260, 3, &[4], false, true),
        ("llama", 300, 2, &[270], true, false),
        ("llama", 512, 1, &[64], true, false),
        ("llama", 70, 1, &[16, 128], true, true),
        ("llama", 60, 2, &[16, 128], false, false),
        ("llama", 300, 2, &[16, 128], true, true),
        ("llama", 300, 1, &[3, 50, 128], false, false),
        ("mistral", 512, 1, &[64], false, false),
        ("mistral", 300, 2, &[270], false, true),
        ("mamba2", 300, 1, &[270], true, true),
    ] {
        let decoder = decoder_of(architecture);
        let mut options = with_chunks(capacity, sequences, chunks, every);
        options.hidden_states = hidden;
        let mut driver = Driver::new(&decoder, &options);
        ask_for_everything(&mut driver, &options, capacity);
        let listed = options.programs(&decoder).unwrap();
        let unique: BTreeSet<_> = listed.iter().cloned().collect();
        assert_eq!(listed.len(), unique.len());
        let unasked = names(unique.difference(&driver.asked()));
        assert!(unasked.is_empty(), "{unasked:?} of {options:?}");
    }
}

#[test]
fn the_list_follows_the_options() {
    let decoder = decoder();
    let listed = |options: &GraphModelOptions| -> Vec<String> {
        options.programs(&decoder).unwrap().iter().map(ToString::to_string).collect()
    };
    assert_eq!(listed(&options(100, 1, 64, false)), ["1@256", "64@256"]);
    assert_eq!(
        listed(&options(512, 2, 64, true))[6..],
        ["1@576", "1x2@576", "64@576", "64+1@576", "64@576 every position", "64+1@576 every position"]
    );
    let mut hidden = options(100, 2, 64, false);
    hidden.hidden_states = true;
    assert_eq!(listed(&hidden)[2..4], ["1@256 hidden states", "1x2@256 hidden states"]);
    assert_eq!(listed(&hidden)[6..], ["64@256 hidden states"]);
    let mut given = options(100, 1, 64, false);
    given.lengths = Some(Lengths::from_buckets([128, 192, 4096]).unwrap());
    assert_eq!(listed(&given), ["1@128", "64@128", "1@192", "64@192"]);
    given.lengths = Some(Lengths::from_buckets([128]).unwrap());
    assert_eq!(given.programs(&decoder).unwrap_err().context("field"), Some("lengths"));
    assert_eq!(options(100, 1, 1, false).programs(&decoder).unwrap_err().context("field"), Some("chunks"));
    let first = options(512, 2, 64, true).first_programs(&decoder).unwrap();
    assert_eq!(names(&first), ["64@256", "1@256"]);
    // Where no state grows, no program is for a longer sequence.
    for (architecture, lengths) in [("mistral", ["1@256", "64@256"]), ("mamba2", ["1@256", "64@256"])] {
        let programs = options(256, 1, 64, false).programs(&decoder_of(architecture)).unwrap();
        assert_eq!(names(&programs), lengths, "{architecture}");
    }
    let mut kernels = options(500, 1, 64, false);
    kernels.chunks = vec![16, 128];
    kernels.length_steps = Some(LengthSteps { first: 2048, factor: 8 });
    assert_eq!(names(&kernels.first_programs(&decoder).unwrap()), ["128@640", "16@640", "1@640"]);
    assert_eq!(listed(&kernels), ["1@640", "16@640", "128@640"]);
}
