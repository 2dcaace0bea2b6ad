//! Compiles grammars for a vocabulary, within resource limits.
//!
//! The compiler counts most of its work and gives up beyond a limit, but not the first step of its lexer,
//! which can take minutes for a few characters of a schema. That step is rehearsed first, with the same
//! count: a grammar that fails the rehearsal is not compiled. So compiling ends by itself, and no thread goes
//! on that nobody waits for.

use std::panic::AssertUnwindSafe;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use llguidance::api::{GrammarInit, TopLevelGrammar};
use llguidance::earley::lexerspec::LexerSpec;
use llguidance::panic_utils::catch_unwind;
use llguidance::{Matcher, ParserFactory};
use mlxcel_core::{Error, ErrorKind, Result};

use crate::sync::unpoisoned;

/// How long a grammar may wait and be compiled together.
const TIME: Duration = Duration::from_secs(10);
/// How many are compiled at once; others wait.
const MOST_AT_ONCE: usize = 4;
/// The compiler goes down as deep as a grammar is nested.
const STACK: usize = 64 << 20;

/// How many are being compiled.
static RUNNING: Mutex<usize> = Mutex::new(0);
static ENDED: Condvar = Condvar::new();

/// One that is being compiled.
struct Running;

impl Running {
    /// Waits for a place until `limit` is over.
    fn begin(limit: Duration) -> Result<Self> {
        let running = unpoisoned(RUNNING.lock());
        let full = |running: &mut usize| *running >= MOST_AT_ONCE;
        let (mut running, _) = unpoisoned(ENDED.wait_timeout_while(running, limit, full));
        if *running >= MOST_AT_ONCE {
            return Err(exhausted("too many grammars are being compiled; try again later"));
        }
        *running += 1;
        Ok(Self)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        *unpoisoned(RUNNING.lock()) -= 1;
        ENDED.notify_one();
    }
}

/// Compiles `grammar`, on a thread of its own, so that neither its depth nor its time is the caller's.
pub(super) fn compile(factory: &Arc<ParserFactory>, grammar: TopLevelGrammar) -> Result<Matcher> {
    let started = Instant::now();
    let running = Running::begin(TIME)?;
    let factory = Arc::clone(factory);
    let (sender, compiled) = mpsc::sync_channel(1);
    let run = move || {
        let matcher = catch_unwind(AssertUnwindSafe(|| compile_now(&factory, grammar)));
        drop(running);
        // No request waits for one that took too long.
        let _ = sender.send(matcher.map_err(|fault| fault.to_string()));
    };
    std::thread::Builder::new().name("mlxcel-grammar".to_owned()).stack_size(STACK).spawn(run).map_err(
        |fault| exhausted("the system cannot start a thread to compile the grammar").with_source(fault),
    )?;
    match compiled.recv_timeout(TIME.saturating_sub(started.elapsed())) {
        Ok(matcher) => matcher.map_err(|fault| refused(&fault)),
        Err(RecvTimeoutError::Timeout) => Err(too_complex().with_context("seconds", TIME.as_secs())),
        Err(RecvTimeoutError::Disconnected) => {
            Err(Error::new(ErrorKind::Internal, "compile grammar", "the thread ended without a result"))
        }
    }
}

fn compile_now(factory: &ParserFactory, grammar: TopLevelGrammar) -> anyhow::Result<Matcher> {
    let init = GrammarInit::Serialized(grammar);
    let (grammar, lexer) = init.to_internal(Some(factory.tok_env().clone()), factory.limits().clone())?;
    rehearse(factory, lexer.clone())?;
    let init = GrammarInit::Internal(grammar, lexer);
    let matcher = Matcher::new(factory.create_parser_from_init_default(init));
    matcher.get_error().map_or(Ok(matcher), |fault| Err(anyhow::Error::msg(fault)))
}

/// Takes the steps that a new lexer takes from its first state, counting them.
fn rehearse(factory: &ParserFactory, mut lexer: LexerSpec) -> anyhow::Result<()> {
    lexer.add_extra_lexemes(&factory.extra_lexemes());
    let mut limits = factory.limits().clone();
    let mut automaton = lexer.to_regex_vec(&mut limits)?;
    automaton.set_fuel(limits.initial_lexer_fuel);
    let first = automaton.initial_state(&lexer.all_lexemes());
    for byte in 0..=u8::MAX {
        automaton.transition(first, byte);
    }
    automaton.get_error().map_or(Ok(()), |fault| Err(anyhow::Error::msg(fault)))
}

/// What the compiler says when a grammar exceeds one of its limits.
const OF_LIMITS: [&str; 7] = [
    "too big",
    "too large",
    "fuel",
    "lexer precomputation failed",
    "too many expressions",
    "too many states",
    "too many items",
];

/// The error for what the compiler says of a grammar.
fn refused(fault: &str) -> Error {
    // The first line says what is wrong, that of a regular expression with a reason further down; others may
    // be a trace of calls.
    let reason = fault.lines().find_map(|line| line.trim().strip_prefix("error: "));
    let fault = fault.lines().next().unwrap_or_default();
    let fault = reason.map_or_else(|| fault.to_owned(), |reason| format!("{fault} {reason}"));
    // It panics where its numbers are too small for a grammar, such as a product of two factors of
    // `multipleOf`.
    if fault.starts_with("panic") {
        return too_complex();
    }
    if OF_LIMITS.iter().any(|limit| fault.contains(limit)) {
        return too_complex().with_source(fault);
    }
    super::invalid("the grammar cannot be used").with_source(fault)
}

fn too_complex() -> Error {
    super::too_complex("the grammar takes too much time or memory to be compiled; make it simpler")
}

fn exhausted(reason: &'static str) -> Error {
    Error::new(ErrorKind::ResourceExhausted, "compile grammar", reason)
}
