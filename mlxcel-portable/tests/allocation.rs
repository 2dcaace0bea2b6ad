//! Failed allocations, wherever a model or the length of a sequence determines the size: an error, and what
//! was there stays. One test, so that nothing else in the process allocates meanwhile.
#![allow(unsafe_code, clippy::unwrap_used, clippy::panic, reason = "an allocator is not safe to write")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use mlxcel_core::{
    Backend, Control, ErrorKind, InferenceSession, InferenceSessionExt, LoadOptions, Model, Precision,
    Result, Row, SequenceId, SessionOptions,
};
use mlxcel_portable::PortableBackend;

/// Larger than what grows with the number of a model's layers alone, such as the plan of a program.
const LARGE: usize = 200 << 10;

/// The system's allocator, which fails the n-th large allocation and counts them.
struct Failing;

static SEEN: AtomicU64 = AtomicU64::new(0);
static FAILS: AtomicU64 = AtomicU64::new(u64::MAX);

fn fails(size: usize) -> bool {
    size >= LARGE && SEEN.fetch_add(1, SeqCst) == FAILS.load(SeqCst)
}

// SAFETY: blocks are the system allocator's, to which each goes back as it came, or null, which means
// failure; nothing here unwinds.
unsafe impl GlobalAlloc for Failing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if fails(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller promises a layout of at least one byte, which is what the system asks for.
        unsafe { System.alloc(layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if fails(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller promises a layout of at least one byte, which is what the system asks for.
        unsafe { System.alloc_zeroed(layout) }
    }
    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if fails(size) {
            return std::ptr::null_mut();
        }
        // SAFETY: the block is the system's, of this layout, since every block is; a null answer leaves it as
        // it was.
        unsafe { System.realloc(place, layout, size) }
    }
    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: the block is the system's, of this layout, since every block is.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Failing = Failing;

fn logits(session: &mut dyn InferenceSession, sequence: SequenceId, tokens: &[u32]) -> Result<Vec<f32>> {
    session.run_row(Row::logits(sequence, tokens), &Control::default())?.into_logits()
}

/// Everything that takes memory, once; what each part gave, of those that came to an end.
fn use_all(folder: &Path, text: &[u32]) -> Vec<Result<Vec<f32>>> {
    let options = LoadOptions::default().with_precision(Precision::Exact).with_threads(2);
    let model = match PortableBackend::new().load(&folder.into(), &options) {
        Ok(model) => model,
        Err(error) => return vec![Err(error)],
    };
    let mut session = model.open_session(&SessionOptions::default()).unwrap();
    let first = session.open().unwrap();
    let (begin, rest) = text.split_at(text.len() - 40);
    let mut answers = vec![logits(&mut *session, first, begin)];
    if answers[0].is_err() {
        // Fed tokens remain, unless a program had started.
        if session.state(first).unwrap().poisoned {
            return answers;
        }
        let fed = session.state(first).unwrap().position;
        answers.push(logits(&mut *session, first, &begin[fed..]));
    }
    let forked = session.fork(first);
    answers.extend(
        forked.map(|fork| logits(&mut *session, fork, rest)).map_or_else(|e| vec![Err(e)], |a| vec![a]),
    );
    let snapshot = session.snapshot(first);
    let restored = snapshot.and_then(|snapshot| session.restore(&snapshot));
    answers.push(restored.and_then(|sequence| logits(&mut *session, sequence, rest)));
    answers
}

#[test]
fn any_failed_large_allocation_is_an_error_and_other_sequences_continue() {
    for name in ["llama", "qwen3_moe"] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/architectures").join(name);
        let text: Vec<u32> = (0..340).map(|at| 3 + at * 37 % 250).collect();
        let expected: Vec<_> = use_all(&folder, &text).into_iter().map(Result::unwrap).collect();
        let mut failed = 0;
        for number in 0.. {
            SEEN.store(0, SeqCst);
            FAILS.store(number, SeqCst);
            let answers = use_all(&folder, &text);
            FAILS.store(u64::MAX, SeqCst);
            if SEEN.load(SeqCst) <= number {
                break;
            }
            let errors: Vec<_> = answers.iter().filter_map(|answer| answer.as_ref().err()).collect();
            assert!(errors.iter().all(|error| error.kind() == ErrorKind::ResourceExhausted), "{errors:?}");
            assert_eq!(
                errors.len(),
                1,
                "{name}: allocation {number} failed, and nobody was told: {answers:?}"
            );
            for answer in answers.iter().flatten() {
                assert!(expected.contains(answer), "{name}: another answer after allocation {number} failed");
            }
            failed += 1;
        }
        println!("{name}: {failed} allocations of {LARGE} bytes and more failed by turns");
        assert!(failed > 5, "{name}: {failed}");
    }
}
