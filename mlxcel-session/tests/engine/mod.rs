//! Many requests in one session: what they say, who waits, and how they end.

mod ends;
pub mod harness;
mod own_code;
mod pressure;
mod same_texts;
mod texts;
mod waiting;
