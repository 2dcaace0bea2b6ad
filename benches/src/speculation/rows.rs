//! The cost of passes over several tokens: of one sequence, verified or as a prompt, and of as many
//! sequences.

use std::time::Instant;

use anyhow::Result;
use mlxcel_core::{
    Control, InferenceSession, InferenceSessionExt, Row, SamplingPlan, SequenceId, SessionOptions, Snapshot,
    StepOutput, TokenId,
};
use mlxcel_session::Model;
use rand_chacha::ChaCha8Rng;

use crate::spread::{Spread, random_tokens, shuffled};

/// The maximum tokens of a pass, and sequences.
pub(super) const MOST: usize = 16;

/// The tokens of a pass.
const COUNTS: [usize; 5] = [1, 2, 4, 8, MOST];

/// The length of every sequence before a pass.
const BEFORE: usize = 64;

/// The kind of pass.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Tokens of one sequence, ending in drafts.
    Verified,
    /// Tokens of one sequence, with a result for the last.
    Prompt,
    /// One token each of several sequences.
    Batch,
}

struct Passes {
    session: Box<dyn InferenceSession>,
    sequences: Vec<SequenceId>,
    /// What each of them holds before a pass, for models that cannot be rewound.
    before: Snapshot,
    tokens: Vec<TokenId>,
    plan: SamplingPlan,
    out: StepOutput,
}

impl Passes {
    fn new(model: &Model, random: &mut ChaCha8Rng) -> Result<Self> {
        let mut session = model.engine().open_session(&SessionOptions::default())?;
        let tokens = random_tokens(model.info().vocabulary_size, BEFORE, random);
        let mut sequences = Vec::new();
        for _ in 0..MOST {
            let sequence = session.open()?;
            session.run_row(Row::extend(sequence, &tokens), &Control::default())?;
            sequences.push(sequence);
        }
        let before = session.snapshot(sequences[0])?;
        let (plan, out) = (SamplingPlan::greedy(), StepOutput::new());
        Ok(Self { session, sequences, before, tokens, plan, out })
    }

    /// The seconds of a pass over `count` tokens, which are then dropped.
    fn seconds(&mut self, kind: Kind, count: usize) -> Result<f64> {
        let (first, tokens) = (self.sequences[0], &self.tokens[..count]);
        let rows = match kind {
            Kind::Verified if count > 1 => vec![Row::verify(first, tokens, &self.plan, count - 1)],
            Kind::Verified | Kind::Prompt => vec![Row::next(first, tokens, &self.plan)],
            Kind::Batch => {
                let single = |&sequence| Row::next(sequence, &tokens[..1], &self.plan);
                self.sequences[..count].iter().map(single).collect()
            }
        };
        let start = Instant::now();
        self.session.step(&rows, &Control::default(), &mut self.out)?;
        let seconds = start.elapsed().as_secs_f64();
        self.out.take().into_iter().try_for_each(|result| result.map(drop))?;
        let rewinds = self.session.capabilities().rewind;
        for sequence in &mut self.sequences {
            match self.session.state(*sequence)?.position {
                BEFORE => {}
                _ if rewinds => self.session.rewind(*sequence, BEFORE)?,
                _ => {
                    self.session.close(*sequence)?;
                    *sequence = self.session.restore(&self.before)?;
                }
            }
        }
        Ok(seconds)
    }

    /// The median seconds of `passes` passes.
    fn middle(&mut self, kind: Kind, count: usize, passes: usize) -> Result<f64> {
        let seconds = (0..passes).map(|_| self.seconds(kind, count)).collect::<Result<Vec<_>>>()?;
        Ok(Spread::of(&seconds).median)
    }
}

/// Measures passes in random order, and prints them relative to one token's of the same round.
pub(super) fn run(model: &Model, rounds: usize, repeats: usize, random: &mut ChaCha8Rng) -> Result<()> {
    let mut passes = Passes::new(model, random)?;
    let kinds = [Kind::Verified, Kind::Batch, Kind::Prompt];
    let all: Vec<(Kind, usize)> =
        COUNTS.into_iter().flat_map(|count| kinds.map(|kind| (kind, count))).collect();
    // Compiles the programs.
    for &(kind, count) in &all {
        passes.seconds(kind, count)?;
    }
    let mut seconds = vec![Vec::new(); all.len()];
    for _ in 0..rounds {
        for index in shuffled(all.len(), random) {
            let (kind, count) = all[index];
            seconds[index].push(passes.middle(kind, count, repeats)?);
        }
    }
    let one = all.iter().position(|&pass| pass == (Kind::Batch, 1)).unwrap_or(0);
    let millis = Spread::of(&seconds[one]).scaled(1e3);
    println!("a pass over one token: {millis} ms; over several, beside it in the same round:");
    println!("{:<8}{:<24}{:<24}{:<24}", "tokens", "of one sequence", "of as many sequences", "of one prompt");
    for count in COUNTS {
        let cells = kinds.map(|kind| {
            let index = all.iter().position(|&pass| pass == (kind, count)).unwrap_or(0);
            let beside: Vec<f64> = seconds[index].iter().zip(&seconds[one]).map(|(a, b)| a / b).collect();
            Spread::of(&beside).to_string()
        });
        println!("{count:<8}{:<24}{:<24}{:<24}", cells[0], cells[1], cells[2]);
    }
    println!();
    Ok(())
}
