//! Recurrences over the tokens of each row: a kernel walks through all tokens of a row, in one dispatch,
//! while a tile of the state stays in the first-level cache of the core that computes it.
//!
//! A pass is one dispatch over all rows. A workgroup computes a tile of a head's state whose results depend
//! on no other part of it, and updates it in place. Sizes that are no multiple of a vector get shorter
//! vectors.

mod delta_rule;
mod rows;
mod state_space;

pub(super) use delta_rule::lower as lower_delta_rule;
pub(super) use state_space::lower as lower_state_space;
