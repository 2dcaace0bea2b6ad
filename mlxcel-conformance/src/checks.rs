//! The checks: one public function per property, each over a [`Subject`].
//!
//! A check needs the capabilities in [`Check::needs`]. Called directly on an engine without them, it fails with the
//! engine's [`Unsupported`](mlxcel_core::ErrorKind::Unsupported) error; [`run_all`](crate::run_all) and
//! [`suite!`](crate::suite) test for them first.
//!
//! The docs of each check name the mutants that it kills: deliberately broken engines in the kit's own tests.

mod batch;
mod broken;
mod cancel;
mod capacity;
mod errors;
mod faults;
mod fork;
mod generation;
mod hidden;
mod isolation;
mod lifecycle;
mod logprobs;
mod masks;
mod operations;
mod prefill;
mod rewind;
mod sampling;
mod snapshot;
mod states;
mod unclaimed;
mod verification;

use std::fmt;

use mlxcel_core::{Capabilities, SamplingField};

use crate::failure::Outcome;
use crate::subject::Subject;

pub use batch::{
    batch_equals_single, batches_take_one_pass, bitwise_invariance, mixed_steps, prompt_chunks_take_one_pass,
    rows_answer_in_order,
};
pub use broken::broken_weights_are_refused;
pub use cancel::{
    cancelled_generations_go_on, cancelled_prompts_go_on, cancelled_rows_spare_the_others,
    cancelled_steps_do_nothing,
};
pub use capacity::{fills_exactly, one_beyond_is_refused};
pub use errors::{
    bad_rows_are_refused, bad_rows_harm_no_others, duplicate_rows_are_refused, no_rows_are_refused,
    stats_are_monotone,
};
pub use faults::{faults_poison, faults_spare_the_others, faults_without_harm};
pub use fork::{fork_computes_nothing, fork_goes_on, fork_is_independent, fork_needs_a_place};
pub use generation::{
    generation_ends_when_full, generation_leaves_nothing_open, given_methods_are_steps, streams_are_steps,
};
pub use hidden::{
    hidden_states_are_complete, hidden_states_do_not_depend_on_chunks, hidden_states_mix_with_other_wants,
    means_are_of_the_rows_tokens,
};
pub use isolation::{
    sequences_are_isolated, sessions_are_isolated, stale_ids_are_noticed, threads_share_only_weights,
};
pub use lifecycle::{
    describes_itself, drop_order_is_free, ids_are_not_reused, load_options_are_honoured, opens_and_closes,
    sequences_are_limited, session_options_are_honoured, sessions_move_between_threads,
};
pub use logprobs::{
    drafts_are_verified, every_position_is_step_by_step, logits_are_complete, logprobs_sum_to_one,
    top_is_sorted,
};
pub use masks::{bad_masks_are_refused, masks_are_honoured, stop_tokens_are_tokens};
pub use operations::operations;
pub use prefill::{
    chunked_prefill, greedy_is_argmax, logits_do_not_depend_on_chunks, positions_count_tokens, token_by_token,
};
pub use rewind::{rewind_computes_nothing, rewind_forgets, rewind_has_bounds};
pub use sampling::{
    biases_are_added, draws_are_stateless, draws_follow_probabilities, frequency_penalty_is_applied,
    min_p_is_honoured, presence_penalty_is_applied, repetition_penalty_is_applied, seeds_differ,
    seeds_repeat, top_k_is_honoured, top_p_is_honoured,
};
pub use snapshot::{
    snapshot_computes_nothing, snapshot_moves_on, snapshot_refuses_damage, snapshot_refuses_foreign,
    snapshot_refuses_other_models, snapshot_round_trip, snapshots_keep_to_their_size,
};
pub use states::bounded_states_stop_growing;
pub use unclaimed::unclaimed_is_unsupported;
pub use verification::{
    guesses_are_drawn_as_single_tokens, guesses_are_masked_one_by_one, guesses_are_verified,
    guesses_show_their_logits,
};

/// A property that every engine must have.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct Check {
    /// The name of its function and test.
    pub name: &'static str,
    /// A short description of the property.
    pub property: &'static str,
    /// The requirements on the engine or subject.
    pub needs: &'static [Need],
    /// The check's function.
    pub run: fn(&Subject<'_>) -> Outcome,
}

impl Check {
    /// Finds a check by name.
    pub fn named(name: &str) -> Option<&'static Self> {
        ALL.iter().find(|check| check.name == name)
    }

    /// The first requirement that the subject does not meet.
    ///
    /// # Errors
    ///
    /// The errors of [`Subject::model`].
    pub fn unmet(&self, subject: &Subject<'_>) -> mlxcel_core::Result<Option<Need>> {
        if self.needs.is_empty() {
            return Ok(None);
        }
        let model = subject.model()?;
        Ok(self.needs.iter().copied().find(|need| !need.is_met(subject, model.capabilities())))
    }
}

impl fmt::Debug for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Check")
            .field("name", &self.name)
            .field("property", &self.property)
            .field("needs", &self.needs)
            .finish_non_exhaustive()
    }
}

/// A requirement of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Need {
    /// [`Capabilities::sequences`] of at least two.
    TwoSequences,
    /// [`Capabilities::logits`].
    Logits,
    /// [`Capabilities::top_logprobs`] of at least one.
    TopLogprobs,
    /// [`Capabilities::every_position`].
    EveryPosition,
    /// [`Capabilities::verification`].
    Verification,
    /// [`Capabilities::hidden_states`].
    HiddenStates,
    /// [`Capabilities::token_masks`].
    TokenMasks,
    /// [`Capabilities::rewind`].
    Rewind,
    /// [`Capabilities::fork`].
    Fork,
    /// [`Capabilities::snapshot`].
    Snapshot,
    /// [`Capabilities::bitwise_batch_invariance`].
    BitwiseBatchInvariance,
    /// A field in [`Capabilities::sampling`].
    Sampling(SamplingField),
    /// Not a capability: [`Subject::with_faulty`].
    Faults,
    /// Not a capability: [`Subject::with_other_model`].
    OtherModel,
    /// Not a capability: [`Subject::with_broken_weights`].
    BrokenWeights,
    /// Not a capability: [`Subject::with_bounded_state`].
    BoundedState,
}

impl Need {
    /// Whether it is the subject's to bring, and not the engine's or the model's to have: a check that goes without it was not
    /// run, and nobody has decided that it should not be.
    pub(crate) fn is_of_subject(self) -> bool {
        matches!(self, Self::Faults | Self::OtherModel | Self::BrokenWeights)
    }

    fn is_met(self, subject: &Subject<'_>, claimed: &Capabilities) -> bool {
        match self {
            Self::TwoSequences => claimed.sequences >= 2,
            Self::Logits => claimed.logits,
            Self::TopLogprobs => claimed.top_logprobs > 0,
            Self::EveryPosition => claimed.every_position,
            Self::Verification => claimed.verification,
            Self::HiddenStates => claimed.hidden_states.is_some(),
            Self::TokenMasks => claimed.token_masks,
            Self::Rewind => claimed.rewind,
            Self::Fork => claimed.fork,
            Self::Snapshot => claimed.snapshot,
            Self::BitwiseBatchInvariance => claimed.bitwise_batch_invariance,
            Self::Sampling(field) => claimed.sampling.contains(field),
            Self::Faults => !subject.fault_points().is_empty(),
            Self::OtherModel => subject.has_other_model(),
            Self::BrokenWeights => subject.has_broken_weights(),
            Self::BoundedState => subject.bounded_state().is_some(),
        }
    }
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TwoSequences => "2 sequences",
            Self::Logits => "logits",
            Self::TopLogprobs => "top logprobs",
            Self::EveryPosition => "every position",
            Self::Verification => "verification",
            Self::HiddenStates => "hidden states",
            Self::TokenMasks => "token masks",
            Self::Rewind => "rewind",
            Self::Fork => "fork",
            Self::Snapshot => "snapshot",
            Self::BitwiseBatchInvariance => "bitwise batch invariance",
            Self::Sampling(field) => return write!(f, "device {}", field.as_str()),
            Self::Faults => "a faulty device",
            Self::OtherModel => "another model",
            Self::BrokenWeights => "weights that are no numbers",
            Self::BoundedState => "a state that stops growing",
        })
    }
}

macro_rules! table {
    ($($name:ident [$($need:expr),*] $property:literal)*) => {
        /// Every check, in the order of a report.
        pub const ALL: &[Check] = &[$(
            Check { name: stringify!($name), property: $property, needs: &[$($need),*], run: $name }
        ),*];
    };
}

use Need::{
    BitwiseBatchInvariance, BoundedState, BrokenWeights, EveryPosition, Faults, Fork, HiddenStates, Logits,
    OtherModel, Rewind, Sampling, Snapshot, TokenMasks, TopLogprobs, TwoSequences, Verification,
};
use SamplingField::{
    FrequencyPenalty, LogitBias, MinP, PresencePenalty, RepetitionPenalty, Temperature, TopK, TopP,
};

table! {
    describes_itself [] "what it says about itself fits together"
    load_options_are_honoured [] "every load option is honoured or refused"
    session_options_are_honoured [] "a session's own capacity is honoured"
    opens_and_closes [] "sequences open empty and are gone once closed"
    ids_are_not_reused [] "a closed sequence's number is not given again"
    sequences_are_limited [] "as many sequences as claimed, and no more"
    drop_order_is_free [] "backend, model, session drop in any order"
    sessions_move_between_threads [] "a session moves between threads"
    chunked_prefill [] "a prompt in chunks is the whole prompt"
    token_by_token [] "a prompt token by token is the whole prompt"
    logits_do_not_depend_on_chunks [Logits] "logits do not depend on chunks"
    positions_count_tokens [] "positions count tokens"
    greedy_is_argmax [Logits] "greedy choice is the largest logit"
    batch_equals_single [TwoSequences] "batched as single"
    mixed_steps [TwoSequences] "chunks and decoding rows mix; rows join and leave"
    rows_answer_in_order [TwoSequences] "results stand in the order of rows"
    batches_take_one_pass [] "a claimed batch is one pass"
    prompt_chunks_take_one_pass [] "a claimed prompt chunk is one pass"
    bitwise_invariance [BitwiseBatchInvariance] "equal to the last bit in any batch"
    sequences_are_isolated [TwoSequences] "sequences see nothing of each other"
    sessions_are_isolated [] "sessions see nothing of each other"
    threads_share_only_weights [] "sessions run on several threads at once"
    stale_ids_are_noticed [] "a closed sequence is never taken for another"
    fills_exactly [] "right to the last token of the capacity"
    one_beyond_is_refused [] "one token beyond is refused before work"
    rewind_forgets [Rewind] "going back forgets what came after"
    rewind_has_bounds [Rewind] "rewinding past the current position is refused"
    rewind_computes_nothing [Rewind] "rewind computes nothing"
    fork_goes_on [Fork, TwoSequences] "a fork goes on as its source would"
    fork_is_independent [Fork, TwoSequences] "source and fork are independent"
    fork_needs_a_place [Fork, TwoSequences] "a fork takes a sequence's place"
    fork_computes_nothing [Fork, TwoSequences] "fork computes nothing"
    snapshot_round_trip [Snapshot] "a restored sequence goes on"
    snapshot_moves_on [Snapshot] "a snapshot outlives its session and model"
    snapshot_refuses_foreign [Snapshot] "a foreign or too long snapshot is refused"
    snapshot_refuses_other_models [Snapshot, OtherModel] "another model's snapshot is refused"
    snapshot_refuses_damage [Snapshot] "a damaged snapshot is corrupt"
    snapshots_keep_to_their_size [Snapshot] "a snapshot has as many bytes as claimed at most"
    snapshot_computes_nothing [Snapshot] "snapshot and restore compute nothing"
    bounded_states_stop_growing [BoundedState] "windows and recurrences stop growing"
    logits_are_complete [Logits] "a finite logit for every token"
    logprobs_sum_to_one [TopLogprobs] "log probabilities sum to one"
    top_is_sorted [TopLogprobs] "likeliest tokens come sorted, as many as asked"
    every_position_is_step_by_step [EveryPosition] "scoring at once is scoring step by step"
    drafts_are_verified [EveryPosition, Rewind] "drafted tokens are verified, then taken back"
    guesses_are_verified [Verification, Rewind] "guesses are verified by one row"
    guesses_show_their_logits [Verification, Logits] "logits behind each guess"
    guesses_are_masked_one_by_one [Verification, TokenMasks] "a mask for each guess"
    guesses_are_drawn_as_single_tokens [Verification, Sampling(Temperature)] "draws behind guesses"
    hidden_states_are_complete [HiddenStates] "a finite hidden state of the claimed size"
    hidden_states_do_not_depend_on_chunks [HiddenStates] "hidden states do not depend on chunks"
    means_are_of_the_rows_tokens [HiddenStates] "a mean is that of the row's tokens"
    hidden_states_mix_with_other_wants [HiddenStates, TwoSequences] "hidden states beside other wants"
    masks_are_honoured [TokenMasks] "a mask limits the choice alone"
    bad_masks_are_refused [TokenMasks] "a mask of nothing is refused"
    stop_tokens_are_tokens [TokenMasks] "stop tokens are tokens like others"
    seeds_repeat [Sampling(Temperature)] "a seed gives the same text"
    seeds_differ [Sampling(Temperature)] "other seeds give other texts"
    draws_are_stateless [Sampling(Temperature)] "batch, chunks, rewind, fork change no draw"
    draws_follow_probabilities [Sampling(Temperature), Logits] "draws are as frequent as likely"
    top_k_is_honoured [Sampling(Temperature), Sampling(TopK), Logits] "draws stay within top-k"
    top_p_is_honoured [Sampling(Temperature), Sampling(TopP), Logits] "draws stay within top-p"
    min_p_is_honoured [Sampling(Temperature), Sampling(MinP), Logits] "draws stay within min-p"
    biases_are_added [Sampling(LogitBias), Logits] "logit biases are added"
    repetition_penalty_is_applied [Sampling(RepetitionPenalty), Logits] "repetition is penalised"
    presence_penalty_is_applied [Sampling(PresencePenalty), Logits] "presence is penalised"
    frequency_penalty_is_applied [Sampling(FrequencyPenalty), Logits] "frequency is penalised"
    streams_are_steps [] "streams are steps, and withhold stop tokens"
    generation_ends_when_full [] "a generation ends when its sequence is full"
    generation_leaves_nothing_open [] "a generation closes what it opened"
    given_methods_are_steps [] "prefill and decode_step are steps"
    cancelled_steps_do_nothing [] "a cancelled step computes nothing"
    cancelled_prompts_go_on [] "a prompt stopped under way goes on"
    cancelled_rows_spare_the_others [TwoSequences] "a cancelled row stops no other"
    cancelled_generations_go_on [] "a cancelled generation goes on"
    faults_poison [Faults] "a fault poisons until closed"
    faults_spare_the_others [TwoSequences, Faults] "a fault harms no other sequence"
    faults_without_harm [Faults] "wherever a fault strikes, the rest goes on"
    broken_weights_are_refused [BrokenWeights] "what is no number is one error"
    no_rows_are_refused [] "a step without rows is refused"
    bad_rows_are_refused [] "bad rows are refused by kind"
    duplicate_rows_are_refused [] "a second row of a sequence is refused"
    bad_rows_harm_no_others [] "a bad row harms no other"
    stats_are_monotone [] "counters count, and never fall"
    unclaimed_is_unsupported [] "what is not claimed is unsupported"
    operations [] "any order of operations"
}
