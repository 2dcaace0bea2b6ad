//! A session that several conversations share: branches of one are sequences of one session.

use std::sync::Arc;

use mlxcel_core::{
    Capabilities, Control, InferenceSession, Result, Row, SequenceId, SequenceOptions, SequenceState,
    SessionStats, Snapshot, StepOutput,
};

use crate::sync::{Mutex, MutexGuard, unpoisoned};

/// A session behind a lock, which is held for a step at a time.
#[derive(Clone)]
pub(super) struct SharedSession {
    session: Arc<Mutex<Box<dyn InferenceSession>>>,
    capabilities: Capabilities,
}

impl SharedSession {
    pub(super) fn new(session: Box<dyn InferenceSession>) -> Self {
        let capabilities = session.capabilities().clone();
        Self { session: Arc::new(Mutex::new(session)), capabilities }
    }

    /// The session; one that panicked is left as it is, and says by itself which sequences are usable.
    fn lock(&self) -> MutexGuard<'_, Box<dyn InferenceSession>> {
        unpoisoned(self.session.lock())
    }
}

/// Methods that lock the session for one call: first those that borrow it shared, then the others.
macro_rules! locked {
    (
        $(fn $shared:ident($($argument:ident: $type:ty),*) -> $returned:ty;)*
        $(mut fn $exclusive:ident($($other:ident: $other_type:ty),*) -> $other_returned:ty;)*
    ) => {
        $(fn $shared(&self, $($argument: $type),*) -> $returned {
            self.lock().$shared($($argument),*)
        })*
        $(fn $exclusive(&mut self, $($other: $other_type),*) -> $other_returned {
            self.lock().$exclusive($($other),*)
        })*
    };
}

#[deny(clippy::missing_trait_methods)]
impl InferenceSession for SharedSession {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    locked! {
        fn state(sequence: SequenceId) -> Result<SequenceState>;
        fn stats() -> SessionStats;
        mut fn open() -> Result<SequenceId>;
        mut fn open_with(options: &SequenceOptions) -> Result<SequenceId>;
        mut fn close(sequence: SequenceId) -> Result<()>;
        mut fn step(rows: &[Row<'_>], control: &Control<'_>, out: &mut StepOutput) -> Result<()>;
        mut fn rewind(sequence: SequenceId, position: usize) -> Result<()>;
        mut fn fork(sequence: SequenceId) -> Result<SequenceId>;
        mut fn snapshot(sequence: SequenceId) -> Result<Snapshot>;
        mut fn restore(snapshot: &Snapshot) -> Result<SequenceId>;
        mut fn restore_with(snapshot: &Snapshot, options: &SequenceOptions) -> Result<SequenceId>;
    }
}

#[cfg(test)]
mod tests {
    use mlxcel_core::reference::ReferenceBackend;
    use mlxcel_core::{InferenceSessionExt, RowResult, SessionOptions, TokenId};

    use super::*;
    use crate::sync::{explore, thread};

    fn session(model: &dyn mlxcel_core::Model) -> (SharedSession, SequenceId) {
        let mut session = SharedSession::new(model.open_session(&SessionOptions::default()).unwrap());
        let sequence = session.open().unwrap();
        session.run_row(Row::extend(sequence, &[1, 2, 3]), &Control::default()).unwrap();
        (session, sequence)
    }

    /// Appends a branch's `tokens`, and returns the results after each.
    fn run(session: &mut dyn InferenceSession, sequence: SequenceId, tokens: &[TokenId]) -> Vec<RowResult> {
        let mut result =
            |token| session.run_row(Row::logits(sequence, std::slice::from_ref(token)), &Control::default());
        tokens.iter().map(|token| result(token).unwrap()).collect()
    }

    #[test]
    fn branches_on_other_threads_neither_change_a_sequence_nor_need_it() {
        let model = ReferenceBackend::new().model().unwrap();
        let continuations: [&[TokenId]; 3] = [&[4, 5], &[6, 7], &[8, 9]];
        let expected = continuations.map(|tokens| {
            let mut session = model.open_session(&SessionOptions::default()).unwrap();
            let sequence = session.open().unwrap();
            session.run_row(Row::extend(sequence, &[1, 2, 3]), &Control::default()).unwrap();
            run(&mut *session, sequence, tokens)
        });
        explore(4000, move || {
            let (mut root, sequence) = session(&*model);
            let branches: Vec<_> = continuations[1..]
                .iter()
                .map(|&tokens| {
                    let mut branch = root.clone();
                    let copy = branch.fork(sequence).unwrap();
                    thread::spawn(move || {
                        let results = run(&mut branch, copy, tokens);
                        assert_eq!(branch.state(copy).unwrap().position, 5);
                        branch.close(copy).unwrap();
                        results
                    })
                })
                .collect();
            assert_eq!(run(&mut root, sequence, continuations[0]), expected[0]);
            root.close(sequence).unwrap();
            for (branch, expected) in branches.into_iter().zip(&expected[1..]) {
                assert_eq!(&branch.join().unwrap(), expected);
            }
        });
    }
}
