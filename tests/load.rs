//! Load: sessions by the hundreds, opened, used, cancelled and dropped from many threads. Texts are what they
//! are alone, and memory is given back.

use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::support::{Fixture, engines, engines_and_plugin, load};
use mlxcel_core::{
    Backend, CancelToken, Control, ErrorKind, InferenceSession, Model, Precision, Row, SamplingPlan,
    SequenceId, SessionOptions, StepOutput, TokenId,
};

const THREADS: usize = 16;

/// Sessions after which memory is what it will be.
const WARM: usize = 100;

/// The number of different uses of a session.
const SCRIPTS: usize = 12;

/// How many tokens are generated.
const STEPS: usize = 10;

/// What came of a session: the text of each sequence, as far as it came, and whether it was cancelled.
#[derive(Debug, Default, PartialEq)]
struct Outcome {
    texts: Vec<Vec<TokenId>>,
    cancelled: bool,
}

/// Uses a session as number `script` says: two texts, of which one is forked, restored or closed midway.
fn use_session(model: &dyn Model, prompts: &[Vec<TokenId>], script: usize, cancel: &CancelToken) -> Outcome {
    let mut session = model.open_session(&SessionOptions::default()).unwrap();
    let mut sequences: Vec<SequenceId> = Vec::new();
    let mut pending: Vec<Vec<TokenId>> = Vec::new();
    for text in 0..2 {
        sequences.push(session.open().unwrap());
        pending.push(prompts[(script + text) % prompts.len()].clone());
    }
    let mut outcome = Outcome { texts: vec![Vec::new(); 2], cancelled: false };
    for step in 0..STEPS {
        if step == STEPS / 2 {
            sequences[0] = move_on(&mut *session, sequences[0], script);
        }
        let plan = SamplingPlan::greedy();
        let rows: Vec<_> = sequences
            .iter()
            .zip(&pending)
            .map(|(&sequence, next)| Row::next(sequence, next, &plan))
            .collect();
        let mut out = StepOutput::new();
        session.step(&rows, &Control::cancelled_by(cancel), &mut out).unwrap();
        for (index, result) in out.take().into_iter().enumerate() {
            match result {
                Ok(result) => {
                    let token = result.into_token().unwrap().token;
                    outcome.texts[index].push(token);
                    pending[index] = vec![token];
                }
                Err(error) if error.kind() == ErrorKind::Cancelled => outcome.cancelled = true,
                Err(error) => panic!("{error}"),
            }
        }
        if outcome.cancelled {
            break;
        }
    }
    // Half of them are dropped with what they hold.
    if script.is_multiple_of(2) {
        sequences.into_iter().for_each(|sequence| session.close(sequence).unwrap());
    }
    outcome
}

/// Continues in the same sequence, in a fork of it, or in one restored from a snapshot.
fn move_on(session: &mut dyn InferenceSession, sequence: SequenceId, script: usize) -> SequenceId {
    match script % 3 {
        0 => sequence,
        1 => session.fork(sequence).unwrap(),
        _ => {
            let snapshot = session.snapshot(sequence).unwrap();
            session.close(sequence).unwrap();
            session.restore(&snapshot).unwrap()
        }
    }
}

/// The memory of this process, in bytes.
#[cfg(target_os = "linux")]
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}

#[cfg(not(target_os = "linux"))]
fn resident() -> usize {
    0
}

/// Uses `sessions` sessions of one engine, of which every fifth is cancelled at some time.
fn hold(engine: &dyn Backend, sessions: usize) {
    let fixture = Fixture::named("llama");
    let model = load(engine, &fixture, Precision::Exact);
    let prompts: Vec<_> = fixture.cases().into_iter().map(|case| case.prompt).collect();
    let alone: Vec<Outcome> =
        (0..SCRIPTS).map(|script| use_session(&*model, &prompts, script, &CancelToken::new())).collect();
    assert!(alone.iter().all(|outcome| outcome.texts.iter().all(|text| text.len() == STEPS)));

    let (to_cancel, doomed) = mpsc::channel::<CancelToken>();
    let canceller = thread::spawn(move || {
        for (number, token) in doomed.into_iter().enumerate() {
            thread::sleep(Duration::from_micros(137 * (number as u64 % 40)));
            token.cancel();
        }
    });
    let (next, cancelled, whole) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    let work = |until: usize, to_cancel: &mpsc::Sender<CancelToken>| {
        while let Ok(number) =
            next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |next| (next < until).then_some(next + 1))
        {
            let (script, cancel) = (number % SCRIPTS, CancelToken::new());
            if number % 5 == 0 {
                to_cancel.send(cancel.clone()).unwrap();
            }
            let outcome = use_session(&*model, &prompts, script, &cancel);
            for (text, alone) in outcome.texts.iter().zip(&alone[script].texts) {
                assert!(alone.starts_with(text), "session {number}: {text:?}, and alone {alone:?}");
                assert!(outcome.cancelled || text.len() == STEPS, "session {number} has lost a token");
            }
            let counter = if outcome.cancelled { &cancelled } else { &whole };
            counter.fetch_add(1, Ordering::Relaxed);
        }
    };
    let work_together = |until: usize| {
        thread::scope(|scope| {
            for _ in 0..THREADS {
                let (to_cancel, work) = (to_cancel.clone(), &work);
                scope.spawn(move || work(until, &to_cancel));
            }
        });
    };
    work_together(WARM);
    let warm = resident();
    work_together(sessions);
    let grown = resident().saturating_sub(warm);
    drop(to_cancel);
    canceller.join().unwrap();
    let (cancelled, whole) = (cancelled.into_inner(), whole.into_inner());
    println!(
        "{}: {whole} sessions to their end, {cancelled} cancelled; {} MiB after {WARM}, {} KiB more at the end",
        engine.name(),
        warm >> 20,
        grown >> 10
    );
    assert_eq!(whole + cancelled, sessions);
    // A session holds half a megabyte; the heaps of the threads vary by some.
    assert!(grown <= 16 << 20, "{}: {grown} bytes more after {sessions} sessions", engine.name());
}

/// Runs `hold` in a process in which only the test of that name runs: memory is counted by process.
fn alone(test: &str, hold: impl FnOnce()) {
    const ALONE: &str = "MLXCEL_TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return hold();
    }
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args([test, "--exact", "--include-ignored", "--nocapture"]).env(ALONE, "1");
    let output = child.output().unwrap();
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    println!("{text}");
}

#[test]
fn sessions_of_many_threads_match_single_sequence_runs_and_free_memory() {
    alone("load::sessions_of_many_threads_match_single_sequence_runs_and_free_memory", || {
        engines().iter().for_each(|engine| hold(&**engine, WARM + 60));
    });
}

/// `cargo test --release -p mlxcel-tests --features mlx --test load -- --ignored --nocapture`
#[test]
#[ignore = "takes minutes"]
fn two_thousand_sessions() {
    alone("load::two_thousand_sessions", || {
        engines_and_plugin().iter().for_each(|engine| hold(&**engine, 2000));
    });
}
