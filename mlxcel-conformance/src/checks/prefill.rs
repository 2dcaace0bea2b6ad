//! Prefill chunking of one sequence.

use mlxcel_core::SequenceId;

use crate::failure::{Failure, Outcome, ensure};
use crate::outlook::{extend, greedy, logits, same_logits, stands_at};
use crate::subject::Subject;
use crate::walk::Walk;

/// A prompt in chunks of any size, also near the border of a window, continues the same as the whole prompt.
///
/// Kills: `chunk_off_by_one`, `forgets_between_steps`, `padding_leaks`, `full_windows_lose_a_token`.
pub fn chunked_prefill(subject: &Subject<'_>) -> Outcome {
    let prompt = subject.tokens(0, subject.long()?)?;
    let mut session = subject.session()?;
    let borders =
        subject.window.into_iter().flat_map(|window| [window.saturating_sub(1), window, window + 1]);
    // Near a window, all chunks have the same length.
    let whole = |size: usize| (size, prompt.len() - prompt.len() % size.max(1));
    let cuts = [2, 7, 33, 64, 65].map(|size| (size, prompt.len())).into_iter().chain(borders.map(whole));
    let cuts: Vec<_> = cuts.filter(|&(size, length)| (1..length).contains(&size)).collect();
    ensure!(!cuts.is_empty(), "a prompt of {} tokens cannot be cut; load with more capacity", prompt.len());
    for (size, length) in cuts {
        let mut walk = Walk::open(&mut *session, Vec::new())?;
        let chunks: Vec<_> = prompt[..length].chunks(size).collect();
        let Some((last, rest)) = chunks.split_last() else { break };
        for chunk in rest {
            extend(&mut *session, walk.sequence, chunk)?;
            walk.held.extend_from_slice(chunk);
            stands_at(&*session, walk.sequence, walk.held.len())?;
        }
        walk.pending = last.to_vec();
        walk.run(subject, &mut *session, 3, format_args!("in chunks of {size}"))?;
        session.close(walk.sequence)?;
    }
    Ok(())
}

/// A prompt fed token by token continues the same as the whole prompt.
///
/// Kills: `forgets_between_steps`, `second_token_is_lost`.
pub fn token_by_token(subject: &Subject<'_>) -> Outcome {
    let prompt = subject.tokens(1, subject.length(20)?)?;
    let mut session = subject.session()?;
    let mut walk = Walk::open(&mut *session, Vec::new())?;
    for &token in &prompt {
        walk.pending = vec![token];
        let chosen = greedy(&mut *session, walk.sequence, &walk.pending)?;
        walk.take(subject, &chosen, format_args!("after token {}", walk.held.len()))?;
    }
    stands_at(&*session, walk.sequence, prompt.len())
}

/// The logits after a prompt are the same for the whole prompt, in chunks and token by token. Needs logits.
///
/// Kills: `chunk_off_by_one`, `forgets_between_steps`, `second_token_is_lost`.
pub fn logits_do_not_depend_on_chunks(subject: &Subject<'_>) -> Outcome {
    let prompt = subject.tokens(2, subject.length(70)?)?;
    let tolerance = subject.tolerance()?;
    let mut session = subject.session()?;
    let run = |session: &mut dyn mlxcel_core::InferenceSession, size: usize| -> Outcome<Vec<f32>> {
        let sequence: SequenceId = session.open()?;
        let chunks: Vec<_> = prompt.chunks(size).collect();
        let (last, rest) = chunks.split_last().ok_or_else(|| Failure::new("the prompt is empty"))?;
        for chunk in rest {
            extend(session, sequence, chunk)?;
        }
        let result = logits(session, sequence, last)?;
        session.close(sequence)?;
        Ok(result)
    };
    let whole = run(&mut *session, prompt.len())?;
    for size in [1, 5, 64] {
        let chunked = run(&mut *session, size)?;
        same_logits(&chunked, &whole, &tolerance, format_args!("in chunks of {size}"))?;
    }
    Ok(())
}

/// A sequence's position is the number of tokens fed, for every want.
///
/// Kills: `counts_rows_as_tokens`.
pub fn positions_count_tokens(subject: &Subject<'_>) -> Outcome {
    let tokens = subject.tokens(3, 12)?;
    let mut session = subject.session()?;
    let sequence = session.open()?;
    let capacity = session.state(sequence)?.capacity;
    extend(&mut *session, sequence, &tokens[..5])?;
    stands_at(&*session, sequence, 5)?;
    greedy(&mut *session, sequence, &tokens[5..6])?;
    stands_at(&*session, sequence, 6)?;
    greedy(&mut *session, sequence, &tokens[6..9])?;
    stands_at(&*session, sequence, 9)?;
    let state = session.state(sequence)?;
    ensure!(
        state.capacity == capacity && state.remaining() == capacity - 9,
        "a sequence of {capacity} tokens at 9 has room for {}",
        state.remaining()
    );
    Ok(())
}

/// The greedy token has the largest logit, and its log probability is the log-softmax of that logit. Needs
/// logits.
///
/// Kills: `picks_the_second`.
pub fn greedy_is_argmax(subject: &Subject<'_>) -> Outcome {
    let mut session = subject.session()?;
    for number in 0..4 {
        let mut walk = Walk::open(&mut *session, subject.tokens(number, 3 + 5 * number)?)?;
        walk.run(subject, &mut *session, 4, format_args!("text {number}"))?;
        session.close(walk.sequence)?;
    }
    Ok(())
}
