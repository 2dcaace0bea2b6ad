//! Rewind. Needs [`Capabilities::rewind`](mlxcel_core::Capabilities::rewind).

use mlxcel_core::ErrorKind;

use crate::failure::{Outcome, refused};
use crate::outlook::{extend, stands_at};
use crate::subject::Subject;
use crate::walk::{Walk, computes_nothing};

/// After a rewind, a sequence continues as if the removed tokens had never been fed.
///
/// Kills: `rewinds_in_name_only`, `rewinds_one_short`, `rewinds_a_window`.
pub fn rewind_forgets(subject: &Subject<'_>) -> Outcome {
    let mut session = subject.session()?;
    // Longer than a window, whose earlier positions are gone.
    let text = subject.tokens(0, subject.long()?)?;
    let room = session.capabilities().context.saturating_sub(text.len());
    let detour = subject.tokens(1, subject.length(20)?.min(room.saturating_sub(4)).max(3))?;
    let mut walk = Walk::open(&mut *session, Vec::new())?;
    extend(&mut *session, walk.sequence, &text)?;
    // To the middle, to one token, and to the beginning, each after feeding many or few tokens.
    for (position, more) in [(text.len() - 1, detour.len()), (text.len() / 2, 3), (1, detour.len()), (0, 2)] {
        extend(&mut *session, walk.sequence, &detour[..more])?;
        session.rewind(walk.sequence, position)?;
        stands_at(&*session, walk.sequence, position)?;
        walk.held = text[..position].to_vec();
        walk.pending = text[position..position + 1].to_vec();
        walk.run(subject, &mut *session, 2, format_args!("after a rewind to {position}"))?;
        session.rewind(walk.sequence, position)?;
    }
    Ok(())
}

/// Rewinding to the current position works; beyond it is an error.
///
/// Kills: `rewinds_forward`.
pub fn rewind_has_bounds(subject: &Subject<'_>) -> Outcome {
    let mut session = subject.session()?;
    let text = subject.tokens(2, 6)?;
    let sequence = session.open()?;
    session.rewind(sequence, 0)?;
    refused(session.rewind(sequence, 1), ErrorKind::InvalidInput, "a forward rewind of an empty sequence")?;
    extend(&mut *session, sequence, &text)?;
    session.rewind(sequence, text.len())?;
    refused(session.rewind(sequence, text.len() + 1), ErrorKind::InvalidInput, "a rewind one token forward")?;
    refused(session.rewind(sequence, usize::MAX), ErrorKind::InvalidInput, "far forward")?;
    stands_at(&*session, sequence, text.len())?;
    let mut walk = Walk { sequence, held: text, pending: subject.tokens(3, 1)? };
    walk.run(subject, &mut *session, 1, "after a rejected rewind")
}

/// A rewind computes nothing.
///
/// Kills: `rewind_computes_again`.
pub fn rewind_computes_nothing(subject: &Subject<'_>) -> Outcome {
    computes_nothing(subject, "rewind", |session, sequence| session.rewind(sequence, 4))
}
