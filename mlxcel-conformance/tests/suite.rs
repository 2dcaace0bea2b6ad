//! The kit on the reference session, and on sessions with one defect each.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, missing_docs)]

mod mutants;
mod oracle;
mod reference;
