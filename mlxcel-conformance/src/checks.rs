//! The checks: one public function a property, each over a [`Subject`].
//!
//! Called by itself, a check needs the capabilities that [`Check::needs`] lists; on an engine that does not claim them it
//! fails with the engine's own [`Unsupported`](mlxcel_core::ErrorKind::Unsupported). [`run_all`](crate::run_all) and
//! [`suite!`](crate::suite) ask first.
//!
//! The docs of each check name the mutants that it kills: deliberately broken engines, which live with the kit's own tests.

mod batch;
mod capacity;
mod errors;
mod lifecycle;
mod prefill;

use std::fmt;

use mlxcel_core::Capabilities;

use crate::failure::Outcome;
use crate::subject::Subject;

pub use batch::{
    batch_equals_single, batches_take_one_pass, bitwise_invariance, mixed_steps, rows_answer_in_order,
};
pub use capacity::{fills_exactly, one_beyond_is_refused};
pub use errors::{
    bad_rows_are_refused, bad_rows_harm_no_others, duplicate_rows_are_refused, no_rows_are_refused,
    stats_are_monotone,
};
pub use lifecycle::{
    describes_itself, drop_order_is_free, ids_are_not_reused, load_options_are_honoured, opens_and_closes,
    sequences_are_limited, session_options_are_honoured, sessions_move_between_threads,
};
pub use prefill::{
    chunked_prefill, greedy_is_argmax, logits_do_not_depend_on_chunks, positions_count_tokens, token_by_token,
};

/// One property that every engine must hold.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct Check {
    /// The name of its function, and of its test.
    pub name: &'static str,
    /// The property, in a few words.
    pub property: &'static str,
    /// What the engine must claim for it.
    pub needs: &'static [Need],
    /// The check itself.
    pub run: fn(&Subject<'_>) -> Outcome,
}

impl Check {
    /// The check of this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        ALL.iter().find(|check| check.name == name)
    }

    /// The first need that the subject does not meet.
    ///
    /// # Errors
    ///
    /// Those of [`Subject::model`].
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

/// What a check needs of its subject.
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
    Sampling(mlxcel_core::SamplingField),
    /// Not a capability: [`Subject::with_faulty`].
    Faults,
    /// Not a capability: [`Subject::with_other_model`].
    OtherModel,
}

impl Need {
    fn is_met(self, subject: &Subject<'_>, claimed: &Capabilities) -> bool {
        match self {
            Self::TwoSequences => claimed.sequences >= 2,
            Self::Logits => claimed.logits,
            Self::TopLogprobs => claimed.top_logprobs > 0,
            Self::EveryPosition => claimed.every_position,
            Self::TokenMasks => claimed.token_masks,
            Self::Rewind => claimed.rewind,
            Self::Fork => claimed.fork,
            Self::Snapshot => claimed.snapshot,
            Self::BitwiseBatchInvariance => claimed.bitwise_batch_invariance,
            Self::Sampling(field) => claimed.sampling.contains(field),
            Self::Faults => subject.has_faults(),
            Self::OtherModel => subject.has_other_model(),
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
            Self::TokenMasks => "token masks",
            Self::Rewind => "rewind",
            Self::Fork => "fork",
            Self::Snapshot => "snapshot",
            Self::BitwiseBatchInvariance => "bitwise batch invariance",
            Self::Sampling(field) => return write!(f, "device sampling ({})", field.as_str()),
            Self::Faults => "a faulty device",
            Self::OtherModel => "another model",
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

use Need::*;

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
    batch_equals_single [TwoSequences] "in company as alone"
    mixed_steps [TwoSequences] "chunks and decoding rows mix; rows join and leave"
    rows_answer_in_order [TwoSequences] "results stand in the order of rows"
    batches_take_one_pass [] "a claimed batch is one pass"
    bitwise_invariance [BitwiseBatchInvariance] "equal to the last bit in any batch"
    fills_exactly [] "right to the last token of the capacity"
    one_beyond_is_refused [] "one token beyond is refused before work"
    no_rows_are_refused [] "a step without rows is refused"
    bad_rows_are_refused [] "bad rows are refused by kind"
    duplicate_rows_are_refused [] "a second row of a sequence is refused"
    bad_rows_harm_no_others [] "a bad row harms no other"
    stats_are_monotone [] "counters count, and never fall"
}
