//! Batching: several sequences per step.

use mlxcel_core::{InferenceSession, Row, RowResult, SamplingPlan};

use crate::failure::{Failure, Outcome, ensure};
use crate::outlook::{expect_token, extend, greedy, step, unexpected};
use crate::subject::Subject;
use crate::walk::{Walk, step_together};

/// Opens walks over different texts of different lengths, as many as fit into one batch.
fn companions(subject: &Subject<'_>, session: &mut dyn InferenceSession, most: usize) -> Outcome<Vec<Walk>> {
    let count = session.capabilities().sequences.min(most);
    (0..count).map(|i| Walk::open(session, subject.tokens(i, 3 + 4 * i)?)).collect()
}

/// Batched sequences of different lengths generate the same as each one alone. Needs two sequences.
///
/// Kills: `shares_kv`, `rounds_to_the_longest`, `rounds_to_four_bits_in_batches`, `drops_a_term_in_batches`.
pub fn batch_equals_single(subject: &Subject<'_>) -> Outcome {
    let mut session = subject.session()?;
    let mut walks = companions(subject, &mut *session, 4)?;
    for turn in 0..4 {
        step_together(subject, &mut *session, &mut walks, format_args!("step {turn}"))?;
    }
    Ok(())
}

/// With prompt chunks and decoding rows mixed in steps, and sequences joining and leaving, each generates the
/// same as alone. Needs two sequences.
///
/// Kills: `chunk_delays_the_others`, `shares_kv`.
pub fn mixed_steps(subject: &Subject<'_>) -> Outcome {
    let mut session = subject.session()?;
    let limit = session.capabilities().sequences.min(4);
    let long = subject.tokens(9, subject.length(70)?)?;
    let plan = SamplingPlan::greedy();
    let mut walks: Vec<Walk> = Vec::new();
    for turn in 0..6 {
        // One joins with its prompt; if all slots are taken, the oldest leaves first.
        if walks.len() == limit {
            let leaving = walks.remove(0);
            session.close(leaving.sequence)?;
        }
        walks.push(Walk::open(&mut *session, subject.tokens(turn, 2 + 3 * turn)?)?);
        step_together(subject, &mut *session, &mut walks, format_args!("turn {turn}"))?;
        step_together(subject, &mut *session, &mut walks, format_args!("turn {turn}, decoding"))?;
    }
    // A long prompt in chunks, with a result for the last only, while others decode.
    if walks.len() == limit {
        let leaving = walks.remove(0);
        session.close(leaving.sequence)?;
    }
    let mut newcomer = Walk::open(&mut *session, Vec::new())?;
    let chunks: Vec<_> = long.chunks(long.len().div_ceil(3)).collect();
    for (number, chunk) in chunks.iter().enumerate() {
        let last = number + 1 == chunks.len();
        let row = match last {
            true => Row::next(newcomer.sequence, chunk, &plan),
            false => Row::extend(newcomer.sequence, chunk),
        };
        let mut rows: Vec<_> =
            walks.iter().map(|walk| Row::next(walk.sequence, &walk.pending, &plan)).collect();
        // In the middle, with neighbours on both sides.
        let middle = rows.len() / 2;
        rows.insert(middle, row);
        let mut results = step(&mut *session, &rows)?;
        let own = results.remove(middle)?;
        newcomer.pending = chunk.to_vec();
        match own {
            RowResult::Extended if !last => newcomer.held.append(&mut newcomer.pending),
            own => newcomer.take(subject, &expect_token(own)?, "the long prompt")?,
        }
        for (walk, result) in walks.iter_mut().zip(results) {
            walk.take(subject, &expect_token(result?)?, format_args!("beside chunk {number}"))?;
        }
    }
    walks.push(newcomer);
    step_together(subject, &mut *session, &mut walks, "after the long prompt")
}

/// Results are in the order of the rows, independent of the order in which sequences were opened. Needs two
/// sequences.
///
/// Kills: `answers_by_sequence`.
pub fn results_are_in_row_order(subject: &Subject<'_>) -> Outcome {
    let mut session = subject.session()?;
    let mut walks = companions(subject, &mut *session, 4)?;
    walks.reverse();
    step_together(subject, &mut *session, &mut walks, "in reverse")?;
    let half = walks.len() / 2;
    walks.rotate_left(half);
    step_together(subject, &mut *session, &mut walks, "rotated")?;
    // Each row gets the result that it wanted.
    let tokens = subject.tokens(7, 2)?;
    let plan = SamplingPlan::greedy();
    let rows = [Row::extend(walks[1].sequence, &tokens), Row::next(walks[0].sequence, &tokens, &plan)];
    let results = step(&mut *session, &rows)?;
    match (&results[0], &results[1]) {
        (Ok(RowResult::Extended), Ok(RowResult::Tokens(tokens))) if tokens.len() == 1 => Ok(()),
        (Ok(RowResult::Extended), Ok(other)) => Err(unexpected("a token", other)),
        (Ok(other), _) => Err(unexpected("nothing", other)),
        (Err(error), _) => Err(Failure::from(error.clone())),
    }
}

/// A step of [`Capabilities::batch_rows`](mlxcel_core::Capabilities::batch_rows) decoding rows takes one pass
/// over the weights.
///
/// Kills: `takes_rows_in_turns`, `miscounts_passes`.
pub fn batches_take_one_pass(subject: &Subject<'_>) -> Outcome {
    let mut session = subject.session()?;
    let claimed = session.capabilities().clone();
    let most = claimed.batch_rows.min(claimed.sequences);
    let mut walks = Vec::new();
    for count in 1..=most.min(8) {
        let mut walk = Walk::open(&mut *session, subject.tokens(count, 3)?)?;
        let chosen = greedy(&mut *session, walk.sequence, &walk.pending)?;
        walk.take(subject, &chosen, "the prompt")?;
        walks.push(walk);
        let before = session.stats();
        step_together(subject, &mut *session, &mut walks, format_args!("{count} rows"))?;
        let after = session.stats();
        ensure!(
            after.passes == before.passes + 1,
            "{count} decoding rows took {} passes",
            after.passes.wrapping_sub(before.passes)
        );
    }
    Ok(())
}

/// A row of [`Capabilities::prompt_chunk`](mlxcel_core::Capabilities::prompt_chunk) tokens takes one pass,
/// and a longer one takes more.
///
/// Kills: `overstates_prompt_chunk`, `understates_prompt_chunk`.
pub fn prompt_chunks_take_one_pass(subject: &Subject<'_>) -> Outcome {
    let mut session = subject.session()?;
    let (chunk, context) = (session.capabilities().prompt_chunk, session.capabilities().context);
    let mut passes = |tokens: usize| -> Outcome<u64> {
        let sequence = session.open()?;
        let before = session.stats().passes;
        extend(&mut *session, sequence, &subject.tokens(6, tokens)?)?;
        session.close(sequence)?;
        Ok(session.stats().passes - before)
    };
    if chunk > context {
        let whole = passes(context)?;
        // If a sequence cannot hold a whole chunk, rows may be split into smaller ones.
        ensure!(chunk != usize::MAX || whole == 1, "rows are claimed to take one pass, and one took {whole}");
        return Ok(());
    }
    let whole = passes(chunk)?;
    ensure!(whole == 1, "a row of {chunk} tokens, a chunk, took {whole} passes");
    if chunk < context {
        let longer = passes(chunk + 1)?;
        ensure!(longer > 1, "chunks have {chunk} tokens at most, and a longer row took one pass");
    }
    Ok(())
}

/// Results are bitwise equal single-sequence and batched, whole and in chunks. Needs the claim.
///
/// Kills: `rounds_in_batches`.
pub fn bitwise_invariance(subject: &Subject<'_>) -> Outcome {
    let prompt = subject.tokens(5, subject.length(40)?)?;
    let mut session = subject.session()?;
    let claimed = session.capabilities().clone();
    let plan = SamplingPlan::greedy();
    let (rest, last) = prompt.split_at(prompt.len() - 1);
    let bits = |result: RowResult| match result {
        RowResult::Logits(rows) => Ok(rows.iter().flatten().map(|logit| logit.to_bits()).collect::<Vec<_>>()),
        result => expect_token(result).map(|token| vec![token.token, token.logprob.to_bits()]),
    };
    let mut run = |chunk: usize, batched: bool| -> Outcome<Vec<u32>> {
        let sequence = session.open()?;
        for chunk in rest.chunks(chunk) {
            extend(&mut *session, sequence, chunk)?;
        }
        let wanted = match claimed.logits {
            true => Row::logits(sequence, last),
            false => Row::next(sequence, last, &plan),
        };
        let result = if batched {
            let neighbour = session.open()?;
            let result = step(&mut *session, &[Row::extend(neighbour, &prompt[..1]), wanted])?.remove(1)?;
            session.close(neighbour)?;
            result
        } else {
            step(&mut *session, &[wanted])?.remove(0)?
        };
        session.close(sequence)?;
        bits(result)
    };
    let expected = run(prompt.len(), false)?;
    for chunk in [1, 7] {
        ensure!(run(chunk, false)? == expected, "chunks of {chunk} are not bitwise equal");
    }
    if claimed.sequences >= 2 {
        ensure!(run(prompt.len(), true)? == expected, "batched results are not bitwise equal");
    }
    Ok(())
}
