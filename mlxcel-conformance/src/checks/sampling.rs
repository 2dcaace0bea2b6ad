//! Sampling on the device. Each check needs the [`SamplingField`]s that it uses.

use mlxcel_core::{
    Control, Dry, DynamicTemperature, InferenceSession, InferenceSessionExt, Mirostat, Row, SampledToken,
    SamplingField, SamplingFields, SamplingParams, SamplingPlan, SequenceId, TokenId, Xtc,
};

use crate::failure::{Failure, Outcome, ensure};
use crate::outlook::{argmax, expect_token, extend, log_softmax, step};
use crate::subject::Subject;
use crate::tolerance::largest;

/// A device plan of these parameters.
fn plan(subject: &Subject<'_>, params: &SamplingParams) -> Outcome<SamplingPlan> {
    Ok(SamplingPlan::negotiate(params, subject.model()?.capabilities())?)
}

/// A device plan that samples at this temperature.
fn drawn(subject: &Subject<'_>, temperature: f32, seed: u64) -> Outcome<SamplingPlan> {
    plan(subject, &SamplingParams::greedy().with_temperature(temperature).with_seed(seed))
}

/// All tokens, from the most to the least likely.
fn by_likelihood(logits: &[f32]) -> Vec<TokenId> {
    let mut order: Vec<TokenId> = (0..logits.len() as TokenId).collect();
    order.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]));
    order
}

fn sample(
    session: &mut dyn InferenceSession,
    sequence: SequenceId,
    tokens: &[TokenId],
    plan: &SamplingPlan,
) -> Outcome<SampledToken> {
    expect_token(session.run_row(Row::next(sequence, tokens, plan), &Control::default())?)
}

/// `count` tokens after a prompt, on their own sequence.
fn text(
    session: &mut dyn InferenceSession,
    prompt: &[TokenId],
    plan: &SamplingPlan,
    count: usize,
) -> Outcome<Vec<TokenId>> {
    let sequence = session.open()?;
    let mut pending = prompt.to_vec();
    let mut tokens = Vec::new();
    for _ in 0..count {
        let chosen = sample(session, sequence, &pending, plan)?;
        tokens.push(chosen.token);
        pending = vec![chosen.token];
    }
    session.close(sequence)?;
    Ok(tokens)
}

/// The same seed gives the same text, in the same and in another session. Needs the temperature.
///
/// Kills: `draws_from_a_counter`.
pub fn seeds_repeat(subject: &Subject<'_>) -> Outcome {
    let prompt = subject.tokens(0, 5)?;
    let mut session = subject.session()?;
    for seed in [0, 1, u64::MAX] {
        let plan = drawn(subject, 1.0, seed)?;
        let first = text(&mut *session, &prompt, &plan, 8)?;
        let second = text(&mut *session, &prompt, &plan, 8)?;
        ensure!(first == second, "seed {seed} gave {first:?} and then {second:?}");
        let other = text(&mut *subject.session()?, &prompt, &plan, 8)?;
        ensure!(first == other, "seed {seed} gave {first:?}, and in another session {other:?}");
    }
    Ok(())
}

/// Different seeds give different texts. Needs the temperature.
///
/// Kills: `ignores_seeds`.
pub fn seeds_differ(subject: &Subject<'_>) -> Outcome {
    let prompt = subject.tokens(1, 5)?;
    let mut session = subject.session()?;
    let mut texts = Vec::new();
    for seed in 0..8 {
        // So high that no choice is certain.
        texts.push(text(&mut *session, &prompt, &drawn(subject, 100.0, seed)?, 8)?);
    }
    let distinct = texts.iter().enumerate().filter(|&(i, text)| !texts[..i].contains(text)).count();
    ensure!(distinct >= 7, "8 seeds gave {distinct} texts");
    ensure!(
        texts.iter().any(|text| text.iter().any(|token| *token != text[0])),
        "every position of a text is drawn the same"
    );
    Ok(())
}

/// Batch composition, prefill chunking, rewind and fork do not change sampled tokens. Needs the temperature.
///
/// Kills: `draws_count_steps`.
pub fn draws_are_stateless(subject: &Subject<'_>) -> Outcome {
    let prompt = subject.tokens(2, 9)?;
    let plan = drawn(subject, 1.0, 7)?;
    let mut session = subject.session()?;
    let expected = text(&mut *session, &prompt, &plan, 4)?;
    let claimed = session.capabilities().clone();
    let same = |tokens: &[TokenId], what: &str| -> Outcome {
        ensure!(tokens == &expected[..tokens.len()], "{what} the draws are {tokens:?}, not {expected:?}");
        Ok(())
    };
    // With prefill chunks.
    let sequence = session.open()?;
    for chunk in prompt[..8].chunks(3) {
        extend(&mut *session, sequence, chunk)?;
    }
    same(&[sample(&mut *session, sequence, &prompt[8..], &plan)?.token], "in chunks")?;
    if claimed.rewind {
        session.rewind(sequence, 8)?;
        same(&[sample(&mut *session, sequence, &prompt[8..], &plan)?.token], "after a rewind")?;
    }
    if claimed.fork && claimed.sequences >= 2 {
        let fork = session.fork(sequence)?;
        let both = [sequence, fork].map(|sequence| Row::next(sequence, &expected[..1], &plan));
        for result in step(&mut *session, &both)? {
            same(&[expected[0], expect_token(result?)?.token], "after a fork")?;
        }
        session.close(fork)?;
    }
    session.close(sequence)?;
    if claimed.sequences >= 2 {
        let neighbour = session.open()?;
        let sequence = session.open()?;
        let rows = [Row::next(neighbour, &prompt[..2], &plan), Row::next(sequence, &prompt, &plan)];
        let result = step(&mut *session, &rows)?.remove(1)?;
        same(&[expect_token(result)?.token], "batched")?;
    }
    Ok(())
}

/// Tokens are sampled in proportion to their probabilities, at several temperatures. Needs the temperature
/// and logits.
///
/// Kills: `draws_ignore_temperature`.
pub fn draws_follow_probabilities(subject: &Subject<'_>) -> Outcome {
    let prompt = subject.tokens(3, 3)?;
    let Some(logits) = subject.outlook(&prompt)?.logits else { return Ok(()) };
    let mut session = subject.session()?;
    const DRAWS: u64 = 400;
    for temperature in [0.7, 1.6] {
        let scaled: Vec<f32> = logits.iter().map(|logit| logit / temperature).collect();
        // Tokens in two halves of about the same probability: the most likely, and the remainder.
        let mut share = 0.0;
        let likely: Vec<TokenId> = by_likelihood(&scaled)
            .into_iter()
            .take_while(|&token| {
                let before = share;
                share += f64::from(log_softmax(&scaled, token)).exp();
                before < 0.5
            })
            .collect();
        let share: f64 = likely.iter().map(|&token| f64::from(log_softmax(&scaled, token)).exp()).sum();
        let mut hits = 0.0;
        for seed in 0..DRAWS {
            let token = text(&mut *session, &prompt, &drawn(subject, temperature, seed)?, 1)?[0];
            hits += if likely.contains(&token) { 1.0 } else { 0.0 };
        }
        // Five standard deviations of a binomial distribution: a false failure once in a million engines.
        let expected = DRAWS as f64 * share;
        let deviation = (expected * (1.0 - share)).sqrt().max(1.0);
        ensure!(
            (hits - expected).abs() <= 5.0 * deviation,
            "at temperature {temperature} {hits} of {DRAWS} draws are among tokens with {share} of all \
             probability"
        );
    }
    Ok(())
}

/// The logits after a prompt with an uncertain next token.
fn undecided(subject: &Subject<'_>) -> Outcome<(Vec<TokenId>, Vec<f32>)> {
    let mut found: Option<(Vec<TokenId>, Vec<f32>, f32)> = None;
    for number in 0..6 {
        let prompt = subject.tokens(number, 6)?;
        let outlook = subject.outlook(&prompt)?;
        let (Some(logits), Some(margin)) = (outlook.logits, outlook.margin) else { continue };
        if found.as_ref().is_none_or(|(.., least)| margin < *least) {
            found = Some((prompt, logits, margin));
        }
    }
    let (prompt, logits, _) = found.ok_or_else(|| Failure::new("the engine returns no logits"))?;
    Ok((prompt, logits))
}

/// Fails unless draws with one filter stay within the tokens that it keeps, reach more than one of them, and
/// are the argmax with the `tight` filter.
///
/// `kept` returns, from the probabilities of all tokens, most likely first, how many the filter keeps.
fn filter_holds(
    subject: &Subject<'_>,
    tight: &SamplingParams,
    loose: &SamplingParams,
    kept: impl Fn(&[f64]) -> usize,
) -> Outcome {
    let (prompt, logits) = undecided(subject)?;
    let mut session = subject.session()?;
    let mut draw = |seed: u64, temperature: f32, filter: &SamplingParams| -> Outcome<_> {
        let plan = plan(subject, &filter.clone().with_temperature(temperature).with_seed(seed))?;
        let sequence = session.open()?;
        let chosen = sample(&mut *session, sequence, &prompt, &plan)?;
        session.close(sequence)?;
        Ok(chosen)
    };
    for seed in 0..8 {
        subject.agrees(&draw(seed, 2.0, tight)?, &prompt, "with a filter that leaves one token")?;
    }
    let order = by_likelihood(&logits);
    let probabilities: Vec<f64> =
        order.iter().map(|&token| f64::from(log_softmax(&logits, token)).exp()).collect();
    let count = kept(&probabilities).clamp(1, order.len());
    // Rounding may swap the last kept token with the next.
    let bounds = subject.tolerance()?.bounds(Some(largest(&logits)));
    let least = logits[order[count - 1] as usize] - bounds.margin;
    let mut seen = Vec::new();
    for seed in 0..64 {
        let token = draw(seed, 1.0, loose)?.token;
        ensure!(
            logits[token as usize] >= least,
            "token {token} was drawn, and the filter keeps the {count} most likely: {:?}",
            &order[..count]
        );
        if !seen.contains(&token) {
            seen.push(token);
        }
    }
    let share: f64 = probabilities[..count].iter().sum();
    ensure!(
        seen.len() > 1 || probabilities[0] > 0.9 * share,
        "64 draws gave only token {seen:?}, and the filter keeps {count} tokens"
    );
    Ok(())
}

/// Sampled tokens are among the `k` most likely ones. Needs the temperature, top-k and logits.
///
/// Kills: `ignores_top_k`.
pub fn top_k_is_honoured(subject: &Subject<'_>) -> Outcome {
    let greedy = SamplingParams::greedy;
    filter_holds(subject, &greedy().with_top_k(1), &greedy().with_top_k(3), |_| 3)
}

/// Sampled tokens are in the smallest set of most likely tokens with a total probability of `p`. Needs the
/// temperature, top-p and logits.
///
/// Kills: `ignores_top_p`.
pub fn top_p_is_honoured(subject: &Subject<'_>) -> Outcome {
    let greedy = SamplingParams::greedy;
    filter_holds(subject, &greedy().with_top_p(1e-6), &greedy().with_top_p(0.6), |probabilities| {
        let mut before = 0.0;
        let within = probabilities.iter().take_while(|&&probability| {
            let needed = before < 0.6;
            before += probability;
            needed
        });
        within.count()
    })
}

/// Sampled tokens are at least `p` times as likely as the most likely one. Needs the temperature, min-p and
/// logits.
///
/// Kills: `ignores_min_p`.
pub fn min_p_is_honoured(subject: &Subject<'_>) -> Outcome {
    let greedy = SamplingParams::greedy;
    filter_holds(subject, &greedy().with_min_p(1.0), &greedy().with_min_p(0.5), |probabilities| {
        let least = 0.5 * probabilities.first().copied().unwrap_or(0.0);
        probabilities.iter().take_while(|&&probability| probability >= least).count()
    })
}

/// Fails unless the choice by `plan` after `prompt` is the argmax of the logits after `score`.
fn chooses_best(
    subject: &Subject<'_>,
    prompt: &[TokenId],
    plan: &SamplingPlan,
    score: impl Fn(TokenId, f32) -> f32,
) -> Outcome {
    let outlook = subject.outlook(prompt)?;
    let Some(logits) = &outlook.logits else { return Ok(()) };
    let scores: Vec<f32> = (0..).zip(logits).map(|(token, &logit)| score(token, logit)).collect();
    let Some(best) = argmax(&scores, |_| true) else { return Ok(()) };
    let mut session = subject.session()?;
    let sequence = session.open()?;
    let chosen = sample(&mut *session, sequence, prompt, plan)?;
    let lead = scores[best as usize] - scores[chosen.token as usize];
    let tolerance = subject.tolerance()?;
    ensure!(
        chosen.token == best || lead < outlook.bounds(&tolerance).margin.max(1e-5),
        "by `{plan}` token {} was chosen, and {best} leads it by {lead}",
        chosen.token
    );
    // The reported distribution is the model's own.
    outlook.scores(chosen.token, chosen.logprob, &tolerance, format_args!("by `{plan}`"))
}

/// Logit biases are added: they can force a token, ban one, and shift the choice. Needs logit bias and
/// logits.
///
/// Kills: `ignores_biases`.
pub fn biases_are_added(subject: &Subject<'_>) -> Outcome {
    let prompt = subject.tokens(5, 4)?;
    let best = subject.outlook(&prompt)?.token;
    let last = subject.model()?.info().vocabulary_size as TokenId - 1;
    for biases in [
        vec![(last, 1e4)],
        vec![(best, f32::NEG_INFINITY)],
        vec![(best, -2.0), (0, 1.5)],
        vec![(0, 1e4), (last, 1e4), (0, -1e4)],
    ] {
        let plan = plan(subject, &SamplingParams::greedy().with_logit_bias(biases.clone()))?;
        chooses_best(subject, &prompt, &plan, |token, logit| {
            logit + biases.iter().filter(|(biased, _)| *biased == token).map(|(_, bias)| bias).sum::<f32>()
        })?;
    }
    Ok(())
}

/// Fails unless greedy choice under a penalty is the argmax of the logits after `score`, which takes the
/// token's counts in the text and in its generated part.
fn penalty_holds(
    subject: &Subject<'_>,
    params: &SamplingParams,
    score: impl Fn(f32, usize, usize) -> f32,
) -> Outcome {
    // The most likely token occurs in the text: at its beginning, at its end, and many times.
    let mut text = subject.tokens(6, 4)?;
    for _ in 0..3 {
        let best = subject.outlook(&text)?.token;
        text.extend([best, best]);
    }
    let best = subject.outlook(&text)?.token;
    for text in [[&[best], &text[..]].concat(), [&text[..], &[best, best]].concat(), text] {
        // If the text has no penalized token, the most likely token is prepended.
        let likely = subject.outlook(&text)?.token;
        let longer = [&[likely, likely], &text[..]].concat();
        let short = [0, text.len() / 2, text.len()].map(|given| (&text, given));
        for (text, given) in short.into_iter().chain([(&longer, 0), (&longer, 2)]) {
            let plan = plan(subject, params)?.with_prompt_length(given);
            chooses_best(subject, text, &plan, |token, logit| {
                let count = |tokens: &[TokenId]| tokens.iter().filter(|&&other| other == token).count();
                score(logit, count(text), count(&text[given..]))
            })?;
        }
    }
    Ok(())
}

/// The logits of tokens already in the sequence are divided by the repetition penalty, or multiplied if
/// negative. Needs the repetition penalty and logits.
///
/// Kills: `ignores_repetition_penalties`.
pub fn repetition_penalty_is_applied(subject: &Subject<'_>) -> Outcome {
    let strength = 4.0;
    let params = SamplingParams::greedy().with_repetition_penalty(strength);
    penalty_holds(subject, &params, |logit, held, _| match held {
        0 => logit,
        _ if logit < 0.0 => logit * strength,
        _ => logit / strength,
    })
}

/// The presence penalty is subtracted once from the logit of each token that was generated, and not from
/// those of the prompt. Needs the presence penalty and logits.
///
/// Kills: `ignores_presence_penalties`, `penalises_the_prompt`.
pub fn presence_penalty_is_applied(subject: &Subject<'_>) -> Outcome {
    let strength = 5.0;
    let params = SamplingParams::greedy().with_presence_penalty(strength);
    penalty_holds(
        subject,
        &params,
        |logit, _, generated| if generated > 0 { logit - strength } else { logit },
    )
}

/// The frequency penalty is subtracted from the logit of each token for every time it was generated. Needs
/// the frequency penalty and logits.
///
/// Kills: `ignores_frequency_penalties`, `penalises_the_prompt`.
pub fn frequency_penalty_is_applied(subject: &Subject<'_>) -> Outcome {
    let strength = 1.5;
    let params = SamplingParams::greedy().with_frequency_penalty(strength);
    penalty_holds(subject, &params, |logit, _, generated| logit - strength * generated as f32)
}

/// The sampling fields that an engine does not claim, each with an active value.
pub(super) fn unclaimed_plans(claimed: SamplingFields) -> Vec<(SamplingField, SamplingParams)> {
    let unclaimed = SamplingField::ALL.iter().copied().filter(|&field| !claimed.contains(field));
    unclaimed.map(|field| (field, active(field))).collect()
}

/// Parameters that activate `field`.
fn active(field: SamplingField) -> SamplingParams {
    let params = SamplingParams::greedy();
    let drawn = params.clone().with_temperature(0.7);
    match field {
        SamplingField::AllowedTokens => params.with_allowed_tokens([0]),
        SamplingField::ForbiddenTokens => params.with_forbidden_tokens([0]),
        SamplingField::PenaltyWindow => params.with_presence_penalty(0.5).with_penalty_window(2),
        SamplingField::RepetitionPenalty => params.with_repetition_penalty(1.3),
        SamplingField::PresencePenalty => params.with_presence_penalty(0.5),
        SamplingField::FrequencyPenalty => params.with_frequency_penalty(0.5),
        SamplingField::Dry => params.with_dry(Dry::new(0.8)),
        SamplingField::NoRepeatNgram => params.with_no_repeat_ngram(2),
        SamplingField::Temperature => drawn,
        SamplingField::DynamicTemperature => drawn.with_dynamic_temperature(DynamicTemperature::new(0.5)),
        SamplingField::TopNSigma => drawn.with_top_n_sigma(1.0),
        SamplingField::TopK => drawn.with_top_k(3),
        SamplingField::TopP => drawn.with_top_p(0.5),
        SamplingField::MinP => drawn.with_min_p(0.1),
        SamplingField::TypicalP => drawn.with_typical_p(0.5),
        SamplingField::Xtc => drawn.with_xtc(Xtc::new(0.5, 0.1)),
        SamplingField::Mirostat => drawn.with_mirostat(Mirostat::new(5.0, 0.1)),
        _ => params.with_logit_bias([(0, 1.0)]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_has_an_active_value() {
        for &field in SamplingField::ALL {
            let params = active(field);
            params.validate().unwrap();
            assert!(params.active_fields().contains(field), "{}", field.as_str());
        }
    }
}
