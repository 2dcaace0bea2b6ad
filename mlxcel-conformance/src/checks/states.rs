//! Memory of sequences. Needs [`Subject::with_bounded_state`].

use crate::failure::{Failure, Outcome, ensure};
use crate::outlook::extend;
use crate::subject::Subject;
use crate::walk::Walk;

/// The memory of a sequence does not grow beyond the bound, also as a fork, and results stay correct.
///
/// Kills: `windows_grow`.
pub fn bounded_states_stop_growing(subject: &Subject<'_>) -> Outcome {
    let bounded = subject.bounded.ok_or_else(|| Failure::new("the subject has no bounded state"))?;
    let mut session = subject.session()?;
    let claimed = session.capabilities().clone();
    let most = claimed.context.saturating_sub(8);
    ensure!(most > bounded, "sequences of {} tokens are too short to exceed {bounded}", claimed.context);
    let text = subject.tokens(0, most)?;
    let mut walk = Walk::open(&mut *session, Vec::new())?;
    extend(&mut *session, walk.sequence, &text[..bounded])?;
    let held = session.stats().kv_bytes;
    ensure!(held > 0, "a sequence of {bounded} tokens takes no memory");
    // In chunks and in single tokens.
    for chunk in text[bounded..].chunks(5) {
        let (first, rest) = chunk.split_at(1);
        extend(&mut *session, walk.sequence, first)?;
        if !rest.is_empty() {
            extend(&mut *session, walk.sequence, rest)?;
        }
        let now = session.stats().kv_bytes;
        ensure!(now == held, "a sequence takes {now} bytes, and took {held} at {bounded} tokens");
    }
    if claimed.fork && claimed.sequences >= 2 {
        let fork = session.fork(walk.sequence)?;
        let both = session.stats().kv_bytes;
        ensure!(both <= 2 * held, "a sequence of {held} bytes and its fork take {both}");
        session.close(fork)?;
    }
    walk.held = text;
    walk.pending = subject.tokens(1, 1)?;
    walk.run(subject, &mut *session, 2, "beyond the bound")
}
