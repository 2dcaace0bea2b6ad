//! Compiles grammars for a vocabulary, within resource limits.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use llguidance::api::TopLevelGrammar;
use llguidance::panic_utils::catch_unwind;
use llguidance::{Matcher, ParserFactory};
use mlxcel_core::{Error, ErrorKind, Result};

/// How long a grammar may take to be compiled.
const TIME: Duration = Duration::from_secs(10);
/// How many are compiled at once, those that took too long and have not ended among them.
const MOST_AT_ONCE: usize = 16;
/// The compiler goes down as deep as a grammar is nested.
const STACK: usize = 64 << 20;

static RUNNING: AtomicUsize = AtomicUsize::new(0);

/// One that is being compiled.
struct Running;

impl Running {
    fn begin() -> Result<Self> {
        if RUNNING.fetch_add(1, Ordering::AcqRel) >= MOST_AT_ONCE {
            drop(Self);
            return Err(exhausted("too many grammars are being compiled; try again later"));
        }
        Ok(Self)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        RUNNING.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Compiles `grammar`, on a thread of its own, so that neither its depth nor its time is the caller's.
pub(super) fn compile(factory: &Arc<ParserFactory>, grammar: TopLevelGrammar) -> Result<Matcher> {
    let running = Running::begin()?;
    let factory = Arc::clone(factory);
    let (sender, compiled) = mpsc::sync_channel(1);
    let run = move || {
        let matcher = catch_unwind(AssertUnwindSafe(|| {
            let mut matcher = Matcher::new(factory.create_parser(grammar));
            match matcher.get_error() {
                Some(fault) => Err(anyhow::Error::msg(fault)),
                None => matcher.validate_tokens(&[]).map(|_| matcher),
            }
        }));
        drop(running);
        // No request waits for one that took too long.
        let _ = sender.send(matcher.map_err(|fault| fault.to_string()));
    };
    std::thread::Builder::new().name("mlxcel-grammar".to_owned()).stack_size(STACK).spawn(run).map_err(
        |fault| exhausted("the system cannot start a thread to compile the grammar").with_source(fault),
    )?;
    match compiled.recv_timeout(TIME) {
        Ok(Ok(matcher)) => Ok(matcher),
        Ok(Err(fault)) => {
            let reason = "the grammar cannot be used";
            // The first line says what is wrong; others may be a trace of calls.
            let fault = fault.lines().next().unwrap_or_default().to_owned();
            Err(Error::new(ErrorKind::InvalidInput, "compile grammar", reason).with_source(fault))
        }
        Err(RecvTimeoutError::Timeout) => {
            Err(exhausted("the grammar takes too long to be compiled; make it simpler")
                .with_context("seconds", TIME.as_secs()))
        }
        Err(RecvTimeoutError::Disconnected) => {
            Err(Error::new(ErrorKind::Internal, "compile grammar", "the thread ended by a panic"))
        }
    }
}

fn exhausted(reason: &'static str) -> Error {
    Error::new(ErrorKind::ResourceExhausted, "compile grammar", reason)
}
