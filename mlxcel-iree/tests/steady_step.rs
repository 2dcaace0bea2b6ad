//! What a decode step allocates once a sequence is under way.
#![allow(unsafe_code, clippy::unwrap_used, clippy::panic, reason = "an allocator is not safe to write")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::path::Path;

use mlxcel_core::{
    Backend, Control, InferenceSession, InferenceSessionExt, LoadOptions, Row, SamplingPlan, SessionOptions,
    StepOutput,
};
use mlxcel_iree::IreeBackend;

thread_local! {
    /// The allocations of this thread so far, and their bytes.
    static ALLOCATED: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

/// The system's allocator, which counts.
struct Counting;

fn count(size: usize) {
    ALLOCATED.with(|counts| {
        let (number, bytes) = counts.get();
        counts.set((number + 1, bytes + size));
    });
}

// SAFETY: blocks are the system allocator's, to which each goes back as it came; counting neither allocates
// nor unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller promises a layout of at least one byte, which is what the system asks for.
        unsafe { System.alloc(layout) }
    }
    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size);
        // SAFETY: the block is the system's, of this layout, since every block is.
        unsafe { System.realloc(place, layout, size) }
    }
    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: the block is the system's, of this layout, since every block is.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What each of 48 steps of `sequences` allocates, in number and bytes, after the first few.
fn steps(session: &mut dyn InferenceSession, sequences: u32) -> Vec<(usize, usize)> {
    let (plan, control, mut out) = (SamplingPlan::greedy(), Control::default(), StepOutput::new());
    let opened: Vec<_> = (0..sequences).map(|_| session.open().unwrap()).collect();
    for &sequence in &opened {
        session.run_row(Row::next(sequence, &[1, 2, 3], &plan), &control).unwrap();
    }
    let mut step = |token: u32| {
        let tokens: Vec<_> = (0..sequences).map(|number| [10 + token + number]).collect();
        let rows: Vec<_> =
            opened.iter().zip(&tokens).map(|(&sequence, token)| Row::next(sequence, token, &plan)).collect();
        let before = ALLOCATED.get();
        session.step(&rows, &control, &mut out).unwrap();
        let after = ALLOCATED.get();
        assert!(out.rows().iter().all(Result::is_ok));
        (after.0 - before.0, after.1 - before.1)
    };
    (0..4).for_each(|token| _ = step(token));
    let steps = (4..52).map(&mut step).collect();
    opened.into_iter().for_each(|sequence| session.close(sequence).unwrap());
    steps
}

#[test]
fn a_steady_step_allocates_a_few_small_blocks() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/models/storyteller");
    let options = LoadOptions::default().with_capacity(256).with_sequences(4);
    let model = IreeBackend::new().load(&folder.as_path().into(), &options).unwrap();
    let mut session = model.open_session(&SessionOptions::default()).unwrap();
    for (sequences, most_blocks, most_bytes) in [(1, 50, 4500), (4, 75, 9000)] {
        let steps = steps(&mut *session, sequences);
        let (blocks, bytes) = *steps.iter().max().unwrap();
        assert!(blocks <= most_blocks && bytes <= most_bytes, "{sequences} sequences: {steps:?}");
        assert!(steps.iter().all(|step| *step == steps[0]), "{sequences} sequences: {steps:?}");
    }
}
