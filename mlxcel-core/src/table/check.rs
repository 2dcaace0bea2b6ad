//! Checks of rows before a step computes.

use std::collections::HashSet;

use crate::capabilities::Capabilities;
use crate::error::{Error, ErrorKind, Result};
use crate::plan::{SamplingPlace, SamplingPlan};
use crate::sampling::TokenMask;
use crate::sequence::{SequenceId, SequenceState};
use crate::step::Row;
use crate::want::{Answer, Positions, Want};

const STEP: &str = "step";

/// Checks the rows of a step before any work, in the order of the contract; one result per row. `state`
/// returns where a sequence stands, or nothing if no sequence of that number is open.
pub(super) fn check_rows(
    rows: &[Row<'_>],
    capabilities: &Capabilities,
    vocabulary_size: usize,
    state: impl Fn(SequenceId) -> Option<SequenceState>,
) -> Result<Vec<Result<()>>> {
    if rows.is_empty() {
        return Err(Error::new(ErrorKind::InvalidInput, STEP, "a step must have at least one row"));
    }
    let checks = Checks { capabilities, vocabulary_size };
    let mut named = HashSet::with_capacity(rows.len());
    Ok(rows.iter().map(|row| checks.row(row, state(row.sequence), named.insert(row.sequence))).collect())
}

struct Checks<'a> {
    capabilities: &'a Capabilities,
    vocabulary_size: usize,
}

impl Checks<'_> {
    /// Whether `row` may run; `first` where no earlier row names its sequence.
    fn row(&self, row: &Row<'_>, state: Option<SequenceState>, first: bool) -> Result<()> {
        let refuse = |kind: ErrorKind, message: &'static str| {
            Error::new(kind, STEP, message).with_context("sequence", row.sequence)
        };
        let wrong = |message: &'static str| refuse(ErrorKind::InvalidInput, message);
        let state = state.ok_or_else(|| super::not_found(STEP, row.sequence))?;
        if state.poisoned {
            return Err(super::poisoned(STEP, row.sequence));
        }
        if row.tokens.is_empty() {
            return Err(wrong("a row must have at least one token"));
        }
        if !first {
            return Err(wrong("two rows of a step use this sequence"));
        }
        if let Some(token) = row.tokens.iter().find(|&&token| token as usize >= self.vocabulary_size) {
            return Err(wrong("the token is outside the vocabulary")
                .with_context("token", token)
                .with_context("vocabulary_size", self.vocabulary_size));
        }
        self.types(row)?;
        self.states(row)?;
        self.want(&row.want, row.tokens.len())?;
        if !self.capabilities.generation && state.position > 0 {
            let message =
                "the model reads texts in both directions; feed each whole, in one row of a new sequence";
            return Err(refuse(ErrorKind::Unsupported, message).with_context("capability", "generation"));
        }
        if row.tokens.len() > state.remaining() {
            return Err(refuse(ErrorKind::CapacityExceeded, "the tokens do not fit into the context")
                .with_context("tokens", row.tokens.len())
                .with_context("position", state.position)
                .with_context("capacity", state.capacity));
        }
        Ok(())
    }

    /// Whether there is a type for each token, or none.
    fn types(&self, row: &Row<'_>) -> Result<()> {
        if row.token_types.is_empty() {
            return Ok(());
        }
        let types = self.capabilities.token_types;
        Capabilities::require(types > 0, STEP, "token_types")?;
        let known = row.token_types.iter().all(|&own| usize::from(own) < types);
        if known && row.token_types.len() == row.tokens.len() {
            return Ok(());
        }
        Err(Error::new(ErrorKind::InvalidInput, STEP, "give a known type for each token of a row, or none")
            .with_context("field", "token_types")
            .with_context("types", types)
            .with_context("sequence", row.sequence))
    }

    /// Whether a row of a draft head brings a state for each token, and another none.
    fn states(&self, row: &Row<'_>) -> Result<()> {
        Capabilities::require(
            !row.want.states || self.capabilities.output_states.is_some(),
            STEP,
            "output_states",
        )?;
        let given = row.states.len();
        let Some(width) = self.capabilities.input_states else {
            return Capabilities::require(given == 0, STEP, "input_states");
        };
        if row.tokens.len().checked_mul(width) == Some(given) {
            return Ok(());
        }
        let message = "a row of a draft head must have a hidden state for each token";
        Err(Error::new(ErrorKind::InvalidInput, STEP, message)
            .with_context("field", "states")
            .with_context("elements", given)
            .with_context("tokens", row.tokens.len())
            .with_context("width", width)
            .with_context("sequence", row.sequence))
    }

    /// Whether a row of this many tokens can have its want.
    fn want(&self, want: &Want<'_>, tokens: usize) -> Result<()> {
        let claimed = self.capabilities;
        let check_top = |top: u16| Capabilities::require(top <= claimed.top_logprobs, STEP, "top_logprobs");
        if let Positions::Drafts(drafts) = want.positions {
            Capabilities::require(claimed.verification, STEP, "verification")?;
            if drafts >= tokens {
                let message = "a row must have a token before its draft tokens";
                return Err(Error::new(ErrorKind::InvalidInput, STEP, message)
                    .with_context("drafts", drafts)
                    .with_context("tokens", tokens));
            }
        }
        match (want.answer, want.positions) {
            (Answer::Hidden | Answer::EachHidden, _) if want.states => {
                let message =
                    "a row's answer is its hidden states, or they are returned beside another answer";
                Err(Error::unsupported(STEP, message).with_context("field", "want"))
            }
            (Answer::Nothing, _) | (_, Positions::None) => {
                Capabilities::require(claimed.generation, STEP, "generation")
            }
            (Answer::Logits, Positions::Last | Positions::Drafts(_)) => {
                Capabilities::require(claimed.logits, STEP, "logits")
            }
            (Answer::Likelihoods { top }, Positions::All) => {
                Capabilities::require(claimed.every_position, STEP, "every_position")?;
                check_top(top)
            }
            (Answer::Hidden, Positions::First | Positions::Last | Positions::All)
            | (Answer::EachHidden, Positions::All) => {
                Capabilities::require(claimed.hidden_states.is_some(), STEP, "hidden_states")
            }
            (Answer::Token { plan, masks, top }, Positions::Last | Positions::Drafts(_)) => {
                Capabilities::require(claimed.generation, STEP, "generation")?;
                check_top(top)?;
                self.plan(plan)?;
                let answers = want.count(tokens);
                if !masks.is_empty() && masks.len() != answers {
                    let message = "give one token mask per result, or none";
                    return Err(Error::new(ErrorKind::InvalidInput, STEP, message)
                        .with_context("field", "masks")
                        .with_context("masks", masks.len())
                        .with_context("answers", answers));
                }
                masks.iter().try_for_each(|mask| self.mask(mask))?;
                if masks.is_empty() {
                    return self.choice(plan, None);
                }
                masks.iter().try_for_each(|mask| self.choice(plan, Some(mask)))
            }
            _ => Err(Error::unsupported(STEP, "no engine has this answer at these positions")
                .with_context("field", "want")),
        }
    }

    /// Whether `plan` is for the device, and the device applies it.
    fn plan(&self, plan: &SamplingPlan) -> Result<()> {
        let unclaimed =
            |message: &'static str| Error::unsupported(STEP, message).with_context("capability", "sampling");
        if plan.place() != SamplingPlace::Device {
            return Err(unclaimed("the plan is for the host; ask for logits").with_context("plan", plan));
        }
        let mut active = plan.params().active_fields().iter();
        match active.find(|&field| !self.capabilities.sampling.contains(field)) {
            None => Ok(()),
            Some(field) => Err(unclaimed("the engine does not apply this field; ask for logits")
                .with_context("field", field.as_str())),
        }
    }

    fn mask(&self, mask: &TokenMask) -> Result<()> {
        Capabilities::require(self.capabilities.token_masks, STEP, "token_masks")?;
        if mask.vocabulary_size() == self.vocabulary_size && !mask.is_empty() {
            return Ok(());
        }
        let message = "a token mask must be made for this vocabulary and allow a token";
        Err(Error::new(ErrorKind::InvalidInput, STEP, message)
            .with_context("field", "mask")
            .with_context("vocabulary_size", self.vocabulary_size))
    }

    /// Whether biases leave something of what `mask` allows.
    fn choice(&self, plan: &SamplingPlan, mask: Option<&TokenMask>) -> Result<()> {
        let allows = |token| mask.is_none_or(|mask| mask.allows(token));
        let biases = plan.params().biases(self.vocabulary_size)?;
        let banned =
            biases.iter().filter(|&(&token, &bias)| bias == f64::NEG_INFINITY && allows(token)).count();
        if banned == 0 || banned < mask.map_or(self.vocabulary_size, TokenMask::count) {
            return Ok(());
        }
        Err(Error::new(ErrorKind::InvalidInput, STEP, "mask and biases leave no token to choose from"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::{SamplingField, SamplingParams};
    use crate::token::TokenId;
    use crate::want::Pooling;

    const VOCABULARY: usize = 10;

    fn everything() -> Capabilities {
        Capabilities::new(4, 8)
            .with_logits(true)
            .with_every_position(true)
            .with_verification(true)
            .with_hidden_states(Some(4))
            .with_output_states(Some(4))
            .with_top_logprobs(3)
            .with_token_masks(true)
            .with_sampling(SamplingField::ALL.iter().copied().collect())
    }

    /// Sequence 0 holds 5 of 8 tokens, 1 is poisoned, no other is open.
    fn state(sequence: SequenceId) -> Option<SequenceState> {
        let mut state = SequenceState::new(5, 8);
        state.poisoned = sequence.number() == 1;
        (sequence.number() < 2).then_some(state)
    }

    fn kinds(rows: &[Row<'_>], capabilities: &Capabilities) -> Vec<Option<ErrorKind>> {
        let checked = check_rows(rows, capabilities, VOCABULARY, state).unwrap();
        checked.into_iter().map(|row| row.err().map(|error| error.kind())).collect()
    }

    fn kind(row: Row<'_>, capabilities: &Capabilities) -> Option<ErrorKind> {
        kinds(&[row], capabilities).remove(0)
    }

    fn plan(change: impl FnOnce(&mut SamplingParams)) -> SamplingPlan {
        let mut params = SamplingParams::greedy();
        change(&mut params);
        SamplingPlan::negotiate(&params, &everything()).unwrap()
    }

    #[test]
    fn row_errors_follow_the_contracts_order() {
        let (open, poisoned, unknown) = (SequenceId::new(0), SequenceId::new(1), SequenceId::new(2));
        let least = Capabilities::new(4, 8);
        // Every row is also wrong in all that comes after.
        for (tokens, sequence, expected) in [
            (&[][..], unknown, ErrorKind::NotFound),
            (&[], poisoned, ErrorKind::Poisoned),
            (&[], open, ErrorKind::InvalidInput),
            (&[0, 0, 10, 0], open, ErrorKind::InvalidInput),
            (&[0, 0, 9, 0], open, ErrorKind::Unsupported),
        ] {
            assert_eq!(kind(Row::logits(sequence, tokens), &least), Some(expected), "{tokens:?}");
        }
        assert_eq!(kind(Row::logits(open, &[0; 4]), &everything()), Some(ErrorKind::CapacityExceeded));
        assert_eq!(kind(Row::logits(open, &[0; 3]), &everything()), None);
    }

    #[test]
    fn a_second_row_of_a_sequence_is_rejected() {
        let rows = [0, 2, 0].map(|number| Row::extend(SequenceId::new(number), &[1]));
        let found = kinds(&rows, &everything());
        assert_eq!(found, [None, Some(ErrorKind::NotFound), Some(ErrorKind::InvalidInput)]);
        assert!(check_rows(&[], &everything(), VOCABULARY, state).is_err());
    }

    #[test]
    fn each_want_requires_its_capability() {
        let greedy = SamplingPlan::greedy();
        let mask = TokenMask::allowing(VOCABULARY, [3]);
        let drawn = plan(|params| params.temperature = 1.0);
        let host = Capabilities::new(1, 1).with_logits(true);
        let host = SamplingPlan::negotiate(drawn.params(), &host).unwrap();
        let masks = [mask.clone()];
        let next = |plan, masks, top| Want::token(plan).with_masks(masks).with_top(top);
        let verify = |plan, masks, drafts| Want::token(plan).with_masks(masks).with_drafts(drafts);
        let ask =
            |want, capabilities: &Capabilities| kind(Row::new(SequenceId::new(0), &[1], want), capabilities);
        let without = everything().with_sampling(crate::sampling::SamplingFields::NONE);
        for (want, lacking) in [
            (Want::logits(), everything().with_logits(false)),
            (Want::likelihoods(0), everything().with_every_position(false)),
            (Want::likelihoods(3), everything().with_top_logprobs(2)),
            (Want::logits().with_drafts(0), everything().with_verification(false)),
            (Want::logits().with_drafts(0), everything().with_logits(false)),
            (verify(&greedy, &[], 0), everything().with_verification(false)),
            (verify(&drawn, &[], 0), without.clone()),
            (verify(&greedy, &masks, 0), everything().with_token_masks(false)),
            (Want::hidden(Pooling::Mean), everything().with_hidden_states(None)),
            (Want::each_hidden(), everything().with_hidden_states(None)),
            (Want::token(&greedy).with_states(), everything().with_output_states(None)),
            (Want::nothing().with_states(), everything().with_output_states(None)),
            (Want::nothing(), everything().with_generation(false)),
            (Want::token(&greedy), everything().with_generation(false)),
            (Want::hidden(Pooling::First), everything().with_generation(false)),
            (next(&greedy, &[], 3), everything().with_top_logprobs(2)),
            (next(&greedy, &masks, 0), everything().with_token_masks(false)),
            (next(&drawn, &[], 0), without),
        ] {
            assert_eq!(ask(want, &everything()), None, "{want:?}");
            assert_eq!(ask(want, &lacking), Some(ErrorKind::Unsupported), "{want:?}");
        }
        assert_eq!(ask(next(&host, &[], 0), &everything()), Some(ErrorKind::Unsupported));
        let last = Want::new(Positions::Last, Answer::EachHidden);
        for want in [Want::hidden(Pooling::Last).with_states(), Want::each_hidden().with_states(), last] {
            assert_eq!(ask(want, &everything()), Some(ErrorKind::Unsupported), "{want:?}");
        }
    }

    #[test]
    fn a_draft_heads_rows_have_a_state_for_each_token() {
        let (sequence, head) = (SequenceId::new(0), everything().with_input_states(Some(3)));
        let states = [0.5; 9];
        for (count, expected) in
            [(6, None), (0, Some(ErrorKind::InvalidInput)), (5, Some(ErrorKind::InvalidInput))]
        {
            let row = Row::extend(sequence, &[1, 2]).with_states(&states[..count]);
            assert_eq!(kind(row, &head), expected, "{count} elements");
        }
        let row = Row::extend(sequence, &[1, 2]).with_states(&states[..6]);
        assert_eq!(kind(row, &everything()), Some(ErrorKind::Unsupported), "no draft head");
    }

    #[test]
    fn a_model_that_does_not_generate_takes_whole_texts() {
        let encoder = Capabilities::new(4, 8).with_hidden_states(Some(4)).with_generation(false);
        let empty = |_| Some(SequenceState::new(0, 8));
        let row = Row::hidden(SequenceId::new(0), &[1, 2], Pooling::First);
        assert!(check_rows(&[row], &encoder, VOCABULARY, empty).unwrap()[0].is_ok());
        assert_eq!(kind(row, &encoder), Some(ErrorKind::Unsupported), "behind five tokens");
    }

    #[test]
    fn rows_have_a_known_type_for_each_token_or_none() {
        let row = Row::hidden(SequenceId::new(0), &[1, 2], Pooling::Mean);
        let two = everything().with_token_types(2);
        for (types, expected) in [
            (&[][..], None),
            (&[0, 1], None),
            (&[0], Some(ErrorKind::InvalidInput)),
            (&[0, 2], Some(ErrorKind::InvalidInput)),
        ] {
            assert_eq!(kind(row.with_token_types(types), &two), expected, "{types:?}");
        }
        assert_eq!(kind(row.with_token_types(&[0, 0]), &everything()), Some(ErrorKind::Unsupported));
    }

    #[test]
    fn drafts_need_a_preceding_token_and_one_mask_each_or_none() {
        let greedy = SamplingPlan::greedy();
        let (some, none) = (TokenMask::allowing(VOCABULARY, [3]), TokenMask::none(VOCABULARY));
        let masks = [some.clone(), some.clone(), none];
        let ask = |masks, drafts| {
            let want = Want::token(&greedy).with_masks(masks).with_drafts(drafts);
            kind(Row::new(SequenceId::new(0), &[1, 2], want), &everything())
        };
        for (masks, drafts, expected) in [
            (&[][..], 1, None),
            (&[], 0, None),
            (&[], 2, Some(ErrorKind::InvalidInput)),
            (&masks[..2], 1, None),
            (&masks[..1], 1, Some(ErrorKind::InvalidInput)),
            (&masks[1..], 1, Some(ErrorKind::InvalidInput)),
        ] {
            assert_eq!(ask(masks, drafts), expected, "{drafts} draft tokens, {} masks", masks.len());
        }
        let logits = Row::new(SequenceId::new(0), &[1, 2], Want::logits().with_drafts(2));
        assert_eq!(kind(logits, &everything()), Some(ErrorKind::InvalidInput));
    }

    #[test]
    fn choices_without_allowed_tokens_are_rejected() {
        let ban = |tokens: &[TokenId]| {
            let biases = tokens.iter().map(|&token| (token, f32::NEG_INFINITY)).collect();
            plan(|params| params.logit_bias = biases)
        };
        let ask = |plan: &SamplingPlan, mask: Option<&TokenMask>| {
            let want = Want::token(plan).with_masks(mask.map(std::slice::from_ref).unwrap_or_default());
            kind(Row::new(SequenceId::new(0), &[1], want), &everything())
        };
        let all: Vec<TokenId> = (0..VOCABULARY as TokenId).collect();
        let mask = TokenMask::allowing(VOCABULARY, [3, 4]);
        assert_eq!(ask(&ban(&all), None), Some(ErrorKind::InvalidInput));
        assert_eq!(ask(&ban(&all[1..]), None), None);
        assert_eq!(ask(&ban(&[3, 4, 4, 5]), Some(&mask)), Some(ErrorKind::InvalidInput));
        assert_eq!(ask(&ban(&[4, 5, 6]), Some(&mask)), None);
        assert_eq!(ask(&ban(&[10]), None), Some(ErrorKind::InvalidInput), "outside the vocabulary");
        for mask in [TokenMask::none(VOCABULARY), TokenMask::allowing(VOCABULARY + 1, [1])] {
            assert_eq!(ask(&SamplingPlan::greedy(), Some(&mask)), Some(ErrorKind::InvalidInput));
        }
        let endless = plan(|params| params.logit_bias = vec![(1, f32::INFINITY), (1, f32::NEG_INFINITY)]);
        assert_eq!(ask(&endless, None), Some(ErrorKind::InvalidInput), "infinities that cancel out");
    }
}
