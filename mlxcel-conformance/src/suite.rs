//! One test per property.

use crate::checks::Check;
use crate::expectations::Expectations;
use crate::report::{CheckResult, run};
use crate::subject::Subject;

/// Generates a `#[test]` for each check, and one that validates the expectations.
///
/// A check whose requirement on the [`Subject`] is not set fails unless it is skipped with a reason, so that no check
/// silently never runs.
///
/// The first argument is an expression for the [`Subject`] (evaluated once per process; its model is shared by the
/// tests), the second one for the [`Expectations`]:
///
/// ```
/// use mlxcel_conformance::{Expectations, Subject, suite};
/// use mlxcel_core::reference::ReferenceBackend;
///
/// suite!(Subject::new(ReferenceBackend::new(), ReferenceBackend::source()), Expectations::none());
/// # fn main() {}
/// ```
#[macro_export]
macro_rules! suite {
    ($factory:expr, $expectations:expr $(,)?) => {
        fn __subject() -> &'static $crate::Subject<'static> {
            static SUBJECT: ::std::sync::OnceLock<$crate::Subject<'static>> = ::std::sync::OnceLock::new();
            SUBJECT.get_or_init(|| $factory)
        }

        #[test]
        fn expectations_are_in_order() {
            let expectations: $crate::Expectations = $expectations;
            let defects = expectations.defects();
            assert!(defects.is_empty(), "{defects:?}");
        }

        $crate::__with_checks!([$crate::__tests]($expectations));
    };
}

/// Generates the tests of [`suite!`].
#[doc(hidden)]
#[macro_export]
macro_rules! __tests {
    (($expectations:expr) $($name:ident)*) => {$(
        #[test]
        fn $name() {
            $crate::__hold(stringify!($name), __subject(), &$expectations);
        }
    )*};
}

/// Passes the names of all checks to a macro, after its other arguments.
#[doc(hidden)]
#[macro_export]
macro_rules! __with_checks {
    ([$($callback:tt)+] $given:tt) => {
        $($callback)+! {
            $given
            describes_itself
            load_options_are_honoured
            session_options_are_honoured
            opens_and_closes
            ids_are_not_reused
            sequences_are_limited
            drop_order_is_free
            sessions_move_between_threads
            chunked_prefill
            token_by_token
            logits_do_not_depend_on_chunks
            positions_count_tokens
            greedy_is_argmax
            batch_equals_single
            mixed_steps
            results_are_in_row_order
            batches_take_one_pass
            prompt_chunks_take_one_pass
            bitwise_invariance
            sequences_are_isolated
            sessions_are_isolated
            threads_share_only_weights
            stale_ids_are_rejected
            fills_exactly
            one_beyond_is_refused
            rewind_forgets
            rewind_has_bounds
            rewind_computes_nothing
            fork_continues
            fork_is_independent
            fork_takes_a_slot
            fork_computes_nothing
            snapshot_round_trip
            snapshot_outlives_its_session
            snapshot_rejects_foreign
            snapshot_rejects_other_models
            snapshot_rejects_corruption
            snapshot_size_is_bounded
            snapshot_computes_nothing
            bounded_states_stop_growing
            logits_are_complete
            logprobs_sum_to_one
            top_is_sorted
            every_position_is_step_by_step
            scored_drafts_can_be_rewound
            drafts_are_verified_in_one_row
            drafts_return_logits
            drafts_are_masked_individually
            drafts_are_sampled_as_single_tokens
            hidden_states_are_complete
            hidden_states_do_not_depend_on_chunks
            mean_pooling_covers_the_row
            hidden_states_mix_with_other_wants
            masks_are_honoured
            bad_masks_are_refused
            stop_tokens_are_tokens
            seeds_repeat
            seeds_differ
            draws_are_stateless
            draws_follow_probabilities
            top_k_is_honoured
            top_p_is_honoured
            min_p_is_honoured
            biases_are_added
            repetition_penalty_is_applied
            presence_penalty_is_applied
            frequency_penalty_is_applied
            streams_are_steps
            generation_ends_when_full
            generation_leaves_nothing_open
            cancelled_steps_do_nothing
            cancelled_prompts_resume
            cancelled_rows_spare_the_others
            cancelled_generations_resume
            faults_poison
            faults_spare_the_others
            faults_anywhere_are_recoverable
            broken_weights_are_refused
            no_rows_are_refused
            bad_rows_are_refused
            duplicate_rows_are_refused
            bad_rows_harm_no_others
            stats_are_monotone
            unclaimed_is_unsupported
            operations
        }
    };
}

/// Panics unless the check holds, does not apply, or is excepted. An unset requirement on the subject is not a reason to skip.
#[doc(hidden)]
#[allow(clippy::panic, reason = "this is how a test fails")]
pub fn __hold(name: &str, subject: &Subject<'_>, expectations: &Expectations) {
    let Some(check) = Check::named(name) else { panic!("unknown check `{name}`") };
    let engine = subject.backend().name();
    match run(check, subject, expectations) {
        CheckResult::Failed(failure) => panic!("{engine} ({}): {failure}", check.property),
        CheckResult::Unclaimed(need) if need.is_of_subject() => {
            panic!("{engine} ({}): the subject lacks {need}; skip the check if it cannot", check.property)
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    macro_rules! names {
        (() $($name:ident)*) => {
            [$(stringify!($name)),*]
        };
    }

    #[test]
    fn every_check_is_a_test() {
        let all: Vec<_> = crate::checks::ALL.iter().map(|check| check.name).collect();
        assert_eq!(__with_checks!([names]()).to_vec(), all);
    }
}
