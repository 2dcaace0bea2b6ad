//! Mutants that compute what they should, and not as exactly as their precision says: such as an error in the
//! last layer would make of it.

use std::sync::Arc;

use mlxcel_conformance::{Tolerance, differential};
use mlxcel_core::reference::ReferenceBackend;
use mlxcel_core::{
    Answer, Backend, Control, Distribution, LoadOptions, Positions, Precision, Row, RowResult, Want,
};

use crate::mutants::Mutants;
use crate::mutants::context::misread;
use crate::mutants::twist::{Broken, Inner, Results, Twist};

pub(crate) const TWISTS: Mutants<fn() -> Box<dyn Twist>> = &[
    ("rounds_to_four_bits_in_batches", || Box::new(Inexact { change: four_bits, in_batches: true })),
    ("drops_a_term_in_batches", || Box::new(Inexact { change: dropped_term, in_batches: true })),
];

/// Changes logits, and everything that follows from them.
struct Inexact {
    change: fn(&mut [f32]),
    /// Only where rows share a step.
    in_batches: bool,
}

fn largest(logits: &[f32]) -> f32 {
    logits.iter().fold(0.0, |most, logit| most.max(logit.abs()))
}

/// Keeps so many steps on either side of zero.
fn rounded(logits: &mut [f32], steps: f32) {
    let step = largest(logits) / steps;
    logits.iter_mut().for_each(|logit| *logit = (*logit / step).round() * step);
}

fn four_bits(logits: &mut [f32]) {
    rounded(logits, 7.0);
}

fn eight_bits(logits: &mut [f32]) {
    rounded(logits, 127.0);
}

fn bfloat16(logits: &mut [f32]) {
    let kept = |logit: f32| f32::from_bits((logit.to_bits() + 0x8000) & 0xffff_0000);
    logits.iter_mut().for_each(|logit| *logit = kept(*logit));
}

/// A term that adds up to a fiftieth of the largest logit, of either sign.
fn dropped_term(logits: &mut [f32]) {
    let term = largest(logits) / 50.0;
    let sign = |token: usize| if token.wrapping_mul(0x9e37_79b9) >> 7 & 1 == 0 { 1.0 } else { -1.0 };
    logits.iter_mut().enumerate().for_each(|(token, logit)| *logit -= sign(token) * term);
}

/// Five times as much of it.
fn dropped_large_term(logits: &mut [f32]) {
    (0..5).for_each(|_| dropped_term(logits));
}

impl Twist for Inexact {
    fn step(&mut self, inner: &mut Inner, rows: &[Row<'_>], control: &Control<'_>) -> Results {
        let mut results = inner.step(rows, control)?;
        for (row, result) in rows.iter().zip(&mut results) {
            if self.in_batches && rows.len() == 1 {
                continue;
            }
            match (row.want.answer, result) {
                (_, Ok(RowResult::Logits(rows))) => rows.iter_mut().for_each(|logits| (self.change)(logits)),
                (Answer::Token { plan, top, .. }, Ok(RowResult::Tokens(tokens)))
                    if plan.is_greedy() && row.want.positions == Positions::Last =>
                {
                    let held = inner.text(row.sequence);
                    let wanted = Row::new(row.sequence, row.tokens, Want::logits());
                    let mut logits = misread(inner, &held, &wanted)?.into_logits()?;
                    (self.change)(&mut logits);
                    *tokens = vec![Distribution::new(&logits)?.choose(None, top)?];
                }
                _ => {}
            }
        }
        Ok(results)
    }
}

/// Whether an engine with this error agrees with one without at `precision`.
fn agrees(change: fn(&mut [f32]), precision: Precision) -> bool {
    let (source, options) = (ReferenceBackend::source(), LoadOptions::default());
    let sound = ReferenceBackend::new().load(&source, &options).unwrap();
    let twist = Arc::new(move || Box::new(Inexact { change, in_batches: false }) as Box<dyn Twist>);
    let other = Broken { twist, ..Broken::new(ReferenceBackend::new()) }.load(&source, &options).unwrap();
    let prompts = [vec![1, 2, 3], vec![9, 8, 7, 6, 5], vec![33; 12]];
    differential(&*sound, &*other, &prompts, 24, &Tolerance::of(precision)).unwrap().passed()
}

#[test]
fn the_tolerance_of_a_precision_tells_its_rounding_from_errors() {
    assert!(agrees(bfloat16, Precision::Native), "bfloat16 is what it is native to");
    assert!(agrees(eight_bits, Precision::Fast));
    for precision in Precision::ALL {
        assert!(!agrees(four_bits, precision), "four bits pass for {precision}");
        assert!(!agrees(dropped_large_term, precision), "a missing term passes for {precision}");
    }
    for precision in [Precision::Exact, Precision::Native] {
        assert!(!agrees(dropped_term, precision), "a small missing term passes for {precision}");
    }
    assert!(!agrees(bfloat16, Precision::Exact), "bfloat16 passes for exact");
}
