//! Unclaimed capabilities return `Unsupported`, never an approximation.

use mlxcel_core::{
    AdapterLimits, AdapterSlots, Capabilities, ErrorKind, Pooling, Row, SamplingField, SamplingFields,
    SamplingParams, SamplingPlan, SequenceOptions, Snapshot, StateIdentity, TokenMask, Want,
};

use crate::checks::sampling::unclaimed_plans;
use crate::failure::{Outcome, ensure, refused};
use crate::outlook::{stands_at, step};
use crate::subject::Subject;
use crate::walk::Walk;

/// Every unclaimed operation, want and sampling field returns `Unsupported` and changes nothing; a plan for
/// the host never runs on the device.
///
/// Kills: `performs_unclaimed_operations`, `ignores_adapters`, `samples_for_the_host`.
pub fn unclaimed_is_unsupported(subject: &Subject<'_>) -> Outcome {
    let model = subject.model()?;
    let vocabulary = model.info().vocabulary_size;
    let mut session = subject.session()?;
    let claimed = session.capabilities().clone();
    let mut walk = Walk::open(&mut *session, subject.tokens(0, 5)?)?;
    walk.run(subject, &mut *session, 1, "before")?;
    let (sequence, greedy, unsupported) = (walk.sequence, SamplingPlan::greedy(), ErrorKind::Unsupported);
    if !claimed.rewind {
        // To any position, including the current one.
        for position in [0, 1, walk.held.len()] {
            refused(session.rewind(sequence, position), unsupported, format_args!("rewind to {position}"))?;
        }
        if claimed.verification {
            // Draft tokens can be dropped, what is before them cannot, and they cannot after another row.
            let held = walk.held.len();
            let row = [walk.pending[0], 0];
            let want = Want::token(&greedy).with_drafts(1);
            step(&mut *session, &[Row::new(sequence, &row, want)])?.remove(0)?;
            refused(session.rewind(sequence, held), unsupported, "rewind to the front of draft tokens")?;
            session.rewind(sequence, held + 1)?;
            walk.held.append(&mut walk.pending);
            let next = subject.outlook(&walk.held)?.token;
            walk.pending.push(next);
            walk.run(subject, &mut *session, 1, "after a draft token was dropped")?;
            let late = session.rewind(sequence, held + 1);
            refused(late, unsupported, "rewind to a draft token of an earlier row")?;
        }
    }
    if !claimed.fork {
        refused(session.fork(sequence), unsupported, "fork")?;
    }
    if !claimed.snapshot {
        refused(session.snapshot(sequence), unsupported, "snapshot")?;
        let foreign = Snapshot::new(StateIdentity::of(model.info()), 0, []);
        refused(session.restore(&foreign), unsupported, "restore")?;
    }
    let foreign = AdapterSlots::new(AdapterLimits::new(1, 1)).load("foreign", |_| Ok(()))?;
    let adapted = SequenceOptions::default().with_adapter(&foreign);
    if claimed.adapters.is_none() {
        refused(model.load_adapter(subject.source()), unsupported, "loading an adapter")?;
        refused(session.open_with(&adapted), unsupported, "a sequence with an adapter")?;
    } else {
        refused(session.open_with(&adapted), ErrorKind::InvalidInput, "an adapter of another model")?;
    }
    let mask = TokenMask::allowing(vocabulary, [0]);
    let beyond = claimed.top_logprobs.checked_add(1);
    let mut wants: Vec<(Want<'_>, &str)> = Vec::new();
    if !claimed.logits {
        wants.push((Want::logits(), "logits"));
    }
    if !claimed.every_position {
        wants.push((Want::likelihoods(0), "every position"));
    }
    if !claimed.verification {
        let none = Want::token(&greedy).with_drafts(0);
        wants.push((none, "draft tokens"));
        wants.push((Want::logits().with_drafts(0), "logits after draft tokens"));
    }
    if claimed.hidden_states.is_none() {
        wants.push((Want::hidden(Pooling::Last), "hidden states"));
    }
    if !claimed.token_masks {
        wants.push((Want::token(&greedy).with_masks(std::slice::from_ref(&mask)), "a token mask"));
    }
    if let Some(top) = beyond {
        wants.push((Want::token(&greedy).with_top(top), "more top log probabilities than claimed"));
        if claimed.every_position {
            wants
                .push((Want::likelihoods(top), "more top log probabilities than claimed, at every position"));
        }
    }
    // Plans negotiated with another engine: one that applies everything, and one that only returns logits.
    let everything =
        Capabilities::new(1, 1).with_sampling(SamplingField::ALL.iter().copied().collect::<SamplingFields>());
    let plans = unclaimed_plans(claimed.sampling)
        .into_iter()
        .map(|(field, params)| Ok((field, SamplingPlan::negotiate(&params, &everything)?)))
        .collect::<mlxcel_core::Result<Vec<_>>>()?;
    for (field, plan) in &plans {
        wants.push((Want::token(plan), field.as_str()));
    }
    let params = SamplingParams::greedy().with_temperature(0.7);
    let host = SamplingPlan::negotiate(&params, &Capabilities::new(1, 1).with_logits(true))?;
    wants.push((Want::token(&host), "a plan for the host"));
    let before = session.stats();
    for (want, what) in wants {
        let result = step(&mut *session, &[Row::new(sequence, &[0], want)])?.remove(0);
        refused(result, unsupported, what)?;
        stands_at(&*session, sequence, walk.held.len())?;
    }
    ensure!(session.stats().tokens == before.tokens, "tokens were computed for an unsupported request");
    walk.run(subject, &mut *session, 2, "after refusals")
}
