//! The checks: one public function per property, each over a [`Subject`].
//!
//! A check needs the capabilities in [`Check::needs`]. Called directly on an engine without them, it fails
//! with the engine's [`Unsupported`](mlxcel_core::ErrorKind::Unsupported) error; [`run_all`](crate::run_all)
//! and [`suite!`](crate::suite) test for them first.
//!
//! The docs of each check name the mutants that it kills: deliberately broken engines in the kit's own tests.

mod adapters;
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
mod output_states;
mod prefill;
mod rewind;
mod sampling;
mod snapshot;
mod states;
mod unclaimed;
mod verification;

use std::fmt;

use mlxcel_core::{Capabilities, Capability, SamplingField};

use crate::failure::Outcome;
use crate::subject::Subject;

pub use adapters::*;
pub use batch::*;
pub use broken::*;
pub use cancel::*;
pub use capacity::*;
pub use errors::*;
pub use faults::*;
pub use fork::*;
pub use generation::*;
pub use hidden::*;
pub use isolation::*;
pub use lifecycle::*;
pub use logprobs::*;
pub use masks::*;
pub use operations::*;
pub use output_states::*;
pub use prefill::*;
pub use rewind::*;
pub use sampling::*;
pub use snapshot::*;
pub use states::*;
pub use unclaimed::*;
pub use verification::*;

/// A property that every engine must have.
#[derive(Clone, Copy, Debug)]
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

/// A requirement of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Need {
    /// This capability.
    Claimed(Capability),
    /// [`Capabilities::sequences`] of at least two.
    TwoSequences,
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
    /// Not a capability: [`Subject::with_adapters`].
    Adapters,
    /// Not a capability: [`Subject::with_output_states`].
    OutputStates,
}

impl Need {
    /// Whether the subject, not the engine, provides it.
    pub(crate) fn is_of_subject(self) -> bool {
        !matches!(self, Self::Claimed(_) | Self::TwoSequences | Self::Sampling(_))
    }

    /// Whether every subject can provide it, so that a check without it was not skipped deliberately.
    pub(crate) fn is_of_every_subject(self) -> bool {
        matches!(self, Self::Faults | Self::OtherModel | Self::BrokenWeights)
    }

    fn is_met(self, subject: &Subject<'_>, claimed: &Capabilities) -> bool {
        match self {
            Self::Claimed(capability) => claimed.claims(capability),
            Self::TwoSequences => claimed.sequences >= 2,
            Self::Sampling(field) => claimed.sampling.contains(field),
            Self::Faults => !subject.fault_points().is_empty(),
            Self::OtherModel => subject.other.is_some(),
            Self::BrokenWeights => subject.broken.is_some(),
            Self::BoundedState => subject.bounded.is_some(),
            Self::Adapters => subject.adapters.is_some(),
            Self::OutputStates => subject.output_states,
        }
    }
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Claimed(capability) => return write!(f, "{capability}"),
            Self::TwoSequences => "2 sequences",
            Self::Sampling(field) => return write!(f, "device {}", field.as_str()),
            Self::Faults => "a faulty device",
            Self::OtherModel => "another model",
            Self::BrokenWeights => "NaN weights",
            Self::BoundedState => "a state that stops growing",
            Self::Adapters => "adapters",
            Self::OutputStates => "output states",
        })
    }
}

/// One [`Need`] in the table.
macro_rules! need {
    (Claimed $capability:ident) => {
        Need::Claimed(Capability::$capability)
    };
    (Sampling $field:ident) => {
        Need::Sampling(SamplingField::$field)
    };
    ($need:ident) => {
        Need::$need
    };
}

/// Declares the checks in the order of a report, each with its needs and its property: [`ALL`], and the macro
/// that makes a test of each. The first argument is a dollar sign, for the macro that this one writes.
macro_rules! checks {
    ($d:tt $($name:ident [$($need:ident $(($of:ident))?),*] $property:literal)*) => {
        /// Every check, in the order of a report.
        pub const ALL: &[Check] = &[$(
            Check { name: stringify!($name), property: $property, needs: &[$(need!($need $($of)?)),*], run: $name }
        ),*];

        /// Generates the tests of [`suite!`](crate::suite).
        #[doc(hidden)]
        #[macro_export]
        macro_rules! __tests {
            ($d expectations:expr) => {$(
                #[test]
                fn $name() {
                    __hold(stringify!($name), __subject(), &$d expectations);
                }
            )*};
        }
    };
}

checks! { $
    describes_itself [] "capabilities and model information are consistent"
    load_options_are_honoured [] "every load option is honoured or rejected by name"
    session_options_are_honoured [] "a session's own capacity is honoured"
    opens_and_closes [] "sequences open empty, and closed ones are gone"
    ids_are_not_reused [] "the id of a closed sequence is never reused"
    sequences_are_limited [] "the claimed number of sequences, and no more"
    drop_order_is_free [] "backend, model and session drop in any order"
    sessions_move_between_threads [] "a session moves between threads"
    chunked_prefill [] "a chunked prompt equals the whole prompt"
    token_by_token [] "a prompt token by token equals the whole prompt"
    logits_do_not_depend_on_chunks [Claimed(Logits)] "logits do not depend on chunking"
    positions_count_tokens [] "positions count tokens"
    greedy_is_argmax [Claimed(Logits)] "the greedy token is the largest logit"
    batch_equals_single [TwoSequences] "batched sequences equal single ones"
    mixed_steps [TwoSequences] "prompt chunks and decoding rows mix; rows join and leave"
    results_are_in_row_order [TwoSequences] "results are in the order of rows"
    batches_take_one_pass [] "a claimed batch is one pass"
    prompt_chunks_take_one_pass [] "a claimed prompt chunk is one pass"
    bitwise_invariance [Claimed(BitwiseBatchInvariance)] "bitwise equal in any batch"
    sequences_are_isolated [TwoSequences] "sequences do not affect each other"
    sessions_are_isolated [] "sessions do not affect each other"
    threads_share_only_weights [] "sessions run on several threads concurrently"
    stale_ids_are_rejected [] "the id of a closed sequence is rejected"
    fills_exactly [] "correct up to the last token of the capacity"
    one_beyond_is_refused [] "one token beyond the capacity is rejected before any work"
    rewind_forgets [Claimed(Rewind)] "rewind forgets later tokens"
    rewind_has_bounds [Claimed(Rewind)] "rewinding past the current position is rejected"
    rewind_computes_nothing [Claimed(Rewind)] "rewind computes nothing"
    fork_continues [Claimed(Fork), TwoSequences] "a fork continues as its source would"
    fork_is_independent [Claimed(Fork), TwoSequences] "source and fork are independent"
    fork_takes_a_slot [Claimed(Fork), TwoSequences] "a fork needs a free sequence slot"
    fork_computes_nothing [Claimed(Fork), TwoSequences] "fork computes nothing"
    snapshot_round_trip [Claimed(Snapshot)] "a restored sequence continues"
    snapshot_outlives_its_session [Claimed(Snapshot)] "a snapshot outlives its session and model"
    snapshot_rejects_foreign [Claimed(Snapshot)] "foreign and oversized snapshots are rejected"
    snapshot_rejects_other_models [Claimed(Snapshot), OtherModel] "snapshots of another model are rejected"
    snapshot_rejects_corruption [Claimed(Snapshot)] "a corrupt snapshot is detected"
    snapshot_size_is_bounded [Claimed(Snapshot)] "a snapshot has at most the claimed size"
    snapshot_computes_nothing [Claimed(Snapshot)] "snapshot and restore compute nothing"
    adapters_change_their_sequences [Adapters] "an adapter changes its sequences and no others"
    adapters_share_a_pass [Adapters, TwoSequences] "sequences with different adapters share passes"
    forks_keep_their_adapter [Adapters, Claimed(Fork)] "a fork has the adapter of its sequence"
    snapshots_belong_to_their_adapter [Adapters, Claimed(Snapshot)] "a snapshot belongs to an adapter"
    adapter_slots_are_reused [Adapters] "slots of adapters are limited, kept while used, and clean"
    bounded_states_stop_growing [BoundedState] "memory of windows and recurrences stops growing"
    logits_are_complete [Claimed(Logits)] "a finite logit for every token"
    logprobs_sum_to_one [Claimed(TopLogprobs)] "log probabilities sum to one"
    top_is_sorted [Claimed(TopLogprobs)] "top log probabilities are sorted, in the requested number"
    every_position_is_step_by_step [Claimed(EveryPosition)] "scoring a text at once equals scoring it step by step"
    scored_drafts_can_be_rewound [Claimed(EveryPosition), Claimed(Rewind)] "drafts scored at every position can be rewound"
    drafts_are_verified_in_one_row [Claimed(Verification)] "drafts are verified in one row"
    drafts_follow_dropped_drafts [Claimed(Verification)] "drafts follow draft tokens that were dropped"
    drafts_return_logits [Claimed(Verification), Claimed(Logits)] "logits after each draft token"
    drafts_are_masked_individually [Claimed(Verification), Claimed(TokenMasks)] "each draft token has its own mask"
    drafts_are_sampled_as_single_tokens [Claimed(Verification), Sampling(Temperature)] "tokens after drafts are sampled as single tokens are"
    hidden_states_are_complete [Claimed(HiddenStates)] "a finite hidden state of the claimed size"
    hidden_states_do_not_depend_on_chunks [Claimed(HiddenStates)] "hidden states do not depend on chunking"
    mean_pooling_covers_the_row [Claimed(HiddenStates)] "mean pooling covers all tokens of the row"
    states_accompany_answers [OutputStates] "the hidden states of a row's tokens come beside its answer"
    hidden_states_mix_with_other_wants [Claimed(HiddenStates), TwoSequences] "hidden states mix with other wants in a step"
    masks_are_honoured [Claimed(TokenMasks)] "a mask limits the choice and nothing else"
    bad_masks_are_refused [Claimed(TokenMasks)] "empty masks are rejected"
    stop_tokens_are_tokens [Claimed(TokenMasks)] "stop tokens are ordinary tokens"
    seeds_repeat [Sampling(Temperature)] "equal seeds give equal texts"
    seeds_differ [Sampling(Temperature)] "other seeds give other texts"
    draws_are_stateless [Sampling(Temperature)] "batching, chunking, rewind and fork change no draw"
    draws_follow_probabilities [Sampling(Temperature), Claimed(Logits)] "draws follow the probabilities"
    top_k_is_honoured [Sampling(Temperature), Sampling(TopK), Claimed(Logits)] "draws stay within top-k"
    top_p_is_honoured [Sampling(Temperature), Sampling(TopP), Claimed(Logits)] "draws stay within top-p"
    min_p_is_honoured [Sampling(Temperature), Sampling(MinP), Claimed(Logits)] "draws stay within min-p"
    biases_are_added [Sampling(LogitBias), Claimed(Logits)] "logit biases are added"
    repetition_penalty_is_applied [Sampling(RepetitionPenalty), Claimed(Logits)] "repetition is penalised"
    presence_penalty_is_applied [Sampling(PresencePenalty), Claimed(Logits)] "presence is penalised"
    frequency_penalty_is_applied [Sampling(FrequencyPenalty), Claimed(Logits)] "frequency is penalised"
    streams_are_steps [] "streams are steps, and withhold stop tokens"
    generation_ends_when_full [] "a generation ends when its sequence is full"
    generation_leaves_nothing_open [] "a generation closes what it opened"
    cancelled_steps_do_nothing [] "a cancelled step computes nothing"
    cancelled_prompts_resume [] "a cancelled prompt resumes"
    cancelled_rows_spare_the_others [TwoSequences] "a cancelled row leaves the others running"
    cancelled_generations_resume [] "a cancelled generation resumes"
    faults_poison [Faults] "a fault poisons its sequence until it is closed"
    faults_spare_the_others [TwoSequences, Faults] "a fault affects no other sequence"
    faults_anywhere_are_recoverable [Faults] "the session recovers from a fault at any point"
    broken_weights_are_refused [BrokenWeights] "NaN is the same error for every want"
    no_rows_are_refused [] "a step without rows is rejected"
    bad_rows_are_refused [] "invalid rows are rejected with the right kind"
    duplicate_rows_are_refused [] "a second row of a sequence is rejected"
    bad_rows_harm_no_others [] "an invalid row affects no other row"
    stats_are_monotone [] "counters increase and never decrease"
    unclaimed_is_unsupported [] "unclaimed capabilities return Unsupported"
    operations [] "random sequences of operations"
}
