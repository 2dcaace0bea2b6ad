//! Interrupts that stop an answer instead of the program.

use std::sync::{Arc, Mutex, PoisonError};

use mlxcel_session::CancelToken;

/// What an interrupt (Ctrl-C) stops instead of the program: an answer, while there is one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Interrupt(Arc<Mutex<Option<CancelToken>>>);

impl Interrupt {
    /// Listens to interrupts on Unix, and to the other signals as every program here does.
    pub(crate) fn listen() -> Self {
        let interrupt = Self::default();
        #[cfg(unix)]
        crate::signals::clean_up_on_signals(&interrupt);
        interrupt
    }

    /// Lets the next interrupt cancel `answer`; with `None`, it ends the program again.
    pub(crate) fn stops(&self, answer: Option<CancelToken>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = answer;
    }

    /// Cancels the answer; false if there is none, or if it was cancelled before.
    #[cfg(unix)]
    pub(crate) fn stop(&self) -> bool {
        let answer = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        answer.as_ref().filter(|answer| !answer.is_cancelled()).map(CancelToken::cancel).is_some()
    }
}
