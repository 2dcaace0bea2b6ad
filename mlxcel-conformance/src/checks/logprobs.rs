//! Log probabilities and the most likely tokens.

use mlxcel_core::{
    Control, InferenceSession, InferenceSessionExt, PositionResult, Row, RowResult, SampledToken,
    SamplingPlan, SequenceId, TokenId, TokenLogprob, Want,
};

use crate::failure::{Outcome, ensure};
use crate::outlook::{choose, expect_token, log_softmax, logits, step, unexpected};
use crate::subject::Subject;
use crate::walk::Walk;

/// Logits are finite, one per token of the vocabulary, and not all equal. Needs logits.
///
/// Kills: `leaves_logits_out`.
pub fn logits_are_complete(subject: &Subject<'_>) -> Outcome {
    let vocabulary = subject.model()?.info().vocabulary_size;
    let mut session = subject.session()?;
    for number in 0..3 {
        let sequence = session.open()?;
        let logits = logits(&mut *session, sequence, &subject.tokens(number, 1 + 4 * number)?)?;
        ensure!(logits.len() == vocabulary, "{} logits for {vocabulary} tokens", logits.len());
        ensure!(logits.iter().all(|logit| logit.is_finite()), "a logit is not finite");
        ensure!(
            vocabulary == 1 || logits.iter().any(|&logit| logit != logits[0]),
            "all logits are {}",
            logits[0]
        );
        session.close(sequence)?;
    }
    Ok(())
}

/// Probabilities are normalized over the whole vocabulary: they sum to one over all tokens, and to less over
/// some; with logits, they are their softmax. Needs top logprobs.
///
/// Kills: `logprobs_are_logits`.
pub fn logprobs_sum_to_one(subject: &Subject<'_>) -> Outcome {
    let model = subject.model()?;
    let (vocabulary, most) = (model.info().vocabulary_size, model.capabilities().top_logprobs);
    let mut session = subject.session()?;
    for number in 0..3 {
        let sequence = session.open()?;
        let tokens = subject.tokens(number, 5)?;
        let chosen = choose(&mut *session, sequence, &tokens, most)?;
        session.close(sequence)?;
        let sum: f64 = chosen.top.iter().map(|entry| f64::from(entry.logprob).exp()).sum();
        ensure!(sum <= 1.0 + 1e-3, "the {most} most likely tokens have {sum} of all probability");
        ensure!(
            usize::from(most) < vocabulary || (sum - 1.0).abs() <= 1e-3,
            "all {vocabulary} tokens together have {sum} of all probability"
        );
        let outlook = subject.outlook(&tokens)?;
        if outlook.logits.is_some() {
            for &TokenLogprob { token, logprob } in &chosen.top {
                outlook.scores(token, logprob, &subject.tolerance()?, "one of the most likely")?;
            }
        }
        ensure!(chosen.logprob <= 1e-5, "token {} has log probability {}", chosen.token, chosen.logprob);
    }
    Ok(())
}

/// The most likely tokens are sorted, complete, and start with the greedy token; with logits, they have the
/// largest logits. Needs top logprobs.
///
/// Kills: `top_is_unsorted`, `top_is_one_short`.
pub fn top_is_sorted(subject: &Subject<'_>) -> Outcome {
    let claimed = subject.model()?.capabilities().clone();
    let vocabulary = subject.model()?.info().vocabulary_size;
    let mut session = subject.session()?;
    let tokens = subject.tokens(3, 7)?;
    for top in [1, 2, 5, claimed.top_logprobs] {
        let top = top.min(claimed.top_logprobs);
        let sequence = session.open()?;
        let chosen = choose(&mut *session, sequence, &tokens, top)?;
        session.close(sequence)?;
        ordered(&chosen, usize::from(top).min(vocabulary))?;
        subject.agrees(&chosen, &tokens, format_args!("with the {top} most likely"))?;
        let outlook = subject.outlook(&tokens)?;
        if let Some(logits) = &outlook.logits {
            let tolerance = subject.tolerance()?;
            for &TokenLogprob { token, logprob } in &chosen.top {
                outlook.scores(token, logprob, &tolerance, "one of the most likely")?;
            }
            let last = chosen.top.last().map_or(f32::INFINITY, |entry| entry.logprob);
            let left_out = (0..vocabulary as u32)
                .filter(|token| chosen.top.iter().all(|entry| entry.token != *token))
                .find(|&token| log_softmax(logits, token) > last + outlook.bounds(&tolerance).logprob);
            ensure!(left_out.is_none(), "token {left_out:?} is more likely than the last of the top {top}");
        }
    }
    let sequence = session.open()?;
    let chosen = choose(&mut *session, sequence, &tokens, 0)?;
    ensure!(chosen.top.is_empty(), "most likely tokens were returned without a request");
    Ok(())
}

fn ordered(chosen: &SampledToken, count: usize) -> Outcome {
    let top = &chosen.top;
    ensure!(top.len() == count, "{count} most likely tokens were requested, and {} returned", top.len());
    ensure!(
        top.first().is_none_or(|first| first.token == chosen.token && first.logprob == chosen.logprob),
        "the greedy choice {} is not the first of the most likely, {top:?}",
        chosen.token
    );
    let in_order = |pair: &[TokenLogprob]| {
        pair[0].logprob > pair[1].logprob
            || (pair[0].logprob == pair[1].logprob && pair[0].token != pair[1].token)
    };
    ensure!(top.windows(2).all(in_order), "the most likely tokens are not in order: {top:?}");
    let mut tokens: Vec<_> = top.iter().map(|entry| entry.token).collect();
    tokens.sort_unstable();
    tokens.dedup();
    ensure!(tokens.len() == count, "a token is twice among the most likely");
    Ok(())
}

/// The results of a row at every position.
fn positions(
    session: &mut dyn InferenceSession,
    sequence: SequenceId,
    tokens: &[TokenId],
    top: u16,
) -> Outcome<Vec<PositionResult>> {
    let row = Row::new(sequence, tokens, Want::likelihoods(top));
    match step(session, &[row])?.remove(0)? {
        RowResult::Likelihoods(positions) if positions.len() == tokens.len() => Ok(positions),
        other => Err(unexpected("every position", &other)),
    }
}

/// Scoring a text at once or in chunks gives the same results at each position as token by token. Needs every
/// position.
///
/// Kills: `scores_are_shifted`, `scores_the_last_everywhere`.
pub fn every_position_is_step_by_step(subject: &Subject<'_>) -> Outcome {
    let tolerance = subject.tolerance()?;
    let most = subject.model()?.capabilities().top_logprobs;
    let text = subject.tokens(4, subject.length(70)?)?;
    let mut session = subject.session()?;
    for (cut, top) in [(text.len(), most.min(2)), (text.len() / 3, 0), (1, 0)] {
        let sequence = session.open()?;
        let mut start = 0;
        // The second chunk of one token is enough.
        for chunk in text.chunks(cut).take(3) {
            let results = positions(&mut *session, sequence, chunk, top)?;
            for (i, result) in results.iter().enumerate() {
                // A few positions of a long text are enough.
                let last = i + 1 == chunk.len();
                if !(i < 4 || i % 13 == 0 || i + 4 >= chunk.len()) {
                    continue;
                }
                let what = format!("position {} of chunks of {cut}", start + i);
                let before = &text[..start + i + 1];
                let best = SampledToken::new(result.best.token, result.best.logprob);
                subject.agrees(&best, before, &what)?;
                ensure!(
                    result.top.len() == usize::from(top),
                    "{what}: {} most likely tokens",
                    result.top.len()
                );
                ensure!(
                    result.following.is_none() == last,
                    "{what}: the token after it is scored as {:?}",
                    result.following
                );
                let outlook = subject.outlook(before)?;
                if let (Some(following), Some(_)) = (result.following, &outlook.logits) {
                    outlook.scores(chunk[i + 1], following, &tolerance, what)?;
                }
            }
            start += chunk.len();
        }
        session.close(sequence)?;
    }
    Ok(())
}

/// Draft tokens are verified in one row, and the sequence rewinds to the first rejected one. Needs every
/// position and rewind.
///
/// Kills: `rewinds_in_name_only`, `scores_are_shifted`.
pub fn scored_drafts_can_be_rewound(subject: &Subject<'_>) -> Outcome {
    let prompt = subject.tokens(5, 10)?;
    let vocabulary = subject.model()?.info().vocabulary_size as u32;
    // The model's own continuation.
    let mut truth = prompt.clone();
    for _ in 0..6 {
        truth.push(subject.outlook(&truth)?.token);
    }
    let own = &truth[prompt.len()..];
    let plan = SamplingPlan::greedy();
    let mut session = subject.session()?;
    for wrong in [0, 2, 4] {
        let sequence = session.open()?;
        let first = session.run_row(Row::next(sequence, &prompt, &plan), &Control::default())?;
        subject.agrees(&expect_token(first)?, &prompt, "the token before the draft")?;
        // The draft follows the model's own text up to one wrong token.
        let mut draft = own[..5].to_vec();
        draft[wrong] = (draft[wrong] + 1) % vocabulary;
        let results = positions(&mut *session, sequence, &draft, 0)?;
        for (i, result) in results.iter().enumerate() {
            let held = [&prompt, &draft[..=i]].concat();
            let best = SampledToken::new(result.best.token, result.best.logprob);
            subject.agrees(&best, &held, format_args!("after drafted token {i}"))?;
        }
        session.rewind(sequence, prompt.len() + wrong)?;
        let mut walk =
            Walk { sequence, held: truth[..prompt.len() + wrong].to_vec(), pending: vec![own[wrong]] };
        walk.run(subject, &mut *session, 3, format_args!("after token {wrong} of the draft was wrong"))?;
        session.close(sequence)?;
    }
    Ok(())
}
